"""Which images a step uses: a function of seed, step and position only."""

import torch
from torch import Tensor

from prosmin import randomness


class Order:
    """Every epoch is a new permutation; a step takes the next `batch_size` of it, an incomplete rest is left out."""

    def __init__(self, pictures: int, *, batch_size: int, seed: int) -> None:
        self.pictures, self.batch_size, self.seed = pictures, batch_size, seed
        self.steps_per_epoch = pictures // batch_size
        self._epoch, self._permutation = -1, torch.empty(0, dtype=torch.int64)

    def __call__(self, step: int, *, rank: int = 0, world: int = 1) -> Tensor:
        """The indices of this process's share of the global batch, (batch_size / world,)."""
        epoch, within = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:  # kept for speed only
            self._permutation = torch.randperm(self.pictures, generator=randomness.generator(self.seed, epoch, "order"))
            self._epoch = epoch
        share = self.batch_size // world
        start = within * self.batch_size + rank * share
        return self._permutation[start : start + share]
