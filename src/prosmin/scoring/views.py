"""The training path: scores of all views of a batch against all its targets, as configured."""

from functools import partial

from torch import Tensor

from prosmin.errors import UsageError
from prosmin.scoring.arguments import check_not_empty, check_shape
from prosmin.scoring.closed import (
    Expectation,
    closed_score,
    expected_coordinate,
    expected_kernel,
    expected_norm,
    mixture_score,
)
from prosmin.scoring.distances import (
    Distance,
    kernel_distance,
    outside_autocast,
    power_distance,
    product_dtype,
    result_dtype,
)
from prosmin.scoring.ensembles import coordinate_ustatistic, resolve_bandwidth, ustatistic
from prosmin.scoring.gaussian import coordinate_within_scores, noise_count, within_scores
from prosmin.scoring.products import spreads


def view_scores(
    mean: Tensor,
    scale: Tensor,
    target: Tensor,
    *,
    rule: str,
    norm: str,
    pairs: str,
    estimator: str,
    beta: float,
    lam: float,
    samples: int,
    antithetic: bool,
    absolute: bool,
    bandwidth: float | Tensor | None,
    noise: Tensor | None,
) -> Tensor:
    """mean, scale (V, B, K), target (G, B, K), noise (V, B, S', K) -> (V, G, B); pooled pairs: (1, G, B).

    Values are not checked, so that the host never waits for the device; `check_objective` checks the settings before.
    S' is `noise_count(estimator, samples, antithetic)`; closed forms take no noise.
    """
    _check_views(mean, scale, target, noise, noise_count(estimator, samples, antithetic))
    width = resolve_bandwidth(bandwidth, target, validate=False) if rule == "kernel" else 1.0
    distance = partial(kernel_distance, bandwidth=width) if rule == "kernel" else partial(power_distance, beta=beta)
    if noise is None:
        expectation = _expectation(rule, norm, width)
        scores = _closed_scores(mean, scale, target, expectation, pairs=pairs, lam=lam)
    elif pairs == "pooled":
        if estimator != "ustat":
            raise UsageError(f"loss.estimator is {estimator} with loss.pairs pooled; allowed: ustat, closed.")
        coordinate = beta if norm == "coordinate" else None
        scores = _pooled_scores(mean, scale, target, noise, distance=distance, coordinate=coordinate, lam=lam)
    elif norm == "coordinate":
        scores = coordinate_within_scores(
            mean, scale, target, noise, beta=beta, estimator=estimator, antithetic=antithetic, lam=lam
        ).transpose(1, 2)
    else:
        scores = within_scores(
            mean, scale, target, noise, distance=distance, estimator=estimator, antithetic=antithetic, lam=lam
        ).transpose(1, 2)
    return scores.abs() if absolute else scores


def _check_views(mean: Tensor, scale: Tensor, target: Tensor, noise: Tensor | None, count: int) -> None:
    check_not_empty("mean", mean)
    check_not_empty("target", target)
    if mean.ndim != 3:
        raise UsageError(f"mean has shape {tuple(mean.shape)}; allowed: (views, batch, K).")
    check_shape("scale", scale, tuple(mean.shape), like="mean")
    check_shape("target", target, (len(target), *mean.shape[1:]), like="mean")
    if noise is None and count:
        raise UsageError(f"noise is none; allowed: shape {(*mean.shape[:2], count, mean.shape[2])}, for the samples.")
    if noise is not None:
        if not count:
            raise UsageError(f"noise has shape {tuple(noise.shape)}; allowed: none, as a closed form takes no samples.")
        check_shape("noise", noise, (*mean.shape[:2], count, mean.shape[2]), like="mean and samples")


def _expectation(rule: str, norm: str, width: float | Tensor) -> Expectation:
    if rule == "kernel":
        return partial(expected_kernel, bandwidth=width)
    return expected_coordinate if norm == "coordinate" else expected_norm


def _closed_scores(
    mean: Tensor, scale: Tensor, target: Tensor, expectation: Expectation, *, pairs: str, lam: float
) -> Tensor:
    """-> (V, G, B), or (1, G, B) for the mixture of all views."""
    dtype = result_dtype(mean, scale, target)
    with outside_autocast(mean):
        mean, scale, target = (x.to(dtype) for x in (mean, scale, target))
        if pairs == "pooled":
            return mixture_score(mean, scale, target, expectation, lam=lam)[None]
        return closed_score(mean[:, None], scale[:, None], target, expectation, lam=lam)


def _pooled_scores(
    mean: Tensor,
    scale: Tensor,
    target: Tensor,
    noise: Tensor,
    *,
    distance: Distance,
    coordinate: float | None,
    lam: float,
) -> Tensor:
    """The U-statistic over all V S samples of an image: -> (1, G, B). `coordinate`: its beta."""
    dtype = product_dtype(mean, scale, target)
    with outside_autocast(mean):
        mean, scale, noise = (x.to(dtype) for x in (mean, scale, noise))
        pool = (mean[:, :, None] + spreads(scale, noise)).transpose(0, 1).flatten(1, 2)  # (B, V S, K)
        targets = target.to(dtype).transpose(0, 1)  # (B, G, K)
        if coordinate is None:
            scores = ustatistic(pool, targets, distance=distance, lam=lam)
        else:
            scores = coordinate_ustatistic(pool, targets, beta=coordinate, lam=lam)
        return scores.mT[None].to(result_dtype(target))
