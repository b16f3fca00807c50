"""Weights that stay where they are for a while, although the optimizer holds them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Frozen(NamedTuple):
    """Weights, their values before a step, and whether, (), the step is to leave them there."""

    weights: Sequence[nn.Parameter]
    values: Sequence[Tensor]
    still: Tensor


def freeze(weights: Sequence[nn.Parameter], still: Tensor) -> Frozen:
    """Take the weights' values, to put them back after the step where `still` is not 0."""
    return Frozen(weights, [weight.detach().clone() for weight in weights], still)


@torch.no_grad()
def put_back(frozen: Frozen | None) -> None:
    """Undo the step for weights that were to stay.

    A frozen weight's gradient is computed and applied like any other, then the weight is put back. Out of the
    graph, DDP would wait for its gradient; with a gradient of zero, weight decay would move it, and AdamW
    would count empty steps, after which its first real ones are many times too large.
    """
    if frozen is not None:
        for weight, value in zip(frozen.weights, frozen.values, strict=True):
            weight.copy_(torch.where(frozen.still != 0, value, weight))
