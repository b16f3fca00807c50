"""torch.compile for the repeated blocks of a transformer, or for whole networks.

A block is compiled once for all depths: a run starts after seconds, where compiling the whole network takes a minute or
more. The price is that nothing is fused across blocks. With "blocks" a ResNet is not compiled, because its blocks
differ from stage to stage and its convolutions use cuDNN in either case.
"""

from typing import Literal

import torch
from timm.models.resnet import ResNet
from timm.models.vision_transformer import Block
from torch import nn

from prosmin.models.resnet import SmallResNet
from prosmin.models.vit import ClassTokenViT


def compile_networks(method: nn.Module, how: Literal["none", "blocks", "whole"]) -> None:
    """Compile a method's networks and loss in place; parameters keep their names."""
    if how == "none":
        return
    for part in method.children():
        (_compile if how == "whole" else _compile_blocks)(part)


def _compile_blocks(module: nn.Module) -> None:
    """Compile each block separately; compile a module without blocks, such as a head or a loss, as a whole."""
    if isinstance(module, ResNet | SmallResNet):
        return
    if isinstance(module, ClassTokenViT):
        module.last_block = torch.compile(module.last_block, dynamic=False)
    if isinstance(module, Block) or not any(isinstance(m, Block | ResNet | SmallResNet) for m in module.modules()):
        _compile(module)
        return
    for child in module.children():
        if next(child.children(), None) is not None:  # a single layer is one kernel already
            _compile_blocks(child)


def _compile(module: nn.Module) -> None:
    # `forward` and not the module: its code belongs to one class, so that all blocks share one compilation and other
    # classes do not count towards the recompilation limit.
    # dynamic=False: a run has few shapes, code for all shapes is slower, and for a ResNet it did not finish compiling.
    module.forward = torch.compile(module.forward, dynamic=False)
