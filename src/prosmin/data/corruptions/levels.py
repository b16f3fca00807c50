"""Grey levels: bytes to [0, 1] and back, cut off as the reference cuts them off."""

import torch
from torch import Tensor

_GRACE = 2.0**-10
"""Added before cutting: 128 that comes out as 127.99999 stays 128, on every device and with any number of threads."""


def to_unit(images: Tensor) -> Tensor:
    """uint8 -> float32 in [0, 1]."""
    return images.to(torch.float32).div_(255.0)


def to_bytes(x: Tensor) -> Tensor:
    """Any numbers, clamped to [0, 1] -> uint8, cut off and not rounded."""
    return x.clamp(0.0, 1.0).mul_(255.0).add_(_GRACE).to(torch.uint8)
