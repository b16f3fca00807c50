"""timm's vision transformers: a faster forward pass, masked tokens, attention maps, features for probes."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from timm.models import checkpoint_seq
from timm.models.vision_transformer import Attention, Block, VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SHORT = 64
"""Up to so many tokens another attention kernel is faster (on an H200, 37 tokens: 14 % less time per pass)."""


class PatchProjection(nn.Conv2d):
    """A convolution with stride equal to kernel, as one matrix product: (N, C, h, w) -> (N, D, h / p, w / p)."""

    def forward(self, input: Tensor) -> Tensor:
        """Cut into patches and multiply; the result is contiguous by token, as the blocks need it."""
        N, C, h, w = input.shape
        p, q = self.kernel_size
        patches = input.view(N, C, h // p, p, w // q, q).permute(0, 2, 4, 1, 3, 5).reshape(N, h // p, w // q, C * p * q)
        return F.linear(patches, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


class AutocastWidth(nn.Module):
    """Convert tokens to autocast's dtype; without autocast do nothing."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, D) -> (N, T, D)."""
        kind = x.device.type
        return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


class QuickGelu(nn.GELU):
    """GELU; for bfloat16 x sigmoid(x p(x^2)) with a fitted p, error at most 2.6e-5 (bfloat16 at 1: 8e-3)."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape, same dtype."""
        if input.dtype != torch.bfloat16:
            return super().forward(input)
        x = input.float()
        square = (x * x).clamp(max=16.0)  # beyond |x| = 4 the logistic function is 0 or 1
        return (x * torch.sigmoid(x * (1.5950154 + square * (0.0740116566 - 0.000703098677 * square)))).to(input.dtype)


class ResizingViT(VisionTransformer):
    """A ViT that resizes its position embedding for other grids of patches as timm does, by products of matrices.

    Their gradient has the same bits every time; on a GPU that of timm's interpolation has not.
    """

    def _pos_embed(self, x: Tensor) -> Tensor:
        """Put class and register tokens first and add the positions: (N, h / p, w / p, D) -> (N, T, D)."""
        if self.pos_embed is None or not self.dynamic_img_size or x.shape[1:3] == self.patch_embed.grid_size:
            return super()._pos_embed(x)
        prefix = [token.expand(len(x), -1, -1) for token in (self.cls_token, self.reg_token) if token is not None]
        without = 0 if self.no_embed_class else self.num_prefix_tokens
        positions = resize_positions(
            self.pos_embed, old=self.patch_embed.grid_size, new=(x.shape[1], x.shape[2]), prefix=without
        )
        if self.no_embed_class:
            return self.pos_drop(torch.cat([*prefix, x.flatten(1, 2) + positions], dim=1))
        return self.pos_drop(torch.cat([*prefix, x.flatten(1, 2)], dim=1) + positions)


def resize_positions(positions: Tensor, *, old: tuple[int, int], new: tuple[int, int], prefix: int) -> Tensor:
    """A position embedding for another grid, as timm's `resample_abs_pos_embed`: (1, T, D) -> (1, T', D).

    The first `prefix` tokens have no place in the grid and stay. In float64: TF32 or autocast would round.
    """
    first, grid = positions[:, :prefix], positions[0, prefix:]
    with torch.autocast(positions.device.type, enabled=False):
        rows, columns = (_resize_matrix(a, b, positions.device) for a, b in zip(old, new, strict=True))
        half = rows @ grid.double().view(old[0], -1)  # (h', w D)
        resized = (columns @ half.view(new[0], old[1], -1)).flatten(0, 1)  # (h' w', D)
    return torch.cat([first, resized.to(positions.dtype)[None]], dim=1)


@torch.no_grad()
def _resize_matrix(old: int, new: int, device: torch.device) -> Tensor:
    """The weights of an antialiased bicubic resize of an axis, in float64, by resizing the unit vectors: (new, old)."""
    units = torch.eye(old, dtype=torch.float64, device=device)[None, None]  # each row of this image is one
    return F.interpolate(units, size=(old, new), mode="bicubic", antialias=True)[0, 0].T


