"""What a ViT looks at: how the class token of its last block weighs the patches."""

from typing import Any, cast

import torch
from timm.models.vision_transformer import Attention, VisionTransformer
from torch import Tensor, nn


def has_class_attention(backbone: nn.Module) -> bool:
    """Whether the network ends in attention with a class token."""
    return (
        isinstance(backbone, VisionTransformer)
        and backbone.has_class_token
        and isinstance(getattr(backbone.blocks[-1], "attn", None), Attention)
    )


@torch.inference_mode()
def class_attention(backbone: nn.Module, x: Tensor) -> Tensor:
    """Views (N, 3, h, w) -> weights of the patches (N, heads, h / patch, w / patch), as `softmax(q k)` gives them.

    They sum to less than 1: the rest is the class token's weight of itself and of registers.
    """
    assert has_class_attention(backbone)
    vit = cast(VisionTransformer, backbone)
    attention = cast(Attention, vit.blocks[-1].attn)
    seen: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(inputs[0])  # (N, T, D)

    handle = attention.register_forward_pre_hook(keep)
    try:
        vit(x)
    finally:
        handle.remove()
    tokens = seen[0]
    N, T, _ = tokens.shape
    query, key, _ = attention.qkv(tokens).reshape(N, T, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    first = attention.q_norm(query[:, :, :1])  # (N, heads, 1, D / heads)
    weights = torch.softmax(attention.scale * first @ attention.k_norm(key).transpose(-2, -1), dim=-1)[:, :, 0]
    p, q = cast(tuple[int, int], vit.patch_embed.patch_size)
    return weights[..., vit.num_prefix_tokens :].unflatten(-1, (x.shape[-2] // p, x.shape[-1] // q))
