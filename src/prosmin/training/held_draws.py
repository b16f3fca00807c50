"""A method's draws in the form that a recorded step can follow: places whose values go from step to step."""

from collections.abc import Callable

import torch
from torch import Tensor

from prosmin import randomness
from prosmin.methods.output import Draws, as_scalar


class HeldDraws(Draws):
    """Draws whose keys and scalars stay in their places while their values go from step to step."""

    def __init__(self, seed: int, step: int, positions: Tensor, epoch: float) -> None:
        super().__init__(seed, step, positions, epoch)
        self.keys: dict[str, Tensor] = {}
        self.scalars: dict[str, tuple[Tensor, Callable[[float], float]]] = {}

    def move(self, step: int, epoch: float) -> None:
        """On to another step: every value is written into its place."""
        self.step, self.epoch = step, epoch
        for purpose, place in self.keys.items():
            place.fill_(randomness.key(self.seed, step, purpose))
        for place, of in self.scalars.values():
            place.fill_(of(epoch))

    def key(self, purpose: str) -> Tensor:
        """The key's place."""
        if purpose not in self.keys:
            key = randomness.key(self.seed, self.step, purpose)
            self.keys[purpose] = torch.full((), key, dtype=torch.int64, device=self.positions.device)
        return self.keys[purpose]

    def scalar(self, purpose: str, of: Callable[[float], float]) -> Tensor:
        """The number's place."""
        if purpose not in self.scalars:
            self.scalars[purpose] = (as_scalar(of(self.epoch), self.positions.device), of)
        return self.scalars[purpose][0]
