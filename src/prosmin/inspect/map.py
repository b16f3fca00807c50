"""Where images lie among each other: their neighbours, and points of a map."""

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor

from prosmin.encoder.detectors import chord
from prosmin.encoder.neighbours import nearest
from prosmin.evaluation.protocols.gallery import planar_map
from prosmin.randomness import generator

NEIGHBOURS = 24
SAMPLE = 3_000
"""Images that t-SNE places. Its time grows faster than their number: 3,000 take about ten seconds on two cores."""
ANCHORS, TEMPERATURE = 5, 0.05
"""Images of the sample that place another one; the weight of each is exp(cosine / temperature)."""


def neighbours(features: Tensor) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The nearest other images of each image: (N, D) -> rows (N, k) and distances (N, k), nearest first."""
    k = min(NEIGHBOURS, len(features) - 1)
    if k == 0:
        return np.empty((1, 0), np.int32), np.empty((1, 0), np.float32)
    cosines, indices = nearest(features, features, k, exclude_self=True)
    return indices.cpu().numpy().astype(np.int32), chord(cosines).cpu().numpy()


def points(features: Tensor) -> NDArray[np.float32]:
    """Points of the map in the unit square: (N, D) -> (N, 2).

    Up to SAMPLE images are placed by t-SNE. Of more images a sample is, and each other image lies at the weighted mean
    of its nearest images of the sample.
    """
    if len(features) <= SAMPLE:
        return _placed(features)
    chosen = torch.randperm(len(features), generator=generator(0, 0, "map"))[:SAMPLE].sort().values
    sample = features[chosen.to(features.device)]
    placed = torch.from_numpy(_placed(sample))
    cosines, indices = nearest(sample, features, ANCHORS)
    weights = torch.softmax(cosines.cpu() / TEMPERATURE, dim=1)  # (N, ANCHORS)
    found = (weights[:, :, None] * placed[indices.cpu()]).sum(1)  # (N, 2)
    found[chosen] = placed
    return found.numpy()


def _placed(features: Tensor) -> NDArray[np.float32]:
    # One thread: where other programs use the cores, the threads of t-SNE wait for each other, four times as long.
    with threadpool_limits(1, user_api="openmp"):
        return planar_map(features.cpu(), seed=0)
