"""Confidence intervals of means over images, by resampling whole images."""

from functools import lru_cache

import torch
from torch import Tensor

from prosmin.randomness import generator

DRAWS = 1000


@lru_cache(maxsize=4)  # many predictions are measured on the same images
def times_drawn(count: int, *, draws: int, seed: int, purpose: str, device: torch.device) -> Tensor:
    """How often each of N images occurs when N are drawn with replacement, float64: (draws, N).

    Its product with (N, M) gives the sums of all draws at once, deterministically also on a GPU.
    """
    chosen = torch.randint(count, (draws, count), generator=generator(seed, 0, purpose))
    once = torch.ones((), dtype=torch.float64).expand_as(chosen)
    return torch.zeros(draws, count, dtype=torch.float64).scatter_add_(1, chosen, once).to(device)


def resampled_means(values: Tensor, *, seed: int, purpose: str, draws: int = DRAWS) -> Tensor:
    """Means over images drawn with replacement, the same images for all columns: (N, M) -> (draws, M)."""
    times = times_drawn(len(values), draws=draws, seed=seed, purpose=purpose, device=values.device)
    return (times @ values.double()).cpu() / len(values)


def interval(draws: Tensor) -> tuple[float, float]:
    """The 2.5 % and the 97.5 % point: (draws,) -> two numbers."""
    low, high = torch.quantile(draws, torch.tensor([0.025, 0.975], dtype=draws.dtype)).tolist()
    return low, high


def with_interval(name: str, value: float, draws: Tensor) -> dict[str, float]:
    """A metric and the ends of its interval, by their names in a result."""
    low, high = interval(draws)
    return {name: value, f"{name}_low": low, f"{name}_high": high}
