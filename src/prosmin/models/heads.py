"""The heads: projector g, predictor q, and f with g as one embedder."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prosmin.config import Config, ProsminHeads
from prosmin.models.backbones import build_backbone
from prosmin.models.condition import CONDITION
from prosmin.models.vit import encode
from prosmin.models.whitening import BatchWhitening


class UnitLinear(nn.Module):
    """A linear layer whose rows have length one: the weight-normalised last layer of DINO's head.

    The output depends on directions only, but a step rotates a longer row less. `as_plain`: rows start with the length
    they have in nn.Linear. `free`: every row is multiplied by a gain that starts at one and learns.
    """

    def __init__(self, inputs: int, outputs: int, *, as_plain: bool = False, free: bool = False) -> None:
        super().__init__()
        weight = nn.Linear(inputs, outputs, bias=False).weight.detach()
        self.weight = nn.Parameter(nn.init.trunc_normal_(weight, std=(3 * inputs) ** -0.5 if as_plain else 0.02))
        # A column and not a vector: as published, weight decay acts on it.
        self.gain = nn.Parameter(torch.ones(outputs, 1)) if free else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs): cosines, when x has length one, times the gains if there are any."""
        rows = F.normalize(self.weight, dim=1)
        return F.linear(x, rows if self.gain is None else self.gain * rows)


def mlp(widths: list[int], *, batchnorm: bool) -> nn.Sequential:
    """Linear layers with GELU between them, optionally BatchNorm before each GELU."""
    layers: list[nn.Module] = []
    for i in range(1, len(widths)):
        hidden = i < len(widths) - 1
        linear = nn.Linear(widths[i - 1], widths[i], bias=not (batchnorm and hidden))
        nn.init.trunc_normal_(linear.weight, std=0.02)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
        layers.append(linear)
        if hidden:
            layers += [nn.BatchNorm1d(widths[i]), nn.GELU()] if batchnorm else [nn.GELU()]
    return nn.Sequential(*layers)


class UnitLength(nn.Module):
    """Vectors of length one."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, K) -> (N, K)."""
        return F.normalize(x, dim=-1)


class Projector(nn.Module):
    """Three-layer MLP, then one of three ends.

    `last` whiten: l2 normalisation and BatchWhitening; none: BatchNorm; otherwise an l2-normalised bottleneck and unit
    rows to K: cosines. Embeddings of one length keep a few unusual images from having nearly all the variance, of
    which whitening restores only what is above its eps.
    """

    def __init__(
        self,
        inputs: int,
        *,
        hidden: int,
        bottleneck: int,
        dim: int,
        batchnorm: bool,
        bottleneck_batchnorm: bool = False,
        last: Literal["learned", "fixed", "none", "whiten"] = "learned",
        whitening_eps: float = 1e-3,
        prototypes: bool = False,
        normalise_last: bool = True,
    ) -> None:
        super().__init__()
        has_last = last in ("learned", "fixed")
        width = bottleneck if has_last else dim
        normalised = bottleneck_batchnorm or not has_last
        self.mlp = mlp([inputs, hidden, hidden, width], batchnorm=batchnorm)
        self.norm: nn.Module = nn.BatchNorm1d(width, affine=False) if normalised else nn.Identity()
        if last == "whiten":
            self.norm = nn.Sequential(UnitLength(), BatchWhitening(width, eps=whitening_eps))
        # The prototypes of DINO and iBOT start as published.
        unit = UnitLinear(bottleneck, dim, as_plain=prototypes, free=not normalise_last) if has_last else None
        self.last = unit and unit.requires_grad_(last == "learned")

    def forward(self, y: Tensor) -> Tensor:
        """(N, inputs) -> (N, K)."""
        if self.last is not None:
            return self.last(F.normalize(self.norm(self.mlp(y)), dim=-1))
        *hidden, final = self.mlp
        for layer in hidden:
            y = layer(y)
        # In float32 or wider: bfloat16 rounds an output relative to its largest direction, and whitening amplifies the
        # rounding in all others.
        with torch.autocast(y.device.type, enabled=False):
            return self.norm(final(y.to(torch.promote_types(y.dtype, torch.float32))))

    def last_weights(self) -> list[nn.Parameter]:
        """The parameters of the last layer, of projectors that have one: directions and, if they are free, gains."""
        assert self.last is not None
        return list(self.last.parameters())


LOG_SCALE_RANGE = 5.0
"""A scale stays within a factor of exp(5) = 148 of its initial value (a smooth limit)."""

