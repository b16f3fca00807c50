"""Decoded sets of a few images, and their pixels."""

import numpy as np
import torch

from prosmin.data.image_sets import Pictures, pack


def as_pictures(images: list[torch.Tensor]) -> Pictures:
    """A labelled set of these images."""
    packed, sizes = pack(images)
    names = tuple(str(i) for i in range(len(images)))
    return Pictures(
        images=packed, sizes=sizes, labels=torch.arange(len(images)), classes=names, keys=names, spec="test"
    )


def pixels(pictures: Pictures) -> np.ndarray:
    """(N, H, W, 3)."""
    return pictures.images.permute(0, 2, 3, 1).numpy()


def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Absolute difference of grey levels."""
    return np.abs(a.astype(int) - b.astype(int))
