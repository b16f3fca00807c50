"""Random crops: RandomResizedCrop's boxes for a whole batch, and the centred square.

A box is four integers: top, left, height, width.
"""

import math

import torch
from torch import Tensor

TRIES = 10
BOX_NUMBERS = 2 * TRIES + 2
"""Uniform numbers per random box: an area and a ratio for each try, then the position."""


def random_boxes(numbers: Tensor, sizes: Tensor, *, scale: tuple[float, float], ratio: tuple[float, float]) -> Tensor:
    """Boxes of random area, aspect ratio and place: (B, V, BOX_NUMBERS), (B, 2) -> (B, V, 4).

    A try draws a share of the area from `scale` and a ratio of width to height, log-uniform, from `ratio`.
    The first of ten tries that fits inside the image is used; if none fits, the largest centred box of an
    allowed ratio.
    """
    height, width = sizes[:, 0, None], sizes[:, 1, None]  # (B, 1)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    share, log_ratio, place = numbers.split([TRIES, TRIES, 2], dim=-1)
    area = (height * width)[..., None] * (scale[0] + (scale[1] - scale[0]) * share)  # (B, V, tries)
    aspect = torch.exp(low + (high - low) * log_ratio)
    tried_w = (area * aspect).sqrt().round().to(torch.int64)
    tried_h = (area / aspect).sqrt().round().to(torch.int64)
    fits = (tried_w > 0) & (tried_w <= width[..., None]) & (tried_h > 0) & (tried_h <= height[..., None])
    first = fits.to(torch.uint8).argmax(-1, keepdim=True)  # argmax returns the first of equal values
    h, w = tried_h.gather(-1, first)[..., 0], tried_w.gather(-1, first)[..., 0]  # (B, V)
    top = torch.minimum((place[..., 0] * (height - h + 1)).to(torch.int64), height - h)
    left = torch.minimum((place[..., 1] * (width - w + 1)).to(torch.int64), width - w)
    drawn = torch.stack([top, left, h, w], dim=-1)
    return torch.where(fits.any(-1)[..., None], drawn, _widest_boxes(sizes, ratio)[:, None])


def _widest_boxes(sizes: Tensor, ratio: tuple[float, float]) -> Tensor:
    """The largest centred box whose ratio of width to height is allowed: (B, 2) -> (B, 4)."""
    height, width = sizes.unbind(-1)
    h = torch.minimum(height, (width.to(torch.float32) / ratio[0]).round().to(torch.int64).clamp(min=1))
    w = torch.minimum(width, (height.to(torch.float32) * ratio[1]).round().to(torch.int64).clamp(min=1))
    return _centred(sizes, h, w)


def centre_boxes(sizes: Tensor, *, share: float) -> Tensor:
    """The centred square whose side is `share` of the shorter side: (B, 2) -> (B, 4)."""
    side = (sizes.amin(-1).to(torch.float32) * share).round().to(torch.int64).clamp(min=1)
    return _centred(sizes, side, side)


def _centred(sizes: Tensor, h: Tensor, w: Tensor) -> Tensor:
    height, width = sizes.unbind(-1)
    return torch.stack([(height - h) // 2, (width - w) // 2, h, w], dim=-1)
