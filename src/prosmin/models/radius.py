"""The radius: how large the whole error of a forecast will be, for joint regions that contain what they promise.

A forecast N(mean, scale^2) has independent coordinates, but errors of one image are large or small together: an
ellipsoid of the chi-square distribution contains far too few observations. So the size of the standardised error,

    R = root mean square over coordinates of (target - mean) / scale,

is forecast as well: log R as N(centre, spread^2), scored by its CRPS, which is proper for the law of R given the image.
Its gradient stops at mean and scale: the features learn nothing from it. It counts in the norm by which gradients are
clipped, so with clipping the weights are not those of a run without it to the bit.
"""

import math

import torch
from torch import Tensor, nn

from prosmin.scoring import gaussian_crps

HIDDEN = 256
INITIAL_SPREAD = 0.2  # of log R: a region of 90 % then reaches from 0.7 to 1.4 of the typical error
_SMALLEST = 1e-6  # R and scales below it count as it


class RadiusForecast(nn.Module):
    """From a forecast to the distribution of log R. `unit`: about the target's standard deviation."""

    def __init__(self, dim: int, *, unit: float) -> None:
        super().__init__()
        self.unit = unit
        last = nn.Linear(HIDDEN, 2)
        self.layers = nn.Sequential(nn.Linear(2 * dim, HIDDEN), nn.GELU(), last)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """mean, scale (..., K) -> centre and spread of log R (...)."""
        with torch.autocast(mean.device.type, enabled=False):
            wide = torch.promote_types(mean.dtype, torch.float32)
            known = (mean.to(wide) / self.unit, (scale.to(wide) / self.unit).clamp_min(_SMALLEST).log())
            centre, log_spread = self.layers(torch.cat(known, dim=-1).detach()).unbind(-1)
            return centre, INITIAL_SPREAD * log_spread.exp()

    def score(self, mean: Tensor, scale: Tensor, target: Tensor) -> Tensor:
        """CRPS of log R: mean, scale (V, B, K), target (G, B, K) -> (V, G, B)."""
        centre, spread = (x[:, None, :, None].expand(-1, len(target), -1, -1) for x in self(mean, scale))
        with torch.no_grad():
            observed = log_radius(mean[:, None], scale[:, None], target)
        return gaussian_crps(centre, spread, observed[..., None], validate=False)


def log_radius(mean: Tensor, scale: Tensor, target: Tensor) -> Tensor:
    """log R of a forecast and what was observed: three times (..., K) -> (...)."""
    error = (target - mean) / scale.clamp_min(_SMALLEST)
    return error.square().mean(-1).sqrt().clamp_min(_SMALLEST).log()


def region_radius(centre: Tensor, spread: Tensor, level: float) -> Tensor:
    """The R below which `level` of the observations lie: the quantile of the log-normal distribution."""
    normal = math.sqrt(2.0) * torch.erfinv(torch.tensor(2.0 * level - 1.0, dtype=torch.float64)).item()
    return (centre + normal * spread).exp()
