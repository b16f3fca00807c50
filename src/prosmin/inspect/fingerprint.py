"""A fingerprint of an image: a small version of it, by which copies are recognised without the image itself."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

SIDE, COLOUR_SIDE = 32, 8
LENGTH = SIDE**2 + 2 * COLOUR_SIDE**2
"""Bytes: brightness (32, 32), then both colour differences of YCbCr, (2, 8, 8), of the image stretched to a square."""


def fingerprint(picture: Tensor) -> NDArray[np.uint8]:
    """The fingerprint of an image: uint8 (3, H, W) -> (1152,)."""
    image = Image.fromarray(np.ascontiguousarray(picture.permute(1, 2, 0).numpy()))
    # Pillow uses one thread; the gap lets it reduce large images by whole pixels first, several times as fast.
    small = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=2.0).convert("YCbCr")
    coarse = small.resize((COLOUR_SIDE, COLOUR_SIDE), Image.Resampling.BOX)
    brightness, colours = np.asarray(small)[..., 0], np.asarray(coarse)[..., 1:]
    return np.concatenate([brightness.ravel(), colours.transpose(2, 0, 1).ravel()])
