"""What does not belong: the OOD score of each image against a reference, or against the rest of the folder."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prosmin.embed import reference as references
from prosmin.encoder import LEAST_REFERENCE

Numbers = NDArray[np.int64]


class Outliers(NamedTuple):
    """Of N images."""

    score: NDArray[np.float32]  # (N,)
    flag: NDArray[np.bool_]  # (N,): the score is above the threshold
    nearest: Numbers  # (N,): row of the nearest image of the reference
    near: NDArray[np.float32]  # (N,): its distance
    threshold: float
    rate: float  # the share of images like the reference that may be flagged


def find_outliers(
    features: Tensor, pixels: Numbers, *, reference: tuple[Tensor, Numbers] | None, rate: float | None
) -> Outliers | None:
    """Score images with these features (N, D) and hashes of pixels (N,); None if the reference is too small.

    `reference` is the same of its M images, None for the folder itself. No image is compared with a copy of itself:
    an image that does not belong, and is there ten times, still has no image like it.
    """
    bank, bank_pixels = (features, pixels) if reference is None else reference
    _, groups = np.unique(np.concatenate([pixels, bank_pixels]), return_inverse=True)
    own, theirs = torch.from_numpy(groups[: len(pixels)]), groups[len(pixels) :]
    different = torch.from_numpy(np.sort(np.unique(theirs, return_index=True)[1]))
    if len(different) < LEAST_REFERENCE:
        return None
    chosen = different[references.choose(different)]
    device = features.device
    fitted = references.fit(
        bank[chosen.to(device)], chosen.to(device), torch.from_numpy(theirs)[chosen].to(device)
    )  # fmt: skip
    nearest, near, score = (found.cpu().numpy() for found in fitted.measure(features, own.to(device)))
    if reference is None:
        rate = references.FALSE_ALARMS if rate is None else rate
        threshold = float(np.sort(score)[len(score) - int(rate * len(score) + 1e-9) - 1])
    else:
        rate = references.possible_rate(len(fitted.scores), rate)
        threshold = fitted.threshold(rate)
    return Outliers(score, score.astype(np.float64) > threshold, nearest, near, threshold, rate)
