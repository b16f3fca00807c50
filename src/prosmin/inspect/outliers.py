"""What does not belong: the OOD score of each image against a reference, or against the rest of the folder."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prosmin.embed import reference as references
from prosmin.encoder import LEAST_REFERENCE
from prosmin.encoder.neighbourhood import AMONG_THEMSELVES, NEIGHBOURS
from prosmin.encoder.neighbours import first_of_copies, first_of_each
from prosmin.encoder.space import Space

Numbers = NDArray[np.int64]


class Outliers(NamedTuple):
    """Of N images."""

    score: NDArray[np.float32]  # (N,)
    flag: NDArray[np.bool_]  # (N,): the score is above the threshold
    nearest: Numbers  # (N,): row of the nearest image of the reference
    near: NDArray[np.float32]  # (N,): its distance
    uncertainty: NDArray[np.float32]  # (N,): see Neighbourhood
    disagreement: NDArray[np.float32]  # (N,): the same
    threshold: float
    rate: float  # the share of images like the reference that may be flagged


def find_outliers(
    features: Tensor,
    pixels: Numbers,
    *,
    space: Space,
    reference: tuple[Tensor, Numbers] | None,
    rate: float | None,
) -> Outliers | None:
    """Score images with these features (N, D) and hashes of pixels (N,); None if the reference is too small.

    `reference` is the same of its M images, None for the folder itself. No image is compared with a copy of itself,
    which has the same pixels or the same features: an image that does not belong, and is there ten times, still has no
    image like it.
    """
    bank, bank_pixels = (features, pixels) if reference is None else reference
    _, groups = np.unique(np.concatenate([pixels, bank_pixels]), return_inverse=True)
    own, theirs = torch.from_numpy(groups[: len(pixels)]), torch.from_numpy(groups[len(pixels) :])
    different = first_of_each(theirs)
    chosen = different[references.choose(different)]
    first = first_of_copies(bank[chosen.to(bank.device)])
    if len(first.unique()) < LEAST_REFERENCE:
        return None
    rows = (row.to(features.device) for row in (bank[chosen.to(bank.device)], chosen, theirs[chosen]))
    k = NEIGHBOURS if reference is not None else AMONG_THEMSELVES
    fitted = references.fit(*rows, space=space, neighbours=k, first=first)
    measured = fitted.measure(features, own.to(features.device))
    nearest, near, score, disagreement, uncertainty = (found.cpu().numpy() for found in measured)
    if reference is None:
        # A share of the different images, by default one at least: among all, the copies of an outlier would count as
        # several, all with the score of the threshold, and none would be above it.
        repeats = chosen[first.cpu() != torch.arange(len(chosen))]
        alone = np.sort(score[np.setdiff1d(different.numpy(), repeats.numpy())])
        rate = max(references.FALSE_ALARMS, 1 / len(alone)) if rate is None else rate
        threshold = float(alone[len(alone) - int(rate * len(alone) + 1e-9) - 1])
    else:
        rate = references.possible_rate(len(fitted.scores), rate)
        threshold = fitted.threshold(rate)
    flag = score.astype(np.float64) > threshold
    return Outliers(score, flag, nearest, near, uncertainty, disagreement, threshold, rate)
