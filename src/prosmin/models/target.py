"""The target network: a copy of the online one that follows it as a moving average and never sees a gradient."""

import copy

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
