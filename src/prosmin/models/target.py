"""The target network, a moving average of the online network; and weights frozen during the first epochs."""

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

    BatchNorm's running statistics are not averaged: the target computes them in its forward passes.
    """
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), 1.0 - momentum)


class Frozen(NamedTuple):
    """Weights, their values before a step, and a tensor () that is not 0 if the step must not change them."""

    weights: Sequence[nn.Parameter]
    values: Sequence[Tensor]
    active: Tensor


def freeze(weights: Sequence[nn.Parameter], active: Tensor) -> Frozen:
    """Keep the weights' values, for `restore` after the step."""
    return Frozen(weights, [weight.detach().clone() for weight in weights], active)


@torch.no_grad()
def restore(frozen: Frozen | None) -> None:
    """Undo the step for frozen weights.

    Their gradient is computed and applied, then the weights are restored. Without a gradient DDP would wait for it.
    With a gradient of zero, weight decay would change them, and AdamW's first steps after the freeze would be many
    times too large.
    """
    if frozen is not None:
        for weight, value in zip(frozen.weights, frozen.values, strict=True):
            weight.copy_(torch.where(frozen.active != 0, value, weight))
