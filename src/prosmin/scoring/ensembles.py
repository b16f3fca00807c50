"""Scores of a forecast given by samples: unbiased U-statistics, for any distribution."""

from functools import partial

import torch
from torch import Tensor

from prosmin.scoring.arguments import check_ensemble
from prosmin.scoring.distances import (
    Distance,
    coordinate_power,
    dots,
    kernel_distance,
    median_bandwidth,
    outside_autocast,
    pairs_of,
    power_distance,
    product_dtype,
    result_dtype,
    squared_distance,
)
from prosmin.scoring.settings import check_bandwidth, check_beta, check_lam


def energy_score(
    samples: Tensor,
    target: Tensor,
    *,
    beta: float = 1.0,
    lam: float = 0.5,
    absolute: bool = False,
    validate: bool = True,
) -> Tensor:
    """Energy score by the U-statistic: samples (r, ..., d), target (..., d) -> (...).

    2 lam / r * sum_j |z_j - z|^beta  -  (1 - lam) / (r (r - 1)) * sum_{j != k} |z_j - z_k|^beta.
    lam = 1/2 is half of the energy score, in one dimension the CRPS. `absolute` takes the absolute value, as the paper
    does.
    """
    check_beta(beta)
    check_lam(lam)
    check_ensemble(samples, target, validate=validate)
    score = _ensemble_score(samples, target, partial(power_distance, beta=beta), lam=lam, exact=validate)
    return score.abs() if absolute else score


def kernel_score(
    samples: Tensor,
    target: Tensor,
    *,
    bandwidth: float | Tensor | None,
    lam: float = 0.5,
    validate: bool = True,
) -> Tensor:
    """Kernel score by the U-statistic, Gaussian kernel k: samples (r, ..., d), target (..., d) -> (...).

    (1 - lam) E k(Z, Z') - 2 lam E k(Z, z) + 3 lam - 1: at lam = 1/2 half of the squared maximum mean discrepancy, so at
    least 0 in expectation. The default bandwidth is the median distance between the targets.
    """
    check_lam(lam)
    check_ensemble(samples, target, validate=validate)
    bandwidth = resolve_bandwidth(bandwidth, target, validate=validate)
    return _ensemble_score(samples, target, partial(kernel_distance, bandwidth=bandwidth), lam=lam, exact=validate)


def resolve_bandwidth(bandwidth: float | Tensor | None, target: Tensor, *, validate: bool) -> float | Tensor:
    """The given bandwidth, or the median distance between targets (..., d)."""
    if bandwidth is not None:
        if validate or not isinstance(bandwidth, Tensor):
            check_bandwidth(float(bandwidth))
        return bandwidth
    return median_bandwidth(target, validate=validate)


def _ensemble_score(samples: Tensor, target: Tensor, distance: Distance, *, lam: float, exact: bool) -> Tensor:
    """With `exact` in float64: in float32, one far sample makes the distances of the others vanish."""
    dtype = torch.float64 if exact else product_dtype(samples, target)
    with outside_autocast(samples):
        points = samples.to(dtype).movedim(0, -2)  # (..., r, d)
        score = ustatistic(points, target.to(dtype)[..., None, :], distance=distance, lam=lam)[..., 0]
        return score.to(result_dtype(samples, target))


def ustatistic(samples: Tensor, targets: Tensor, *, distance: Distance, lam: float) -> Tensor:
    """samples (..., r, d), targets (..., G, d) -> (..., G), by inner products: no tensor of size r^2 d."""
    # Distances do not depend on the origin; with one near the samples, the inner products cancel least.
    origin = samples.detach().mean(-2, keepdim=True)
    samples, targets = samples - origin, targets - origin
    squares = samples.square().sum(-1)[..., None, :]  # (..., 1, r)
    target_squares = targets.square().sum(-1)[..., None]  # (..., G, 1)
    to_target = squared_distance(target_squares, squares, -2.0 * dots(targets, samples))  # (..., G, r)
    pairs = mean_over_pairs(samples, distance=distance)
    return 2.0 * lam * distance(to_target).mean(-1) - (1.0 - lam) * pairs[..., None]


def mean_over_pairs(samples: Tensor, *, distance: Distance) -> Tensor:
    """Mean of rho(z_j, z_k) over j != k: (..., r, d) -> (...)."""
    gram = dots(samples, samples)  # (..., r, r)
    squares = gram.diagonal(dim1=-2, dim2=-1)
    pairs = distance(squared_distance(squares[..., None, :], squares[..., :, None], -2.0 * gram))
    r = samples.shape[-2]
    return pairs.sum((-2, -1)) / (r * (r - 1))  # the diagonal is exactly 0


def coordinate_mean_over_pairs(samples: Tensor, *, beta: float) -> Tensor:
    """Mean of |z_j - z_k|^beta over j != k and over coordinates: (..., r, d) -> (...)."""
    r = samples.shape[-2]
    if beta == 1.0:
        # The i-th smallest of r samples is the larger one of i pairs and the smaller one of r - 1 - i. The order has no
        # gradient: that of sorted values is a scatter, which a GPU does not add up in a fixed order.
        place = samples.detach().argsort(dim=-2, stable=True).argsort(dim=-2)
        return 2.0 * ((2 * place - (r - 1)) * samples).sum(-2).mean(-1) / (r * (r - 1))
    first, second = pairs_of(samples, -2)
    return coordinate_power(first - second, beta).mean((-2, -1))


def coordinate_ustatistic(samples: Tensor, targets: Tensor, *, beta: float, lam: float) -> Tensor:
    """The U-statistic of the mean over coordinates of |.|^beta: (..., r, d), (..., G, d) -> (..., G)."""
    to_target = coordinate_power(samples[..., None, :, :] - targets[..., :, None, :], beta).mean((-2, -1))
    return 2.0 * lam * to_target - (1.0 - lam) * coordinate_mean_over_pairs(samples, beta=beta)[..., None]
