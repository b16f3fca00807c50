"""The target network, a moving average of the online one; and weights frozen for a while."""

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from timm.layers import DropPath
from torch import Tensor, nn


def make_target(online: nn.Module) -> nn.Module:
    """A copy that shares no parameter and no buffer with `online`, without gradients and without stochastic depth."""
    target = copy.deepcopy(online).requires_grad_(False)
    for module in target.modules():
        if isinstance(module, DropPath):
            module.drop_prob = 0.0
    return target


@torch.no_grad()
def update_target(target: nn.Module, online: nn.Module, *, momentum: float) -> None:
    """target = momentum * target + (1 - momentum) * online, over the parameters.

    Running statistics of BatchNorm are not averaged: the target keeps its own, from its own passes.
    """
    followers: list[Tensor] = list(target.parameters())
    leaders: list[Tensor] = list(online.parameters())
    torch._foreach_lerp_(followers, leaders, 1.0 - momentum)


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
