"""Block-wise masks: which patches of a view are hidden (after Bao et al., BEiT, 2022, algorithm 1).

Rectangles of random area, shape and position are hidden one after the other while the total stays within the view's
ratio. All views of a batch are drawn together in a fixed number of tries: no tensor shape depends on data.
"""

import math

import torch
from torch import Tensor, nn

TRIES = 16  # blocks tried per view: on 14 x 14 patches they hide 98.7 % of the ratio on average
ASPECT = (0.3, 1 / 0.3)
_EACH = 4  # uniform numbers per block: area, shape, row, column


class BlockMasks(nn.Module):
    """Masks of a grid of patches, as a module so that it is compiled with the networks."""

    numbers = 2 + TRIES * _EACH
    """Uniform numbers per view."""

    def __init__(self, grid: tuple[int, int], *, ratio: tuple[float, float], probability: float) -> None:
        super().__init__()
        self.grid, self.ratio, self.probability = grid, ratio, probability

    @property
    def most(self) -> int:
        """The largest number of patches that can be hidden."""
        return math.floor(self.ratio[1] * self.grid[0] * self.grid[1])

    def forward(self, numbers: Tensor) -> Tensor:
        """Uniform numbers (N, n) -> masks (N, P), true where a patch is hidden."""
        h, w = self.grid
        chance, share = numbers[:, 0], numbers[:, 1]
        low, high = self.ratio
        budget = torch.floor((low + (high - low) * share) * (h * w))  # (N,) patches to hide
        budget = torch.where(chance < self.probability, budget, torch.zeros_like(budget))
        mask = torch.zeros(len(numbers), h, w, dtype=torch.bool, device=numbers.device)
        for block in numbers[:, 2:].split(_EACH, dim=1):
            left = budget - mask.sum((1, 2))
            new = self._block(block, left) & ~mask
            count = new.sum((1, 2))
            mask = mask | (new & (count <= left)[:, None, None])
        return mask.flatten(1)

    def _block(self, numbers: Tensor, left: Tensor) -> Tensor:
        """One rectangle per view, of about `left` patches at most: (N, 4), (N,) -> (N, h, w)."""
        h, w = self.grid
        smallest = (min(h, w) // 3) ** 2
        area = smallest + (left - smallest) * numbers[:, 0]
        low, high = (math.log(a) for a in ASPECT)
        side = torch.exp(0.5 * (low + (high - low) * numbers[:, 1]))  # the root of height / width
        rows = _interval(torch.round(area.clamp_min(0).sqrt() * side), numbers[:, 2], h)
        columns = _interval(torch.round(area.clamp_min(0).sqrt() / side), numbers[:, 3], w)
        return rows[:, :, None] & columns[:, None, :]


def _interval(length: Tensor, place: Tensor, size: int) -> Tensor:
    """The positions that an interval at a random place covers: length (N,), place (N,) -> (N, size)."""
    length = length.clamp(max=size)
    start = torch.floor(place * (size - length + 1))
    at = torch.arange(size, device=length.device)
    return (at >= start[:, None]) & (at < (start + length)[:, None])
