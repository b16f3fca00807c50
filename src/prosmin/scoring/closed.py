"""Scores of a Gaussian forecast with independent coordinates in closed form: no samples, no noise.

A rule is the expectation of its distance, rho(offset, scale) = E rho(N(offset, scale^2)): once for mean - target, once
for the difference of two draws, whose mean is 0 and whose scale is sqrt(2) that of the forecast.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from prosmin.scoring.arguments import check_forecast
from prosmin.scoring.distances import FLOOR, outside_autocast, pairs_of, power_distance, result_dtype
from prosmin.scoring.ensembles import resolve_bandwidth
from prosmin.scoring.settings import check_lam

Expectation = Callable[[Tensor, Tensor], Tensor]  # offset, scale (..., d) -> (...)

CERTAIN = 40.0  # standard deviations from 0 beyond which the kink of |.| has no effect, also in float64


def gaussian_crps(mean: Tensor, scale: Tensor, target: Tensor, *, lam: float = 0.5, validate: bool = True) -> Tensor:
    """CRPS of N(mean, scale^2), mean over coordinates: three times (..., d) -> (...).

    2 lam E|Z - x| - (1 - lam) E|Z - Z'|, with D = mean - x, t = D / scale:
    E|Z - x| = D (2 Phi(t) - 1) + 2 scale phi(t), E|Z - Z'| = 2 scale / sqrt(pi). lam = 1/2 is the CRPS.
    """
    return _closed(mean, scale, target, expected_coordinate, lam=lam, validate=validate)


def gaussian_kernel_score(
    mean: Tensor,
    scale: Tensor,
    target: Tensor,
    *,
    bandwidth: float | Tensor | None,
    lam: float = 0.5,
    validate: bool = True,
) -> Tensor:
    """Kernel score of N(mean, scale^2), Gaussian kernel of width h: three times (..., d) -> (...).

    E k(Z, z) = prod_i h / sqrt(h^2 + scale_i^2) exp(-D_i^2 / (2 (h^2 + scale_i^2))); for E k(Z, Z'), D = 0
    and 2 scale^2.
    """
    check_forecast(mean, scale, target, validate=validate)
    bandwidth = resolve_bandwidth(bandwidth, target, validate=validate)
    return _closed(mean, scale, target, partial(expected_kernel, bandwidth=bandwidth), lam=lam, validate=validate)


def approximate_energy_score(
    mean: Tensor, scale: Tensor, target: Tensor, *, lam: float = 0.5, validate: bool = True
) -> Tensor:
    """Euclidean energy score of N(mean, scale^2), beta = 1, to second order: three times (..., d) -> (...).

    E|X| = sqrt(m) (1 - v / (8 m^2)) with m and v the mean and the variance of |X|^2. Exact to 1e-5 of the distance
    from d = 64 on if scales are similar; off by a few per cent if a few coordinates have all of the spread.
    """
    return _closed(mean, scale, target, expected_norm, lam=lam, validate=validate)


def unexplained(scale: Tensor) -> Tensor:
    """Expected energy score (beta 1) of N(mean, scale^2) if it is right, over that of N(0, I): (..., d) -> (...).

    E|scale eps| / E|eps|: 0 for a certain forecast, 1 for one as wide as N(0, I), the climatology of whitened targets.
    The mean over forecasts that are right is 1 - their skill against climatology.
    """
    dtype = result_dtype(scale)
    with outside_autocast(scale):
        scale = scale.to(dtype)
        zero = torch.zeros_like(scale)
        return expected_norm(zero, scale) / expected_norm(zero, torch.ones_like(scale))


def gaussian_mixture_crps(
    mean: Tensor, scale: Tensor, target: Tensor, *, lam: float = 0.5, validate: bool = True
) -> Tensor:
    """CRPS of an equal mixture of V Gaussians, mean over coordinates.

    mean, scale (V, ..., d), target (..., d) -> (...); lam = 1/2 is the CRPS.
    """
    check_lam(lam)
    check_forecast(mean, scale, target, validate=validate, mixture=True)
    dtype = result_dtype(mean, scale, target)
    with outside_autocast(mean):
        mean, scale, target = (x.to(dtype) for x in (mean, scale, target))
        return mixture_score(mean, scale, target[None], expected_coordinate, lam=lam)[0]


def _closed(
    mean: Tensor, scale: Tensor, target: Tensor, expectation: Expectation, *, lam: float, validate: bool
) -> Tensor:
    check_lam(lam)
    check_forecast(mean, scale, target, validate=validate)
    dtype = result_dtype(mean, scale, target)
    with outside_autocast(mean):
        mean, scale, target = (x.to(dtype) for x in (mean, scale, target))
        return closed_score(mean, scale, target, expectation, lam=lam)


def closed_score(mean: Tensor, scale: Tensor, target: Tensor, expectation: Expectation, *, lam: float) -> Tensor:
    """mean and scale (..., d), and a target that may have more leading dimensions: -> the target's (...)."""
    pairs = expectation(torch.zeros_like(scale), math.sqrt(2.0) * scale)
    return 2.0 * lam * expectation(mean - target, scale) - (1.0 - lam) * pairs


def mixture_score(mean: Tensor, scale: Tensor, target: Tensor, expectation: Expectation, *, lam: float) -> Tensor:
    """One mixture of V views against every target: mean, scale (V, ..., d), target (G, ..., d) -> (G, ...).

    Needs memory for V (V - 1) / 2 differences of views: a pair of views counts twice, a view with itself once.
    """
    V = len(mean)
    to_target = expectation(mean - target[:, None], scale).mean(1)  # (G, V, ...) -> (G, ...)
    (mean_v, mean_w), (scale_v, scale_w) = pairs_of(mean, 0), pairs_of(scale, 0)
    joint = power_distance(scale_v.square() + scale_w.square(), 1.0)  # scale of the difference of two views' draws
    between = expectation(mean_v - mean_w, joint).sum(0)
    within = expectation(torch.zeros_like(scale), math.sqrt(2.0) * scale).sum(0)
    return 2.0 * lam * to_target - (1.0 - lam) * (within + 2.0 * between) / V**2


def expected_coordinate(offset: Tensor, scale: Tensor) -> Tensor:
    """Mean over coordinates of E|N(offset, scale^2)|."""
    # Where the kink is 40 scales away, |offset| is exact. A floor there, instead of a division by a scale near 0,
    # keeps infinities out of the backward pass; scale 0 needs no special case.
    floor = (offset.detach().abs() / CERTAIN).clamp(min=FLOOR)
    t = offset / torch.maximum(scale, floor)
    density = torch.exp(t.square() / -2.0) / math.sqrt(2.0 * math.pi)
    return (offset * torch.erf(t / math.sqrt(2.0)) + 2.0 * scale * density).mean(-1)


def expected_norm(offset: Tensor, scale: Tensor) -> Tensor:
    """E|N(offset, scale^2)|, to second order."""
    far, wide = offset.square(), scale.square()
    mean = (far + wide).sum(-1)
    variance = (2.0 * wide.square() + 4.0 * far * wide).sum(-1)
    safe = torch.where(mean <= FLOOR, 1.0, mean)
    return power_distance(mean, 1.0) * (1.0 - variance / safe / safe / 8.0)


def expected_kernel(offset: Tensor, scale: Tensor, *, bandwidth: float | Tensor) -> Tensor:
    """E[1 - k] for the Gaussian kernel."""
    wide, width = scale.square(), bandwidth**2
    log_kernel = torch.log1p(wide / width) + offset.square() / (width + wide)
    return -torch.expm1(log_kernel.sum(-1) / -2.0)
