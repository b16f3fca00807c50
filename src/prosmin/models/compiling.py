"""torch.compile, applied where it pays: to the blocks that a backbone repeats, or to whole networks.

A block is compiled once and serves at every depth, so that a run begins after seconds where compiling the whole network
takes a minute or more; what is lost is fusion across the border of two blocks.
"""

from typing import Literal

import torch
from timm.models.resnet import BasicBlock, Bottleneck
from timm.models.vision_transformer import Block as TransformerBlock
from torch import nn

from prosmin.models.resnet import Block as SmallBlock

BLOCKS = (TransformerBlock, SmallBlock, BasicBlock, Bottleneck)


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
    """Every block by itself; what holds no block, such as a head or a loss, whole."""
    if isinstance(module, BLOCKS) or not any(isinstance(inner, BLOCKS) for inner in module.modules()):
        _compile(module)
        return
    for child in module.children():
        is_layer = next(child.children(), None) is None  # a single layer is a kernel already
        if not is_layer:
            _compile_blocks(child)


def _compile(module: nn.Module) -> None:
    # The code of `forward`, unlike that of nn.Module's own call, belongs to one kind of module: all blocks share what
    # was compiled for the first, and different modules do not count against each other's limit.
    module.forward = torch.compile(module.forward)
