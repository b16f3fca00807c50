"""Independent noise of every pixel and channel: gaussian, shot, impulse, speckle. (B, 3, H, W) uint8 -> the same."""

import math

import torch
from torch import Tensor

from prosmin.data.corruptions.primitives import Draws, to_bytes, to_unit


def gaussian_noise(images: Tensor, deviation: float, draws: Draws) -> Tensor:
    """x + deviation n, n standard normal."""
    noise = draws.normal("noise", *images.shape[1:])
    return to_bytes(to_unit(images).add_(noise, alpha=deviation))


def speckle_noise(images: Tensor, deviation: float, draws: Draws) -> Tensor:
    """x + deviation x n, n standard normal."""
    x = to_unit(images)
    noise = draws.normal("noise", *images.shape[1:])
    return to_bytes(torch.addcmul(x, x, noise, value=deviation))


def shot_noise(images: Tensor, photons: int, draws: Draws) -> Tensor:
    """Poisson(photons x) / photons, by inverting the distribution function of each of the 256 grey levels."""
    table = _poisson_table(photons)  # (256, K)
    level = images.to(torch.int64)
    # Row g is g + P(count <= k): one sorted line of numbers for all levels, searched at once.
    line = (table + torch.arange(256, dtype=torch.float64)[:, None]).flatten().to(images.device)
    number = draws.uniform("noise", *images.shape[1:]).double()
    count = torch.searchsorted(line, level + number, right=True) - level * table.shape[1]
    return to_bytes(count.to(torch.float32) / photons)


def _poisson_table(photons: int) -> Tensor:
    """P(count <= k) at the rate of each grey level, float64: (256, K); the rest is below 24-bit resolution."""
    counts = torch.arange(photons + math.ceil(10 * math.sqrt(photons)) + 20, dtype=torch.float64)
    rate = torch.arange(256, dtype=torch.float64)[:, None] * photons / 255
    log_pmf = torch.special.xlogy(counts, rate) - rate - torch.lgamma(counts + 1)
    return log_pmf.exp().cumsum(1).clamp_(max=1.0)


def impulse_noise(images: Tensor, share: float, draws: Draws) -> Tensor:
    """A share of the values becomes black or white with equal probability."""
    lost, white = draws.uniform("noise", 2, *images.shape[1:]).unbind(1)
    extreme = (white <= 0.5).to(torch.uint8) * 255
    return torch.where(lost <= share, extreme, images)
