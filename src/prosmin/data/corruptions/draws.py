"""The random numbers of a corruption: a function of (seed, corruption, severity, a picture's place), nothing else."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from prosmin import randomness


@dataclass(frozen=True)
class Draws:
    """Draws for the pictures at `positions` (B,), on the device these are on."""

    seed: int
    name: str
    severity: int
    positions: Tensor

    def uniform(self, what: str, *shape: int) -> Tensor:
        """Uniform in [0, 1), float32: (B, *shape). Each `what` is a draw of its own."""
        return randomness.uniform(self._key(what), self.positions, math.prod(shape)).view(-1, *shape)

    def normal(self, what: str, *shape: int) -> Tensor:
        """Standard normal, float32: (B, *shape)."""
        return randomness.normal(self._key(what), self.positions, shape)

    def on_host(self) -> "Draws":
        """The same draws on the CPU, for numbers that decide by a threshold: a GPU's last bits would tip some."""
        return Draws(self.seed, self.name, self.severity, self.positions.cpu())

    def numpy_seeds(self) -> Tensor:
        """Four numbers of 24 bits a picture, int64 (B, 4), to seed another library's generator."""
        return (self.uniform("seed", 4) * 2.0**24).to(torch.int64)

    def _key(self, what: str) -> int:
        return randomness.key(self.seed, self.severity, f"corruption {self.name}: {what}")
