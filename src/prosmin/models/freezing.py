"""Weights that stay where they are for a while, although the optimizer holds them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def take_values(weights: Sequence[nn.Parameter], *, frozen: bool) -> list[Tensor]:
    """The weights' values before a step, while they are frozen; nothing otherwise."""
    return [weight.detach().clone() for weight in weights] if frozen else []


@torch.no_grad()
def put_back(weights: Sequence[nn.Parameter], values: Sequence[Tensor]) -> None:
    """Undo the step for weights whose values were taken before it.

    A frozen weight's gradient is computed and applied like any other, then the weight is put back. Out of the
    graph, DDP would wait for its gradient; with a gradient of zero, weight decay would move it, and AdamW
    would count empty steps, after which its first real ones are many times too large.
    """
    for weight, value in zip(weights, values, strict=False):  # no values: not frozen
        weight.copy_(value)
