"""MoCo v3: a query must be more similar to the key of its image's other view than to any other image's key.

Chen, Xie and He, An Empirical Study of Training Self-Supervised Vision Transformers, 2021. Two views and no
queue: the other images of the batch, of all processes, are the negatives. Local views, which the published method does
not have, are further queries; keys are of global views only.
"""

from itertools import pairwise

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from prosmin.config import Config
from prosmin.data.views import Views
from prosmin.errors import UsageError
from prosmin.methods.identification import in_columns
from prosmin.methods.output import Draws, Embedding, Output
from prosmin.models.backbones import build_backbone
from prosmin.models.batchnorm import gather_rows
from prosmin.models.target import make_target, update_target
from prosmin.models.vit import encode


def batchnorm_mlp(widths: list[int]) -> nn.Sequential:
    """Linear layers, each with BatchNorm, ReLU between them; the last BatchNorm has neither gain nor bias."""
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        last = i == len(widths) - 2
        layers += [nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs, affine=not last)]
        layers += [] if last else [nn.ReLU()]
    return nn.Sequential(*layers)


class KeyEncoder(nn.Module):
    """f and the three-layer projector."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        heads = config.heads
        self.backbone = build_backbone(config.backbone, image_size=config.views.global_size)
        features: int = self.backbone.num_features  # type: ignore[assignment]
        self.projector = batchnorm_mlp([features, heads.hidden, heads.hidden, heads.dim])
        if isinstance(self.backbone, VisionTransformer):
            initialise_as_published(self.backbone)
        _freeze_patch_embedding(self.backbone, config)

    def forward(self, groups: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Groups of views, one size per group, (n, 3, h, h) -> features (N, D), projections (N, K)."""
        features = torch.cat([encode(self.backbone, x) for x in groups])
        return features, self.projector(features)


class Contrast(nn.Module):
    """The symmetric InfoNCE loss, as a module so that it is compiled with the networks."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, queries: Tensor, keys: Tensor, rows: Tensor) -> Tensor:
        """4 temperature * mean over pairs of two different views of the cross-entropy of picking the right key.

        unit queries (V, B, K), unit keys (G, N, K), rows (B,) of the right keys -> (B,). The first G queries are of the
        views of the keys. Without local views there are two pairs, and this is the published 2 temperature * their sum;
        the temperature keeps the size of the gradient about the same.
        """
        with torch.autocast(queries.device.type, enabled=False):
            logits = torch.einsum("vbk,gnk->vgbn", queries, keys) / self.temperature  # (V, G, B, N)
            V, G = logits.shape[:2]
            pairs = logits.logsumexp(-1) - in_columns(logits, rows)  # (V, G, B)
            different = 1.0 - torch.eye(V, G, dtype=pairs.dtype, device=pairs.device)[..., None]
            return 4.0 * self.temperature * (different * pairs).sum((0, 1)) / (V * G - G)


class MoCoV3(nn.Module):
    """Online: f, projector and predictor. Target (the momentum encoder): f and projector."""

    spans_batch = True

    def __init__(self, config: Config) -> None:
        super().__init__()
        heads = config.heads
        self.online = KeyEncoder(config)
        self.predictor = batchnorm_mlp([heads.dim, heads.hidden, heads.dim])
        self.target = make_target(self.online if config.target.start == "copy" else KeyEncoder(config))
        self.contrast = Contrast(config.loss.temperature)

    def forward(self, views: Views, draws: Draws) -> Output:
        """Queries of each view against the keys of the other global views of all images."""
        G, B = views.global_views.shape[:2]
        groups = [group.flatten(0, 1) for group in views.groups]
        features, projections = self.online(groups)  # (V B, D), (V B, K)
        queries = _unit(self.predictor(projections)).unflatten(0, (-1, B))  # (V, B, K)
        with torch.no_grad():
            keys = _unit(self.target(groups[:1])[1]).unflatten(0, (G, B))  # (G, B, K)
        all_keys, first = gather_rows(keys)  # (G, N, K)
        return Output(
            losses=self.contrast(queries, all_keys, torch.arange(first, first + B, device=keys.device)),
            observed={"features": features[: G * B].detach(), "target": keys},
            statistics={},
        )

    def update(self, statistics: dict[str, Tensor], *, momentum: float) -> None:
        """Move the target towards the online network."""
        update_target(self.target, self.online, momentum=momentum)

    def encode(self, x: Tensor) -> Embedding:
        """Evaluation views, (N, 3, h, h); the mean is the query."""
        features, projections = self.online([x])
        return Embedding(features, _unit(self.predictor(projections)), None)


def _unit(x: Tensor) -> Tensor:
    """Rows of length one, in float32 or wider: (N, K) -> (N, K)."""
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)


@torch.no_grad()
def initialise_as_published(vit: VisionTransformer) -> None:
    """Give a ViT the fixed position embedding and the initial weights of MoCo v3, in place.

    They let the patch embedding stay random: tokens and positions have the same size. With timm's initialisation
    positions are thirty times smaller than tokens.
    """
    for name, module in vit.named_modules():
        if isinstance(module, nn.Linear):
            parts = 3 if name.endswith("qkv") else 1  # queries, keys and values are three matrices
            _draw(module.weight, module.in_features + module.out_features // parts)
            if module.bias is not None:
                module.bias.zero_()
    projection = getattr(vit.patch_embed, "proj", None)
    if isinstance(projection, nn.Conv2d):
        _draw(projection.weight, projection.weight[0].numel() + len(projection.weight))
        if projection.bias is not None:
            projection.bias.zero_()
    if vit.cls_token is not None:
        vit.cls_token.normal_(std=1e-6)
    if vit.pos_embed is not None:
        rows, columns = vit.patch_embed.grid_size
        places = sincos_positions(rows, columns, vit.pos_embed.shape[2])
        vit.pos_embed.zero_()[0, -len(places) :] = places  # class and register tokens have no position
        vit.pos_embed.requires_grad_(False)


def _draw(weight: Tensor, widths: int) -> None:
    """Uniform Xavier initialisation; `widths` is the sum of input and output width."""
    bound = (6 / widths) ** 0.5
    weight.uniform_(-bound, bound)


def sincos_positions(rows: int, columns: int, width: int) -> Tensor:
    """Sines and cosines of a patch's column and row at rates from 1 to 1/10,000, row by row: (rows columns, width)."""
    if width % 4:
        raise UsageError(
            f"backbone.width is {width}; allowed: a multiple of 4, because MoCo v3's position embedding is sines "
            "and cosines of two coordinates."
        )
    rates = 10_000.0 ** -(torch.arange(width // 4) / (width // 4))
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    angles = [place.reshape(-1, 1) * rates for place in (x, y)]
    return torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1)


def _freeze_patch_embedding(backbone: nn.Module, config: Config) -> None:
    """Keep a ViT's first layer at its random start: training it is unstable (the paper, section 4)."""
    freeze = config.heads.freeze_patch_embedding
    if isinstance(backbone, VisionTransformer):
        backbone.patch_embed.requires_grad_(freeze is False)
    elif freeze is not None:
        raise UsageError(
            f"heads.freeze_patch_embedding is for a ViT; backbone.name is {config.backbone.name!r}. Leave it out."
        )
