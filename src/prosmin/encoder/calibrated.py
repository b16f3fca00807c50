"""A frozen backbone with forecast heads of its own, as `prosmin calibrate` makes them for any encoder."""

from typing import Any

import torch
from torch import Tensor, nn

from prosmin.config import ProsminHeads, ViewsConfig
from prosmin.methods.output import Embedding
from prosmin.models.condition import typical_condition
from prosmin.models.heads import GaussianPredictor
from prosmin.models.radius import RadiusForecast
from prosmin.models.vit import encode

CALIBRATION = "calibration"
"""The entry of a card that says how the heads were made; only calibrated encoders have it."""
UNFINISHED = "views.parts"
"""The folder in which `prosmin calibrate` keeps what it has computed until the encoder is written."""
COMMAND = "command.txt"
"""The file in it that has the command."""


class ForecastHeads(nn.Module):
    """mean = r x + f(x, c), scale = factor sqrt(1 - r^2) g(x, c) for whitened coordinates x, with an MLP for f and g.

    c is the condition: what is known of the given view and of the one that is forecast (prosmin.models.condition). r,
    one number per coordinate, is the correlation between two views of an image. The MLP starts at f = 0, g = 1: the
    best forecast of each coordinate from itself alone, which few images suffice for.
    """

    correlation: Tensor
    factor: Tensor
    typical_factor: Tensor
    typical: Tensor

    def __init__(self, *, dim: int, hidden: int, views: ViewsConfig) -> None:
        super().__init__()
        self.register_buffer("typical", typical_condition(views), persistent=False)
        self.register_buffer("correlation", torch.zeros(dim))
        self.register_buffer("factor", torch.ones(()))  # set by held-out images
        self.register_buffer("typical_factor", torch.ones(()))  # the same for forecasts of the typical view
        # Without BatchNorm, which made it no better, and training 15 times slower.
        heads = ProsminHeads(dim=dim, predictor_hidden=hidden, initial_scale=1.0, batchnorm=False, condition=True)
        self.mlp = GaussianPredictor(heads)
        assert self.mlp.log_variance is not None
        nn.init.zeros_(self.mlp.mean.weight)
        nn.init.zeros_(self.mlp.log_variance.weight)

    def forward(self, x: Tensor, condition: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(..., K), (..., C) -> mean (..., K), scale (..., K); without a condition, of the typical view."""
        factor = self.factor
        if condition is None:
            condition, factor = self.typical.expand(*x.shape[:-1], -1), self.typical_factor
        mean, scale = self.mlp(x, condition)
        rest = (1 - self.correlation.square()).sqrt()
        return self.correlation * x + mean, factor * rest * scale


class Calibrated(nn.Module):
    """The features, and a forecast of the whitened features of another view of the image.

    In whitened units the features of random views have mean 0 and covariance I, so N(0, I) is the forecast of someone
    who does not see the image.
    """

    is_conditional = True  # forecasts depend on which view is forecast
    centre: Tensor
    axes: Tensor

    def __init__(self, backbone: nn.Module, *, features: int, dim: int, hidden: int, views: ViewsConfig) -> None:
        super().__init__()
        self.online = nn.ModuleDict({"backbone": backbone})
        self.register_buffer("centre", torch.zeros(features))
        self.register_buffer("axes", torch.eye(features, dim))
        self.predictor = ForecastHeads(dim=dim, hidden=hidden, views=views)
        self.radius = RadiusForecast(dim, unit=1.0)
        self.typical_radius = RadiusForecast(dim, unit=1.0)  # of forecasts of the typical view

    def encode(self, x: Tensor, condition: Tensor | None = None) -> Embedding:
        """Views (N, 3, h, h), (N, C); without a condition evaluation views, which forecast the typical view."""
        features = encode(self.online["backbone"], x)
        with torch.autocast(x.device.type, enabled=False):  # the heads take no time, and whitening enlarges rounding
            mean, scale = self.predictor(self.whiten(features), condition)
        return Embedding(features, mean, scale)

    def observe(self, x: Tensor) -> Tensor:
        """What forecasts are compared with: views (N, 3, h, h) -> whitened features (N, K)."""
        features = encode(self.online["backbone"], x)
        with torch.autocast(x.device.type, enabled=False):
            return self.whiten(features)

    def whiten(self, features: Tensor) -> Tensor:
        """(..., D) -> (..., K), in float32."""
        return (features.float() - self.centre) @ self.axes


def calibrated_network(backbone: nn.Module, calibration: dict[str, Any], views: ViewsConfig) -> Calibrated:
    """The network of a card, with random heads."""
    sizes = {name: int(calibration[name]) for name in ("features", "dim", "hidden")}
    return Calibrated(backbone, **sizes, views=views)
