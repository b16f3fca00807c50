"""What is measured every few steps of a run, beside the numbers of each step."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import nn


class Measurement(NamedTuple):
    """Columns of metrics.jsonl that a run measures `every` so many steps and at its end."""

    every: int
    measure: Callable[[nn.Module], Mapping[str, float]] | None  # None in processes other than the first

    def is_due(self, done: int, last: int) -> bool:
        """Whether it is measured after `done` of `last` steps."""
        return done % self.every == 0 or done == last
