"""What goes into a method and what comes out of it."""

from typing import NamedTuple

from torch import Tensor

from prosmin import randomness
from prosmin.randomness import Streams


class Draws(NamedTuple):
    """Where training stands and the randomness of the step.

    Every number is a function of seed, step and the pictures' positions in the global batch.
    """

    seed: int
    step: int
    positions: Tensor  # (B,)
    epoch: float  # passes over the pictures behind this step, the fraction of the present one included

    def normal(self, purpose: str, shape: tuple[int, ...]) -> Streams:
        """The streams of (B, *shape) standard normal numbers, which `box_muller` draws."""
        return randomness.normal_streams(randomness.key(self.seed, self.step, purpose), self.positions, shape)

    def uniform(self, purpose: str, count: int) -> Tensor:
        """Uniform numbers, (B, count)."""
        return randomness.uniform(randomness.key(self.seed, self.step, purpose), self.positions, count)


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
