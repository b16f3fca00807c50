"""The images to label first: typical of the folder, and different from each other."""

import numpy as np
import torch
from numpy.typing import NDArray

from prosmin.randomness import generator

SAMPLE = 4_096
"""Images that are compared with each other, drawn at random from a larger folder: their similarities take 64 MiB."""
_COPY = 1e-4  # an image that gains less looks like one that is already chosen


def representative(features: NDArray[np.float32], count: int) -> list[int]:
    """Rows of at most `count` images, the most useful for labelling first: (N, D) -> rows.

    Facility location (Nemhauser, Wolsey and Fisher, 1978): each choice adds most to the sum over all images of the
    similarity to the nearest chosen one, the cosine of centred features. An outlier adds little but itself and comes
    late, a copy of a chosen image adds nothing and comes last. benchmarks/inspect_subset.py compares other choices.
    """
    order = torch.randperm(len(features), generator=generator(0, 0, "representative")).numpy()
    sample = np.sort(order[:SAMPLE])
    if count < 1 or len(features) == 0:
        return []
    chosen = sample[facility_location(similarities(features[sample]), min(count, len(sample)))]
    if len(chosen) < count:  # random images are representative too
        chosen = np.concatenate([chosen, order[~np.isin(order, chosen)]])
    return [int(row) for row in chosen[:count]]


def similarities(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cosines of the features less their mean: (S, D) -> (S, S)."""
    centred = features - features.mean(axis=0)
    centred /= np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    return centred @ centred.T


def facility_location(similarity: NDArray[np.float32], count: int) -> list[int]:
    """Rows in the greedy order, until the next one adds nothing: (S, S) -> at most `count` rows."""
    chosen: list[int] = []
    nearest = np.zeros(len(similarity), dtype=np.float32)  # 0: as similar as two unrelated images
    while len(chosen) < count:
        gains = np.maximum(similarity - nearest, 0).sum(axis=1)
        best = int(gains.argmax())
        if chosen and gains[best] < _COPY:
            break
        chosen.append(best)
        nearest = np.maximum(nearest, similarity[best])
    return chosen
