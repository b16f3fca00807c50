"""Skill of a scale per image: the energy score compared with that of simpler forecasts."""

import math

import torch
from torch import Tensor

from prosmin import randomness
from prosmin.evaluation.forecasts import Forecasts
from prosmin.evaluation.metrics.bootstrap import resampled_means, with_interval
from prosmin.scoring import approximate_energy_score, gaussian_energy_score

SAMPLES = 8
_VALUES = 2**24  # numbers in memory at once for the sampled score
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
_SMALLEST_SCALE = 1e-12  # of a coordinate without error
_STEPS = 24  # of the golden section: 0.618^24 is 1e-5 of the range


def energy_scores(forecasts: Forecasts, *, seed: int) -> Tensor:
    """The score of each image, the mean over its views: (V, N, K) -> (N,).

    The noise depends on the image's position: forecasts of the same images are compared under the same noise.
    """
    views, pictures, size = forecasts.mean.shape
    key = randomness.key(seed, 0, "energy skill")
    parts, step = [], max(1, _VALUES // (SAMPLES * views * size))
    for places in torch.arange(pictures, device=forecasts.mean.device).split(step):
        mean, scale, observed = (x[:, places] for x in forecasts)
        noise = randomness.normal(key, places, (SAMPLES // 2, views, size)).movedim(0, 2)  # (S / 2, V, n, K)
        score = gaussian_energy_score(mean, scale, observed, samples=SAMPLES, noise=noise, validate=False)
        parts.append(score.double().mean(0))
    return torch.cat(parts)


def fit_constant_scale(forecasts: Forecasts) -> float:
    """The one scale that, with these means, has the least energy score."""
    return _fit_factor(forecasts, torch.ones_like(forecasts.scale[:1, :1]))


def fit_coordinate_scales(forecasts: Forecasts) -> Tensor:
    """A scale for each coordinate, the same for all images: root mean square errors times one factor: (1, 1, K)."""
    error = forecasts.observed - forecasts.mean
    own = error.square().mean((0, 1), keepdim=True).sqrt().clamp_min(_SMALLEST_SCALE)  # (1, 1, K)
    return _fit_factor(forecasts, own) * own


def _fit_factor(forecasts: Forecasts, shape: Tensor) -> float:
    """The factor of scales (1, 1, K) that, with these means, has the least energy score.

    E|D + s eps| is convex in s and the pair term is linear: there is one minimum, found by golden section. It lies
    between the smallest and the largest root mean square error of an image.
    """
    error = forecasts.observed - forecasts.mean

    def score(factor: float) -> float:
        same = (factor * shape).expand_as(error)
        return approximate_energy_score(torch.zeros_like(error), same, error, validate=False).double().mean().item()

    low, high = 0.0, 2.0 * (error / shape).square().mean(-1).sqrt().max().item()
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = score(left), score(right)
    for _ in range(_STEPS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = score(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = score(right)
    return (low + high) / 2.0


def with_constant_scale(forecasts: Forecasts, scale: float | Tensor) -> Forecasts:
    """The same means with the same scale, or scales (1, 1, K), for all images."""
    return forecasts._replace(scale=torch.as_tensor(scale).to(forecasts.scale).expand_as(forecasts.scale))


def climatology(forecasts: Forecasts, known: Forecasts) -> Forecasts:
    """A forecast that ignores the image: the mean and the standard deviation of the observations of other images."""
    seen = known.observed.flatten(0, 1)
    spread = seen.std(0, correction=0)
    return forecasts._replace(mean=seen.mean(0).expand_as(forecasts.mean), scale=spread.expand_as(forecasts.scale))


def judge_skill(forecasts: Forecasts, known: Forecasts, *, seed: int) -> tuple[dict[str, float], float]:
    """The metrics with 95 % intervals over images, and the constant scale. Reference forecasts are fitted on `known`.

    energy_skill: 1 - score / score of the same means with one constant scale.
    energy_skill_coordinates: 1 - score / score of the same means with a constant scale for each coordinate.
    energy_skill_climatology: 1 - score / score of a forecast that ignores the image.
    Above 0 the forecast is better than the reference; 1 is perfect.
    """
    scale = fit_constant_scale(known)
    rivals = {
        "energy_skill": with_constant_scale(forecasts, scale),
        "energy_skill_coordinates": with_constant_scale(forecasts, fit_coordinate_scales(known)),
        "energy_skill_climatology": climatology(forecasts, known),
    }
    scores = torch.stack([energy_scores(f, seed=seed) for f in (forecasts, *rivals.values())], dim=1)  # (N, 4)
    draws, means = resampled_means(scores, seed=seed, purpose="energy skill"), scores.mean(0)
    metrics = {"energy_score": means[0].item()}
    for i, name in enumerate(rivals, start=1):
        value = (1 - means[0] / means[i]).item()
        metrics |= with_interval(name, value, 1 - draws[:, 0] / draws[:, i])
    return metrics, scale
