"""A classifier of many classes on a set that has some of them: ImageNet-A, -O and -R have 200 of ImageNet's 1000.

The convention of Hendrycks et al. (2021): only the set's own classes can be answered, so that the others' logits are
left out before the softmax; of ImageNet-O, whose folders carry the names of the 200, the pictures that belong are
ImageNet's validation pictures of these classes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from prosmin.data.classes import class_numbers


def class_mask(own: Sequence[str], classes: Sequence[str], *, spec: str) -> Tensor:
    """Which of a classifier's classes a set has, by name: (C,), true for its own."""
    mask = torch.zeros(len(classes), dtype=torch.bool)
    mask[class_numbers(own, classes, spec=spec)] = True
    return mask


def masked_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Probabilities over the classes in the mask, 0 elsewhere: (N, C), (C,) -> (N, C)."""
    return logits.masked_fill(~mask.to(logits.device), float("-inf")).softmax(-1)
