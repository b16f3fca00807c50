"""Calibration of the forecasts N(mean, scale^2): coverage of the observations, and the PIT.

Shapes: mean, scale and observed are (V, N, K): V forecasts of each of N images with K coordinates.
"""

from typing import Any

import torch
from torch import Tensor

from prosmin.evaluation.forecasts import Forecasts
from prosmin.evaluation.metrics.bootstrap import resampled_means, with_interval
from prosmin.models.radius import log_radius, region_radius

LEVELS = (0.5, 0.9, 0.95)
CURVE = tuple(i / 20 for i in range(1, 20))  # levels of the curve
BINS = 20  # of the PIT histogram
_SMALLEST_SCALE = 1e-12  # avoids division by zero for a coordinate with scale 0


def standardised(forecasts: Forecasts) -> Tensor:
    """(observed - mean) / scale, standard normal if the forecasts are right: (V, N, K)."""
    mean, scale, observed = forecasts
    return (observed - mean) / scale.clamp_min(_SMALLEST_SCALE)


def coordinate_pit(errors: Tensor) -> Tensor:
    """The forecast distribution function at the observation, uniform if the forecasts are right: (V, N, K)."""
    return torch.special.ndtr(errors)


def joint_pit(errors: Tensor) -> Tensor:
    """The chi-square distribution function, K degrees of freedom, of the squared length: (V, N, K) -> (V, N)."""
    half = torch.tensor(errors.shape[-1] / 2, dtype=torch.float64, device=errors.device)
    return torch.special.gammainc(half, errors.double().square().sum(-1) / 2)


def reachable(errors: Tensor, level: float) -> float:
    """The share within the ellipsoid of `level` if every scale were right and errors were correlated as they are here.

    Squared lengths of errors with covariance R, of K coordinates with variance 1, have mean K and variance 2 tr(R^2):
    by Satterthwaite (1946) a gamma distribution with these. R is that of the errors, each coordinate scaled to
    variance 1; tr(R^2) is the mean squared product of the errors of two images, without computing R: (V, N, K).
    """
    each = errors.double() / errors.double().square().mean((0, 1)).sqrt().clamp_min(_SMALLEST_SCALE)
    pictures, size = each.shape[1:]
    products = torch.stack([(view @ view.T).square() for view in each]).mean(0)  # (N, N)
    together = (products.sum() - products.diagonal().sum()) / (pictures * (pictures - 1))
    shape = size**2 / (2 * together.clamp_min(size))
    radius = _chi_square_quantile(level, size)
    return torch.special.gammainc(shape, shape * radius / size).item()


def _chi_square_quantile(level: float, degrees: int) -> float:
    """By bisection: torch has the distribution function only."""
    half, low, high = torch.tensor(degrees / 2, dtype=torch.float64), 0.0, 10.0 * degrees + 100.0
    for _ in range(80):
        middle = (low + high) / 2
        below = torch.special.gammainc(half, torch.tensor(middle / 2, dtype=torch.float64)).item() < level
        low, high = (middle, high) if below else (low, middle)
    return (low + high) / 2


def uniform_distance(values: Tensor) -> float:
    """Kolmogorov-Smirnov: the largest gap between the empirical distribution function and the uniform one."""
    ordered = values.flatten().double().sort().values
    steps = torch.arange(len(ordered) + 1, dtype=torch.float64, device=ordered.device) / len(ordered)
    return torch.maximum(steps[1:] - ordered, ordered - steps[:-1]).max().item()


def judge_coverage(
    forecasts: Forecasts, *, seed: int, radius: tuple[Tensor, Tensor] | None = None
) -> tuple[dict[str, float], dict[str, Any]]:
    """The metrics, and the curves of a figure. `radius`: centre and spread of log R (V, N), if the encoder has them.

    coverage_P: share of the coordinates within their central interval of P %, with a 95 % interval over images.
    joint_coverage_P: share of the observations within the ellipsoid that contains P % of the forecast.
    joint_coverage_P_radius: share of the observations within the region of P % by the forecast of the radius.
    joint_coverage_P_reachable: joint_coverage_P if every coordinate's scale were right; correlated errors lower it.
    squared_error_ratio: mean of ((observed - mean) / scale)^2; 1 if the scale is right, 4 if it is half of that.
    pit_distance: the largest gap between the PIT's distribution function and the uniform one.
    """
    errors = standardised(forecasts)
    single, joint = coordinate_pit(errors), joint_pit(errors)
    from_middle = (2 * single - 1).abs()  # at most p within the central interval of p
    metrics: dict[str, float] = {}
    shares = torch.stack([(from_middle <= level).double().mean((0, 2)) for level in LEVELS], dim=1)  # (N, levels)
    draws = resampled_means(shares, seed=seed, purpose="coverage")
    for i, level in enumerate(LEVELS):
        metrics |= with_interval(f"coverage_{100 * level:.0f}", shares[:, i].mean().item(), draws[:, i])
    metrics |= {f"joint_coverage_{100 * level:.0f}": (joint <= level).double().mean().item() for level in LEVELS}
    if radius is not None:
        observed = log_radius(*forecasts).exp()
        metrics |= {
            f"joint_coverage_{100 * level:.0f}_radius": (observed <= region_radius(*radius, level))
            .double()
            .mean()
            .item()
            for level in LEVELS
        }
    if len(shares) > 1:
        metrics |= {f"joint_coverage_{100 * level:.0f}_reachable": reachable(errors, level) for level in LEVELS}
    metrics["squared_error_ratio"] = errors.double().square().mean().item()
    metrics["pit_distance"] = uniform_distance(single)
    counts = torch.histc(single.float(), bins=BINS, min=0.0, max=1.0)
    curves = {
        "coverage": {
            "nominal": list(CURVE),
            "coordinates": [(from_middle <= level).double().mean().item() for level in CURVE],
            "joint": [(joint <= level).double().mean().item() for level in CURVE],
        },
        "pit": {
            "edges": [i / BINS for i in range(BINS + 1)],
            "share": (counts.double() / counts.double().sum()).tolist(),
        },
    }
    return metrics, curves
