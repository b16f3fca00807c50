"""MoCo v3: a query must be more similar to the key of its image's other view than to any other image's key.

Chen, Xie and He, An Empirical Study of Training Self-Supervised Vision Transformers, 2021. Two views and no
queue: the other images of the batch, of all processes, are the negatives.
"""

from itertools import pairwise

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from prosmin.config import Config
from prosmin.data.views import Views
from prosmin.errors import UsageError
from prosmin.methods.output import Draws, Embedding, Output
from prosmin.models.backbones import build_backbone
from prosmin.models.batchnorm import gather_rows
from prosmin.models.target import make_target, update_target


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

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Views (N, 3, h, h) -> features (N, D), projections (N, K)."""
        features = self.backbone(x)
        return features, self.projector(features)


class Contrast(nn.Module):
    """The symmetric InfoNCE loss, as a module so that it is compiled with the networks."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, queries: Tensor, keys: Tensor, rows: Tensor) -> Tensor:
        """2 temperature * sum over both views of the cross-entropy of picking the right key of the other view.

        unit queries (2, B, K), unit keys (2, N, K), rows (B,) of the right keys -> (B,). The factor keeps the
        size of the gradient about the same at every temperature.
        """
        with torch.autocast(queries.device.type, enabled=False):
            logits = torch.einsum("gbk,gnk->gbn", queries, keys.flip(0)) / self.temperature  # (2, B, N)
            hits = logits.gather(2, rows.expand(2, -1)[..., None])[..., 0]  # (2, B)
            return 2.0 * self.temperature * (logits.logsumexp(-1) - hits).sum(0)


class MoCoV3(nn.Module):
    """Online: f, projector and predictor. Target (the momentum encoder): f and projector."""

    spans_batch = True

    def __init__(self, config: Config) -> None:
        super().__init__()
        if config.views.local:
            raise UsageError(
                f"views.local is {config.views.local}; MoCo v3 uses the two global views only: set views.local to 0."
            )
        heads = config.heads
        self.online = KeyEncoder(config)
        self.predictor = batchnorm_mlp([heads.dim, heads.hidden, heads.dim])
        self.target = make_target(self.online if config.target.start == "copy" else KeyEncoder(config))
        self.contrast = Contrast(config.loss.temperature)

    def forward(self, views: Views, draws: Draws) -> Output:
        """Queries of each view against the keys of the other view of all images."""
        G, B = views.global_views.shape[:2]
        x = views.global_views.flatten(0, 1)  # (G B, 3, h, h)
        features, projections = self.online(x)
        queries = _unit(self.predictor(projections)).unflatten(0, (G, B))  # (G, B, K)
        with torch.no_grad():
            keys = _unit(self.target(x)[1]).unflatten(0, (G, B))  # (G, B, K)
        all_keys, first = gather_rows(keys)  # (G, N, K)
        return Output(
            losses=self.contrast(queries, all_keys, torch.arange(first, first + B, device=x.device)),
            observed={"features": features.detach(), "target": keys},
            statistics={},
        )

    def update(self, statistics: dict[str, Tensor], *, momentum: float) -> None:
        """Move the target towards the online network."""
        update_target(self.target, self.online, momentum=momentum)

    def encode(self, x: Tensor) -> Embedding:
        """Evaluation views, (N, 3, h, h); the mean is the query."""
        features, projections = self.online(x)
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
