"""The forecast of the radius: on a toy whose law is known, and what it leaves alone."""

import math

import pytest
import torch
from torch import Tensor

from prosmin.evaluation.forecasts import Forecasts
from prosmin.evaluation.metrics.coverage import judge_coverage
from prosmin.models.radius import RadiusForecast, log_radius, region_radius

K = 32


def _forecast(hard: Tensor) -> tuple[Tensor, Tensor]:
    """A scale of 1 for all images, and a mean that tells the hard ones: (1, N, K)."""
    mean = torch.zeros(1, len(hard), K)
    mean[..., 0] = torch.where(hard, 1.0, -1.0)
    return mean, torch.ones(1, len(hard), K)


def _observations(hard: Tensor, random: torch.Generator) -> Tensor:
    """(1, N, K). Errors of hard images are twice as large, and vary in size from view to view."""
    size = torch.where(hard, 2.0, 1.0) * torch.exp(0.3 * torch.randn(len(hard), generator=random))
    return _forecast(hard)[0] + size[:, None] * torch.randn(len(hard), K, generator=random)


def test_log_radius_is_the_size_of_the_standardised_error():
    mean, scale, target = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 2.0]), torch.tensor([2.0, 6.0])
    expected = math.log(math.sqrt((2.0**2 + 2.0**2) / 2))
    assert log_radius(mean, scale, target).item() == pytest.approx(expected)
    assert log_radius(mean, torch.zeros(2), mean).isfinite()


def test_regions_have_the_quantiles_of_the_log_normal_distribution():
    centre, spread = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.5])
    torch.testing.assert_close(region_radius(centre, spread, 0.5), centre.exp())
    torch.testing.assert_close(region_radius(centre, spread, 0.9), (centre + 1.2815516 * spread).exp())


def test_it_learns_the_law_of_the_radius_and_then_joint_regions_hold():
    """By the chi-square distribution the joint regions of these forecasts hold far from 90 %."""
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(1)
    radius = RadiusForecast(K, unit=1.0)
    optimizer = torch.optim.Adam(radius.parameters())
    for step in range(400):
        optimizer.param_groups[0]["lr"] = 3e-3 * (1 - step / 400)
        hard = torch.rand(256, generator=random) < 0.5
        radius.score(*_forecast(hard), _observations(hard, random)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    hard = torch.arange(8000) % 2 == 0
    mean, scale = _forecast(hard)
    with torch.no_grad():
        told = radius(mean, scale)
    # Of 32 coordinates the size itself has a log spread of 1 / sqrt(2 * 32), beside the 0.3 of the toy.
    spread = math.sqrt(0.3**2 + 1 / 64)
    assert told[0][0, hard].mean().item() == pytest.approx(math.log(2.0), abs=0.06)
    assert told[0][0, ~hard].mean().item() == pytest.approx(0.0, abs=0.06)
    assert told[1].mean().item() == pytest.approx(spread, abs=0.06)
    metrics, _ = judge_coverage(Forecasts(mean, scale, _observations(hard, random)), seed=0, radius=told)
    for percent in (50, 90, 95):
        assert metrics[f"joint_coverage_{percent}_radius"] == pytest.approx(percent / 100, abs=0.05)
    assert metrics["joint_coverage_90"] < 0.6


def test_its_score_is_lowest_at_the_law_of_the_radius():
    """Proper: of normal forecasts of log R, the one with the mean and the spread of log R has the lowest mean score."""
    random = torch.Generator().manual_seed(0)
    hard = torch.zeros(20000, dtype=torch.bool)
    target = _observations(hard, random)
    mean, scale = _forecast(hard)
    log_r = log_radius(mean, scale, target)

    def score(centre: Tensor, spread: Tensor) -> float:
        radius = RadiusForecast(K, unit=1.0)
        radius.forward = lambda *_: (centre.expand(1, len(hard)), spread.expand(1, len(hard)))  # type: ignore[method-assign]
        return radius.score(mean, scale, target).mean().item()

    right = score(log_r.mean(), log_r.std())
    assert all(right < score(log_r.mean() + shift, log_r.std()) for shift in (-0.2, 0.2))
    assert all(right < score(log_r.mean(), factor * log_r.std()) for factor in (0.5, 2.0))


def test_no_gradient_reaches_mean_and_scale():
    mean, scale, target = (torch.rand(2, 4, K, requires_grad=True) for _ in range(3))
    radius = RadiusForecast(K, unit=1.0)
    score = radius.score(mean, scale, target)
    assert score.shape == (2, 2, 4)
    score.sum().backward()
    assert mean.grad is None
    assert scale.grad is None
    assert all(p.grad is not None for p in radius.parameters())
