"""The tokens of a ViT, with a learned token in the place of the patches it must not see."""

import torch
from timm.models import checkpoint_seq
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from prosmin.config import Config
from prosmin.errors import UsageError
from prosmin.models.backbones import build_backbone


def build_vit(config: Config) -> VisionTransformer:
    """The backbone of a method that works on patch tokens."""
    vit = build_backbone(config.backbone, image_size=config.views.global_size)
    if isinstance(vit, VisionTransformer):
        return vit
    raise UsageError(
        f"method.name {config.method.name!r} works on the patch tokens of a ViT; backbone.name is "
        f"{config.backbone.name!r}. Choose a vit_* name, such as vit_tiny_patch16_224, or another method."
    )


def vit_tokens(vit: VisionTransformer, x: Tensor, mask: Tensor | None, mask_token: Tensor) -> tuple[Tensor, Tensor]:
    """Views (N, 3, h, h), what to hide (N, P), the token (D,) -> features (N, D), patch tokens (N, P, D).

    The mask token replaces the patch's embedding; its position embedding stays. Without a mask the features
    are vit(x).
    """
    patches = vit.patch_embed(x)  # (N, h / patch, h / patch, D)
    if mask is not None:
        hidden = mask.view(*patches.shape[:3], 1)
        patches = torch.where(hidden, mask_token.to(patches.dtype), patches)
    # From here on as VisionTransformer.forward_features goes, which takes pictures only.
    x = vit.norm_pre(vit.patch_drop(vit._pos_embed(patches)))
    tokens = vit.norm(checkpoint_seq(vit.blocks, x) if vit.grad_checkpointing else vit.blocks(x))
    return vit.forward_head(tokens), tokens[:, vit.num_prefix_tokens :]
