"""The inputs and outputs of a method, except the views."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from prosmin import randomness
from prosmin.randomness import Streams


class Draws:
    """The epoch and the random numbers of one step.

    Every random number is a function of seed, step, purpose and the images' positions (B,) in the global batch. `epoch`
    is a fraction: completed steps / steps per epoch. This is not a tuple, because Fabric would copy it.
    """

    def __init__(self, seed: int, step: int, positions: Tensor, epoch: float) -> None:
        self.seed, self.step, self.positions, self.epoch = seed, step, positions, epoch

    def normal(self, purpose: str, shape: tuple[int, ...]) -> Streams:
        """The streams from which `box_muller` computes (B, *shape) standard normal numbers."""
        return randomness.normal_streams(self.key(purpose), self.positions, shape)

    def uniform(self, purpose: str, count: int) -> Tensor:
        """Uniform numbers, (B, count)."""
        return randomness.uniform(self.key(purpose), self.positions, count)

    def scalar(self, purpose: str, of: Callable[[float], float]) -> Tensor:
        """`of(epoch)` as a tensor (), on the device: a changed value neither recompiles nor synchronises."""
        return as_scalar(of(self.epoch), self.positions.device)

    def key(self, purpose: str) -> int | Tensor:
        """The key of one purpose in this step."""
        return randomness.key(self.seed, self.step, purpose)


def as_scalar(value: float, device: torch.device) -> Tensor:
    """A number as a tensor (), created on the device without a copy from the host."""
    return torch.full((), value, dtype=torch.float64, device=device)


class Output(NamedTuple):
    """One step of a method.

    losses: (B,), their mean is minimised. observed: detached tensors for the health metrics (features (N, D),
    target (G, B, K), scale (V, B, K)). statistics: batch means that `update` needs, averaged over processes.
    """

    losses: Tensor
    observed: dict[str, Tensor]
    statistics: dict[str, Tensor]


class Embedding(NamedTuple):
    """features (N, D) of the backbone; mean and scale (N, K) of the forecast, scale None where a method has none."""

    features: Tensor
    mean: Tensor
    scale: Tensor | None
