"""Scores of a Gaussian forecast with independent coordinates, estimated from a few samples with little noise.

For such a forecast Z - Z' is sqrt(2) scale * eps, so the pair term needs no pairs: E rho(Z, Z') =
E rho(sqrt(2) scale * eps), estimated with the eps of the first term (common random numbers). Antithetic samples use
every eps with both signs.
"""

from functools import partial

import torch
from torch import Tensor

from prosmin.errors import UsageError
from prosmin.scoring.arguments import check_finite, check_forecast, check_shape
from prosmin.scoring.distances import (
    Distance,
    coordinate_power,
    outside_autocast,
    power_distance,
    product_dtype,
    result_dtype,
    squared_distance,
)
from prosmin.scoring.ensembles import coordinate_mean_over_pairs, mean_over_pairs
from prosmin.scoring.products import inner_products, offsets, spreads
from prosmin.scoring.settings import check_beta, check_lam, check_samples


def noise_count(estimator: str, samples: int, antithetic: bool) -> int:
    """The number of standard normal vectors that an estimator needs for `samples` samples: S' of the documentation."""
    if estimator == "closed":
        return 0
    return samples // 2 if estimator == "paired" and antithetic else samples


def gaussian_energy_score(
    mean: Tensor,
    scale: Tensor,
    target: Tensor,
    *,
    beta: float = 1.0,
    lam: float = 0.5,
    samples: int = 4,
    antithetic: bool = True,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
    validate: bool = True,
) -> Tensor:
    """Energy score of N(mean, scale^2), the low-variance estimator: three times (..., d) -> (...).

    2 lam / S * sum_j |mean + scale eps_j - target|^beta
      - (1 - lam) 2^(beta/2) / S * sum_j |scale eps_j|^beta, unbiased for any S.
    `noise` (S', ..., d) replaces the random draws; S' = S / 2 for antithetic samples, which mirror it.
    """
    check_beta(beta)
    check_lam(lam)
    check_samples(samples, antithetic=antithetic)
    check_forecast(mean, scale, target, validate=validate)
    shape = (noise_count("paired", samples, antithetic), *mean.shape)
    if noise is None:
        dtype = result_dtype(mean, scale, target)
        device = generator.device if generator is not None else mean.device
        noise = torch.randn(shape, generator=generator, device=device, dtype=dtype).to(mean.device)
    elif generator is not None:
        raise UsageError("Both noise and generator were given; give one of them.")
    check_shape("noise", noise, shape, like="mean and samples")
    if validate:
        check_finite("noise", noise)
    d = mean.shape[-1]
    eps = noise.movedim(0, -2).reshape(1, -1, shape[0], d)
    score = within_scores(
        *(mean.reshape(1, -1, d), scale.reshape(1, -1, d), target.reshape(1, -1, d)),
        eps,
        distance=partial(power_distance, beta=beta),
        estimator="paired",
        antithetic=antithetic,
        lam=lam,
    )
    return score.reshape(mean.shape[:-1])


def within_scores(
    mean: Tensor,
    scale: Tensor,
    target: Tensor,
    noise: Tensor,
    *,
    distance: Distance,
    estimator: str,
    antithetic: bool,
    lam: float,
) -> Tensor:
    """Each view's forecast against each target: (V, B, K) twice, (G, B, K), (V, B, S', K) -> (V, B, G)."""
    dtype = product_dtype(mean, scale, target)
    with outside_autocast(mean):
        inputs = tuple(x.to(dtype) for x in (mean, scale, target, noise))
        offset, spread, cross = inner_products(*inputs)  # (V, B, G), (V, B, S'), (V, B, G, S')
        offset, spread_row = offset[..., None], spread[:, :, None]
        to_target = distance(squared_distance(offset, spread_row, 2.0 * cross)).mean(-1)
        if estimator == "ustat":
            pairs = mean_over_pairs(spreads(inputs[1], inputs[3]), distance=distance)
        else:
            pairs = distance(2.0 * spread).mean(-1)
            if antithetic:
                mirrored = distance(squared_distance(offset, spread_row, -2.0 * cross)).mean(-1)
                to_target = (to_target + mirrored) / 2.0
        score = 2.0 * lam * to_target - (1.0 - lam) * pairs[..., None]
        return score.to(result_dtype(mean, scale, target))


def coordinate_within_scores(
    mean: Tensor,
    scale: Tensor,
    target: Tensor,
    noise: Tensor,
    *,
    beta: float,
    estimator: str,
    antithetic: bool,
    lam: float,
) -> Tensor:
    """The same for the mean over coordinates of |.|^beta. Needs memory for all V B G S' K differences."""
    dtype = result_dtype(mean, scale, target)
    with outside_autocast(mean):
        mean, scale, target, noise = (x.to(dtype) for x in (mean, scale, target, noise))
        offset, spread = offsets(mean, target)[..., None, :], spreads(scale, noise)  # (V, B, G, 1, K), (V, B, S', K)
        to_target = coordinate_power(offset + spread[:, :, None], beta).mean((-2, -1))
        if estimator == "ustat":
            pairs = coordinate_mean_over_pairs(spread, beta=beta)
        else:
            pairs = 2.0 ** (beta / 2) * coordinate_power(spread, beta).mean((-2, -1))
            if antithetic:
                to_target = (to_target + coordinate_power(offset - spread[:, :, None], beta).mean((-2, -1))) / 2.0
        return 2.0 * lam * to_target - (1.0 - lam) * pairs[..., None]