class ClassTokenViT(ResizingViT):
    """A ViT whose features are the class token: its last block computes that token alone.

    The other tokens of the last block are keys and values only. `forward_features` and `forward_intermediates` still
    compute all tokens.
    """

    last_block: Callable[[Block, Tensor], Tensor]

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """(N, 3, h, w) -> (N, D)."""
        if self.global_pool != "token":  # changed by reset_classifier
            return super().forward(x)
        tokens = self.norm_pre(self.patch_drop(self._pos_embed(self.patch_embed(x))))
        first, last = self.blocks[:-1], cast(Block, self.blocks[-1])
        tokens = checkpoint_seq(first, tokens) if self.grad_checkpointing else first(tokens)
        return self.forward_head(self.norm(self.last_block(last, tokens)))


def class_token_of_block(block: Block, tokens: Tensor) -> Tensor:
    """The class token after a block, as the block computes it: (N, T, D) -> (N, 1, D)."""
    attention = cast(Attention, block.attn)
    weight, bias = attention.qkv.weight, attention.qkv.bias
    width = len(weight) // 3
    normal, first = block.norm1(tokens), tokens[:, :1]
    parts = [slice(0, width), slice(width, None)]  # rows of the query, of key and value
    rows = [(weight[part], None if bias is None else bias[part]) for part in parts]
    query, key, value = (
        x.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)  # (N, heads, 1 or T, D / heads)
        for x in (F.linear(normal[:, :1], *rows[0]), *F.linear(normal, *rows[1]).chunk(2, dim=-1))
    )
    dropped = attention.attn_drop.p if attention.training else 0.0
    seen = F.scaled_dot_product_attention(
        attention.q_norm(query), attention.k_norm(key), value, dropout_p=dropped, scale=attention.scale
    )
    seen = attention.proj_drop(attention.proj(attention.norm(seen.transpose(1, 2).flatten(2))))
    first = first + block.drop_path1(block.ls1(seen))
    return first + block.drop_path2(block.ls2(block.mlp(block.norm2(first))))


def _is_class_token_vit(vit: VisionTransformer) -> bool:
    """Whether its features are the class token and its last block is a plain one."""
    attention = getattr(vit.blocks[-1], "attn", None)
    plain = type(vit) is VisionTransformer and type(vit.blocks[-1]) is Block and type(attention) is Attention
    pooled = vit.has_class_token and vit.global_pool == "token" and vit.attn_pool is None
    return plain and pooled and getattr(attention, "gate", None) is None


def speed_up(vit: VisionTransformer) -> VisionTransformer:
    """Replace layers by faster ones that compute the same, in place."""
    projection = getattr(vit.patch_embed, "proj", None)
    if type(projection) is nn.Conv2d and projection.stride == projection.kernel_size:
        projection.__class__ = PatchProjection
    if isinstance(vit.norm_pre, nn.Identity):  # applied after the position embedding
        vit.norm_pre = AutocastWidth()
    for module in vit.modules():
        if type(module) is nn.GELU and module.approximate == "none":
            module.__class__ = QuickGelu
    if _is_class_token_vit(vit):
        vit.__class__ = ClassTokenViT
        cast(ClassTokenViT, vit).last_block = class_token_of_block
    elif type(vit) is VisionTransformer:
        vit.__class__ = ResizingViT
    return vit


def encode(backbone: nn.Module, x: Tensor) -> Tensor:
    """Views of one size (N, 3, h, w) -> features (N, D)."""
    with _attention(backbone, x):
        return backbone(x)


