"""f and g together: from views to features and an embedding with K coordinates."""

import torch
from torch import Tensor, nn

from prosmin.config import Config
from prosmin.models.backbones import build_backbone
from prosmin.models.projector import Projector
from prosmin.models.vit import encode


class Embedder(nn.Module):
    """f and g of ProSMIN and DINO; the networks that meet have this form."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.backbone = build_backbone(config.backbone, image_size=config.views.global_size)
        features: int = self.backbone.num_features  # type: ignore[assignment]
        self.projector = build_projector(features, config)

    def forward(self, groups: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Groups of views of one size each, (n, 3, h, h) -> features (N, D), embedding (N, K)."""
        features = torch.cat([encode(self.backbone, x) for x in groups])
        return features, self.projector(features)


def build_projector(inputs: int, config: Config) -> Projector:
    """The projector that `heads` describes."""
    heads = config.heads
    return Projector(
        inputs,
        hidden=heads.hidden,
        bottleneck=heads.bottleneck,
        dim=heads.dim,
        batchnorm=heads.batchnorm,
        bottleneck_batchnorm=getattr(heads, "bottleneck_batchnorm", False),
        fixed_last=getattr(heads, "last", "learned") == "fixed",
        prototypes=not hasattr(heads, "last"),  # DINO's and iBOT's, which learn theirs
    )
