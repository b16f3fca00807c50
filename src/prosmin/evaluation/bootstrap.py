"""Intervals of means over pictures, by drawing the pictures again: what one picture gives is never torn apart."""

import torch
from torch import Tensor

from prosmin.randomness import generator

DRAWS = 1000
_VALUES = 2**24  # numbers held at once


def resampled_means(values: Tensor, *, seed: int, purpose: str, draws: int = DRAWS) -> Tensor:
    """Means over pictures drawn with replacement, the same pictures for all columns: (N, M) -> (draws, M)."""
    random = generator(seed, 0, purpose)
    parts = []
    for some in torch.arange(draws).split(max(1, _VALUES // values.numel())):
        chosen = torch.randint(len(values), (len(some), len(values)), generator=random)
        parts.append(values.double().cpu()[chosen].mean(1))
    return torch.cat(parts)


def interval(draws: Tensor) -> tuple[float, float]:
    """The 2.5 % and the 97.5 % point: (draws,) -> two numbers."""
    low, high = torch.quantile(draws, torch.tensor([0.025, 0.975], dtype=draws.dtype)).tolist()
    return low, high


def with_interval(name: str, value: float, draws: Tensor) -> dict[str, float]:
    """A number and the ends of its interval, under the names that results give them."""
    low, high = interval(draws)
    return {name: value, f"{name}_low": low, f"{name}_high": high}
