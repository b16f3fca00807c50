"""torch.compile, applied where it pays: to the blocks that a transformer repeats, or to whole networks.

A block is compiled once and serves at every depth, so that a run begins after seconds where compiling the whole network
takes a minute or more; what is lost is fusion across the border of two blocks. The blocks of a ResNet differ from stage
to stage, so that by blocks it is left as it is: its convolutions are cuDNN's in either case.
"""

from typing import Literal

import torch
from timm.models.resnet import ResNet
from timm.models.vision_transformer import Block
from torch import nn

from prosmin.models.resnet import SmallResNet


def compile_networks(method: nn.Module, how: Literal["none", "blocks", "whole"]) -> None:
    """Compile a method's networks and loss in place; parameters and their names stay."""
    if how == "none":
        return
    for part in method.children():
        if how == "whole":
            _compile(part)
        else:
            _compile_blocks(part)


def _compile_blocks(module: nn.Module) -> None:
    """Every block by itself; what holds neither blocks nor stages, such as a head or a loss, whole."""
    if isinstance(module, ResNet | SmallResNet):
        return
    if isinstance(module, Block) or not any(isinstance(m, Block | ResNet | SmallResNet) for m in module.modules()):
        _compile(module)
        return
    for child in module.children():
        is_layer = next(child.children(), None) is None  # a single layer is a kernel already
        if not is_layer:
            _compile_blocks(child)


def _compile(module: nn.Module) -> None:
    # The code of `forward`, unlike that of nn.Module's own call, belongs to one kind of module: all blocks share what
    # was compiled for the first, and different modules do not count against each other's limit.
    # For the shapes it meets: a run has few, and code for any shape is slower; for a ResNet, compiling it did not end.
    module.forward = torch.compile(module.forward, dynamic=False)
