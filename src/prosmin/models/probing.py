"""What DINO's linear protocol reads from a network: for a ViT more than the features."""

from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

BLOCKS = 4
VIT_B_WIDTH = 768


def probe_features(backbone: nn.Module, x: Tensor) -> Tensor:
    """Pictures (B, 3, h, w) -> (B, F), as `describe_probe` says in words."""
    if not isinstance(backbone, VisionTransformer) or not backbone.has_class_token:
        return backbone(x)
    small = backbone.embed_dim < VIT_B_WIDTH
    layers: Any = backbone.forward_intermediates(
        x, _blocks(backbone), return_prefix_tokens=True, norm=True, output_fmt="NLC", intermediates_only=True
    )  # of each block (B, P, D), (B, prefix, D)
    tokens = [prefix[:, 0] for _, prefix in layers]
    return torch.cat(tokens if small else [*tokens, layers[-1][0].mean(1)], dim=1)


def describe_probe(backbone: nn.Module) -> str:
    """Class tokens of the last blocks up to ViT-S; from ViT-B on the last one beside the mean of the patches."""
    if not isinstance(backbone, VisionTransformer) or not backbone.has_class_token:
        return "features"
    if backbone.embed_dim < VIT_B_WIDTH:
        return f"class tokens of the last {_blocks(backbone)} blocks"
    return "class token and mean of the patch tokens of the last block"


def _blocks(vit: VisionTransformer) -> int:
    return min(BLOCKS, len(vit.blocks)) if vit.embed_dim < VIT_B_WIDTH else 1