def _attention(backbone: nn.Module, x: Tensor) -> AbstractContextManager[object]:
    if not x.is_cuda or not isinstance(backbone, VisionTransformer):
        return nullcontext()
    p, q = cast(tuple[int, int], backbone.patch_embed.patch_size)
    tokens = (x.shape[-2] // p) * (x.shape[-1] // q) + backbone.num_prefix_tokens
    if tokens > SHORT:
        return nullcontext()
    return sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def has_patches(backbone: nn.Module) -> bool:
    """Whether the network is a ViT, ours or one of timm's: its tokens are class and register tokens, then patches."""
    return hasattr(backbone, "num_prefix_tokens") and hasattr(backbone, "forward_intermediates")


def patch_tokens(backbone: nn.Module, x: Tensor) -> Tensor:
    """The last block's patch tokens after the final norm: views (N, 3, h, w) -> (N, h / patch, w / patch, D)."""
    assert has_patches(backbone)
    with _attention(backbone, x):
        last = backbone.forward_intermediates(x, indices=1, norm=True, intermediates_only=True)  # type: ignore[operator]
    return last[0].permute(0, 2, 3, 1)  # timm gives (N, D, h / patch, w / patch)


def features_and_patches(backbone: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Features (N, D) and `patch_tokens` in one pass."""
    assert has_patches(backbone)
    with _attention(backbone, x):
        tokens, last = backbone.forward_intermediates(x, indices=1, norm=True)  # type: ignore[operator]
        return backbone.forward_head(tokens), last[0].permute(0, 2, 3, 1)  # type: ignore[operator]


def has_class_attention(backbone: nn.Module) -> bool:
    """Whether the last block is attention with a class token."""
    return (
        isinstance(backbone, VisionTransformer)
        and backbone.has_class_token
        and isinstance(getattr(backbone.blocks[-1], "attn", None), Attention)
    )


@torch.inference_mode()
def class_attention(backbone: nn.Module, x: Tensor) -> Tensor:
    """The class token's attention to the patches: views (N, 3, h, w) -> (N, heads, h / patch, w / patch).

    The weights sum to less than 1: the rest is attention to the class token itself and to registers.
    """
    assert has_class_attention(backbone)
    vit = cast(VisionTransformer, backbone)
    attention = cast(Attention, vit.blocks[-1].attn)
    seen: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(inputs[0])  # (N, T, D)

    handle = attention.register_forward_pre_hook(keep)
    try:
        vit.forward_features(x)
    finally:
        handle.remove()
    tokens = seen[0]
    N, T, _ = tokens.shape
    query, key, _ = attention.qkv(tokens).reshape(N, T, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    first = attention.q_norm(query[:, :, :1])  # (N, heads, 1, D / heads)
    weights = torch.softmax(attention.scale * first @ attention.k_norm(key).transpose(-2, -1), dim=-1)[:, :, 0]
    p, q = cast(tuple[int, int], vit.patch_embed.patch_size)
    return weights[..., vit.num_prefix_tokens :].unflatten(-1, (x.shape[-2] // p, x.shape[-1] // q))


def vit_tokens(vit: VisionTransformer, x: Tensor, mask: Tensor | None, mask_token: Tensor) -> tuple[Tensor, Tensor]:
    """Views (N, 3, h, h), mask (N, P), mask token (D,) -> features (N, D), patch tokens (N, P, D).

    The mask token replaces the patch embedding, not the position embedding. Without a mask the features are vit(x).
    """
    patches = vit.patch_embed(x)  # (N, h / patch, h / patch, D)
    if mask is not None:
        hidden = mask.view(*patches.shape[:3], 1)
        patches = torch.where(hidden, mask_token.to(patches.dtype), patches)
    # The rest repeats VisionTransformer.forward_features, which takes images only.
    x = vit.norm_pre(vit.patch_drop(vit._pos_embed(patches)))
    tokens = vit.norm(checkpoint_seq(vit.blocks, x) if vit.grad_checkpointing else vit.blocks(x))
    return vit.forward_head(tokens), tokens[:, vit.num_prefix_tokens :]


BLOCKS = 4
VIT_B_WIDTH = 768


def probe_features(backbone: nn.Module, x: Tensor) -> Tensor:
    """Images (B, 3, h, w) -> (B, F); `describe_probe` says which features."""
    if not isinstance(backbone, VisionTransformer) or not backbone.has_class_token:
        return backbone(x)
    small = backbone.embed_dim < VIT_B_WIDTH
    layers: Any = backbone.forward_intermediates(
        x, _blocks(backbone), return_prefix_tokens=True, norm=True, output_fmt="NLC", intermediates_only=True
    )  # of each block (B, P, D), (B, prefix, D)
    tokens = [prefix[:, 0] for _, prefix in layers]
    return torch.cat(tokens if small else [*tokens, layers[-1][0].mean(1)], dim=1)


def describe_probe(backbone: nn.Module) -> str:
    """Which features `probe_features` returns: they depend on the size of the ViT."""
    if not isinstance(backbone, VisionTransformer) or not backbone.has_class_token:
        return "features"
    if backbone.embed_dim < VIT_B_WIDTH:
        return f"class tokens of the last {_blocks(backbone)} blocks"
    return "class token and mean of the patch tokens of the last block"


def _blocks(vit: VisionTransformer) -> int:
    return min(BLOCKS, len(vit.blocks)) if vit.embed_dim < VIT_B_WIDTH else 1