LOG_SCALE_GAIN = 0.1
"""Factor on the output of the log-variance branch: see `GaussianPredictor`."""


class GaussianPredictor(nn.Module):
    """A two-layer MLP, then a branch for the mean and one for the log-variance.

    Input and both branches are in units of the target's standard deviation, `initial_scale`, so that weights have the
    usual size. Adam moves every weight by about the learning rate, whatever the weight's size. Without the unit the
    weights that map two thousand inputs of order 1 to outputs of 0.05 would change by twice their size per step at a
    rate of 0.001; the forecast would overshoot its target in every step, and the target's variance would collapse.
    """

    def __init__(self, heads: ProsminHeads) -> None:
        super().__init__()
        dim, hidden = heads.dim, heads.predictor_hidden
        inputs = dim + CONDITION if heads.condition else dim
        self.body = mlp([inputs, hidden, hidden], batchnorm=heads.batchnorm) if heads.predictor else nn.Identity()
        width = hidden if heads.predictor else dim
        # A buffer, so that checkpoints have it: older weights without a unit have the same shapes but another meaning.
        self.unit: Tensor
        self.register_buffer("unit", torch.tensor(heads.initial_scale))
        self.mean = nn.Linear(width, dim)
        self.log_variance = nn.Linear(width, dim) if heads.scale == "learned" else None
        # Every layer keeps about the size of its input, so that the forecast starts at the target's size for every
        # width: with an initial scale of 1, twenty times the signal, training fails.
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=layer.in_features**-0.5)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, t: Tensor, condition: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(N, K), (N, C) -> mean (N, K), scale (N, K); the deterministic twin's scale is 0.

        The condition, which only heads with `condition` take, is not in the target's units.
        """
        t = t / self.unit
        h = self.body(t if condition is None else torch.cat([t, condition.to(t)], dim=-1))
        mean = self.unit * self.mean(h)
        if self.log_variance is None:
            return mean, torch.zeros_like(mean)
        # exp in float32 or wider: bfloat16 has three digits.
        log_variance = self.log_variance(h)
        wide = log_variance if log_variance.dtype == torch.float64 else log_variance.float()
        # tanh, because an unusual image can make the branch, and its exponential, arbitrarily large.
        log_scale = LOG_SCALE_RANGE * torch.tanh(0.5 * LOG_SCALE_GAIN * wide / LOG_SCALE_RANGE)
        return mean, self.unit * torch.exp(log_scale)


class ReleasedPredictor(nn.Module):
    """The predictor of the code published with the paper: its scale starts at 1 and has no limit.

    Two layers, l2 normalisation, ReLU, then branches without bias, all with PyTorch's initial weights. The input of the
    branches has length one, so that both outputs start near 0.
    """

    def __init__(self, heads: ProsminHeads) -> None:
        super().__init__()
        dim, hidden = heads.dim, heads.predictor_hidden
        self.body = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, hidden))
        self.mean = nn.Linear(hidden, dim, bias=False)
        self.log_variance = nn.Linear(hidden, dim, bias=False) if heads.scale == "learned" else None

    def forward(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """(N, K) -> mean (N, K), scale (N, K); the deterministic twin's scale is 0."""
        h = F.relu(F.normalize(self.body(t), dim=-1))
        mean = self.mean(h)
        if self.log_variance is None:
            return mean, torch.zeros_like(mean)
        log_variance = self.log_variance(h)
        return mean, torch.exp(0.5 * log_variance.to(torch.promote_types(log_variance.dtype, torch.float32)))


def build_predictor(heads: ProsminHeads) -> GaussianPredictor | ReleasedPredictor:
    """The predictor that `heads` describes."""
    return (GaussianPredictor if heads.predictor_form == "scaled" else ReleasedPredictor)(heads)


class Embedder(nn.Module):
    """f and g of ProSMIN and DINO, online and target."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.backbone = build_backbone(config.backbone, image_size=config.views.global_size)
        features: int = self.backbone.num_features  # type: ignore[assignment]
        self.projector = build_projector(features, config)

    def forward(self, groups: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Groups of views, one size per group, (n, 3, h, h) -> features (N, D), embedding (N, K)."""
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
        last=getattr(heads, "last", "learned"),
        whitening_eps=getattr(heads, "whitening_eps", 1e-3),
        prototypes=not hasattr(heads, "last"),  # the heads of DINO and iBOT
        normalise_last=getattr(heads, "normalise_last", True),
    )
