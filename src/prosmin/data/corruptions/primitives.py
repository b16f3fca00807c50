"""Building blocks of corruptions: random numbers, grey levels, filters along one axis."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from prosmin import randomness


@dataclass(frozen=True)
class Draws:
    """Draws for the images at `positions` (B,), on the device these are on."""

    seed: int
    name: str
    severity: int
    positions: Tensor

    def uniform(self, what: str, *shape: int) -> Tensor:
        """Uniform in [0, 1), float32: (B, *shape). Each `what` is an independent draw."""
        return randomness.uniform(self._key(what), self.positions, math.prod(shape)).view(-1, *shape)

    def normal(self, what: str, *shape: int) -> Tensor:
        """Standard normal, float32: (B, *shape)."""
        return randomness.normal(self._key(what), self.positions, shape)

    def on_host(self) -> "Draws":
        """The same draws on the CPU, for numbers compared with a threshold: a GPU's last bits may differ."""
        return Draws(self.seed, self.name, self.severity, self.positions.cpu())

    def numpy_seeds(self) -> Tensor:
        """Four 24-bit numbers per image, int64 (B, 4), to seed another library's generator."""
        return (self.uniform("seed", 4) * 2.0**24).to(torch.int64)

    def _key(self, what: str) -> int:
        return randomness.key(self.seed, self.severity, f"corruption {self.name}: {what}")


_GRACE = 2.0**-10
"""Added before truncation, so that 127.99999 becomes 128 on every device and with any number of threads."""


def to_unit(images: Tensor) -> Tensor:
    """uint8 -> float32 in [0, 1]."""
    return images.to(torch.float32).div_(255.0)


def to_bytes(x: Tensor) -> Tensor:
    """Any numbers, clamped to [0, 1] -> uint8, truncated, not rounded."""
    return x.clamp(0.0, 1.0).mul_(255.0).add_(_GRACE).to(torch.uint8)


def gaussian_kernel(sigma: float, truncate: float) -> list[float]:
    """The weights of a Gaussian cut off after `truncate` deviations, as in scipy.ndimage."""
    radius = int(truncate * sigma + 0.5)
    weights = [math.exp(-0.5 * (x / sigma) ** 2) for x in range(-radius, radius + 1)]
    return [w / sum(weights) for w in weights]


def gaussian(x: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of (..., H, W) with edge pixels repeated, as skimage.filters.gaussian does by default."""
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
