"""Weighted sums along one axis of a batch, the same for every picture: blurring and resampling.

Sums of slices, not matrix products: their result does not depend on the batch, the threads or TF32.
"""

import math

import torch
from torch import Tensor


def gaussian_kernel(sigma: float, truncate: float) -> list[float]:
    """The weights of a Gaussian cut off after `truncate` deviations, as in scipy.ndimage."""
    radius = int(truncate * sigma + 0.5)
    weights = [math.exp(-0.5 * (x / sigma) ** 2) for x in range(-radius, radius + 1)]
    return [w / sum(weights) for w in weights]


def gaussian(x: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of (..., H, W) with its edges continued, as skimage.filters.gaussian does by default."""
    kernel = gaussian_kernel(sigma, truncate=4.0)
    return convolve(convolve(x, kernel, dim=-2, border="nearest"), kernel, dim=-1, border="nearest")


def convolve(x: Tensor, kernel: list[float], *, dim: int, border: str) -> Tensor:
    """A symmetric kernel along one axis."""
    size = x.shape[dim]
    wide = x.index_select(dim, _extended(size, len(kernel) // 2, border, x.device))
    total = torch.zeros_like(x)
    for start, weight in enumerate(kernel):
        total.add_(wide.narrow(dim, start, size), alpha=weight)
    return total


def _extended(size: int, radius: int, border: str, device: torch.device) -> Tensor:
    """The places of an axis continued by `radius` both ways: a a|a b c|c c (nearest), b a|a b c|c b (symmetric)."""
    places = torch.arange(-radius, size + radius, device=device)
    if border == "nearest":
        return places.clamp(0, size - 1)
    places = places.remainder(2 * size)
    return torch.minimum(places, 2 * size - 1 - places)


def resample(x: Tensor, places: Tensor, weights: Tensor, *, dim: int) -> Tensor:
    """sum over t of weights[i, t] x[places[i, t]] along one axis: places and weights are (n, T)."""
    shape = [1] * x.ndim
    shape[dim] = len(places)
    columns = zip(places.to(x.device).unbind(1), weights.to(x.device, x.dtype).unbind(1), strict=True)
    return sum((x.index_select(dim, p) * w.view(shape) for p, w in columns), start=x.new_zeros(()))
