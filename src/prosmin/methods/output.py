"""What goes into a method and what comes out of it."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from prosmin import randomness
from prosmin.randomness import Streams


class Draws:
    """Where training stands and the randomness of the step.

    Every number is a function of seed, step and the images' positions (B,) in the global batch; `epoch` counts the
    passes over the images behind this step, the fraction of the present one included. No tuple: Fabric would copy it.
    """

    def __init__(self, seed: int, step: int, positions: Tensor, epoch: float) -> None:
        self.seed, self.step, self.positions, self.epoch = seed, step, positions, epoch

    def normal(self, purpose: str, shape: tuple[int, ...]) -> Streams:
        """The streams of (B, *shape) standard normal numbers, which `box_muller` draws."""
        return randomness.normal_streams(self.key(purpose), self.positions, shape)

    def uniform(self, purpose: str, count: int) -> Tensor:
        """Uniform numbers, (B, count)."""
        return randomness.uniform(self.key(purpose), self.positions, count)

    def scalar(self, purpose: str, of: Callable[[float], float]) -> Tensor:
        """A number that follows from the epoch, (), on the device: nothing is compiled anew and nobody waits."""
        return as_scalar(of(self.epoch), self.positions.device)

    def key(self, purpose: str) -> int | Tensor:
        """What names one draw of this step."""
        return randomness.key(self.seed, self.step, purpose)


def as_scalar(value: float, device: torch.device) -> Tensor:
    """A number as a tensor, written on the device and not copied to it: ()."""
    return torch.full((), value, dtype=torch.float64, device=device)


class Output(NamedTuple):
    """One step of a method.

    losses: (B,), their mean is minimised. observed: detached tensors the health numbers are computed from (features
    (N, D), target (G, B, K), scale (V, B, K)). statistics: batch means that `update` needs, averaged over processes.
    """

    losses: Tensor
    observed: dict[str, Tensor]
    statistics: dict[str, Tensor]


class Embedding(NamedTuple):
    """features (N, D) of the backbone; mean and scale (N, K) of the forecast, scale None where a method has none."""

    features: Tensor
    mean: Tensor
    scale: Tensor | None
