"""Crop and resize with antialiasing, with a separate box for every view of every image.

Output pixel i of a box that starts at t and is n pixels long, resized to s pixels, has its centre at
c_i = (i + 1/2) n/s inside the box. Pixel y of the image enters it with the weight

    w_iy = k((y - t + 1/2 - c_i) / max(n/s, 1)) / sum over y,      0 for y outside the box,

where k is the filter. w contains crop, flip and filter, so boxes may differ in place, size and shape within
a batch. This is what torchvision's antialiased `resized_crop` computes.
"""

import math

import torch
from torch import Tensor

from prosmin.data.augment.separable import Taps, combine
from prosmin.errors import UsageError


def _triangle(x: Tensor) -> Tensor:
    """The bilinear filter at distances x >= 0."""
    return (1.0 - x).clamp_(min=0.0)


def _cubic(x: Tensor) -> Tensor:
    """Keys' cubic filter with a = -1/2 at distances x >= 0, as in Pillow and torch.

    Its two pieces as one expression: p^2 (p - 1) / 2 + q^2 (1 - 2 q), p = max(2 - x, 0), q = max(1 - x, 0).
    """
    p = (2.0 - x).clamp_(min=0.0)
    less = p - 1.0
    q = less.clamp(min=0.0)
    return torch.rsub(q, 1.0, alpha=2.0).mul_(q.square_()).addcmul_(p.square_(), less, value=0.5)


FILTERS = {"bilinear": (_triangle, 1), "bicubic": (_cubic, 2)}
"""Each filter and its reach, in pixels of the coarser of image and view."""


def crop_views(
    images: Tensor, boxes: Tensor, size: int, *, flip: Tensor | None = None, interpolation: str = "bicubic"
) -> Tensor:
    """V resized crops of each image, clamped to [0, 1].

    images (B, C, H, W) uint8, or float in [0, 1]; boxes (B, V, 4) integers: top, left, height, width;
    flip (B, V) bool -> (B, V, C, size, size).
    """
    if interpolation not in FILTERS:
        raise UsageError(f"interpolation is {interpolation!r}; allowed: {', '.join(FILTERS)}.")
    top, left, height, width = boxes.unbind(-1)  # (B, V) each
    rows = resize_taps(top, height, images.shape[-2], size, interpolation=interpolation)
    columns = resize_taps(left, width, images.shape[-1], size, interpolation=interpolation, flip=flip)
    views = combine(images, rows, columns)
    # Bytes stay 0..255 until here: they are exact in every float format, and so is a crop without a resize.
    if images.dtype == torch.uint8:
        views.div_(255.0)
    return views.clamp_(0.0, 1.0)


def resized_crop(
    images: Tensor, boxes: Tensor, size: int, *, flip: Tensor | None = None, interpolation: str = "bicubic"
) -> Tensor:
    """One resized crop of each image: boxes (N, 4), flip (N,) -> (N, C, size, size) in [0, 1]."""
    flips = None if flip is None else flip[:, None]
    return crop_views(images, boxes[:, None], size, flip=flips, interpolation=interpolation)[:, 0]


def resize_taps(
    start: Tensor, length: Tensor, pixels: int, size: int, *, interpolation: str, flip: Tensor | None = None
) -> Taps:
    """The taps that resize [start, start + length) of an axis to `size`; start, length, flip are (B, V)."""
    kernel, reach = FILTERS[interpolation]
    start, length = start[..., None], length[..., None]  # (B, V, 1)
    out = torch.arange(size, dtype=torch.float32, device=start.device)
    if flip is not None:
        out = torch.where(flip[..., None], size - 1 - out, out)
    ratio = length.to(torch.float32) / size
    stretch = ratio.clamp(min=1.0)
    centre = (out + 0.5) * ratio  # (B, V, size), from the start of the box
    # No box is longer than the axis, which bounds the number of pixels the filter can reach.
    count = min(pixels, math.ceil(2 * reach * max(pixels / size, 1.0)))
    first = (centre - reach * stretch + 0.5).floor().to(torch.int64) + start
    places = first.clamp_(0, pixels - count)[..., None] + torch.arange(count, device=start.device)
    inside = places - start[..., None]  # (B, V, size, T)
    beyond = (inside < 0) | (inside >= length[..., None])
    distance = (inside.to(torch.float32) + 0.5 - centre[..., None]).abs_().div_(stretch[..., None])
    weights = kernel(distance.masked_fill_(beyond, math.inf))  # infinity: beyond the reach of any filter
    return Taps(places, weights.div_(weights.sum(-1, keepdim=True)))
