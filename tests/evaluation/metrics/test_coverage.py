"""Coverage and PIT of simulated Gaussians, where the answer is known."""

import itertools
import math

import pytest
import torch
from scipy import stats

from prosmin.evaluation.forecasts import Forecasts
from prosmin.evaluation.metrics import coverage
from prosmin.evaluation.metrics.coverage import judge_coverage

PICTURES, SIZE = 400, 50
VALUES = 2 * PICTURES * SIZE


def simulated(*, seed: int = 0, size: int = SIZE) -> Forecasts:
    """Observations drawn from the forecasts."""
    random = torch.Generator().manual_seed(seed)
    mean, noise = (torch.randn(2, PICTURES, size, generator=random) for _ in range(2))
    scale = 0.1 + torch.rand(2, PICTURES, size, generator=random)
    return Forecasts(mean, scale, mean + scale * noise)


def error(share: float, count: int) -> float:
    """Four binomial standard errors."""
    return 4 * math.sqrt(share * (1 - share) / count)


def test_calibrated_forecasts_cover_what_they_promise() -> None:
    metrics, curves = judge_coverage(simulated(), seed=0)
    for percent in (50, 90, 95):
        level = percent / 100
        assert metrics[f"coverage_{percent}"] == pytest.approx(level, abs=error(level, VALUES))
        assert metrics[f"joint_coverage_{percent}"] == pytest.approx(level, abs=error(level, 2 * PICTURES))
        assert metrics[f"coverage_{percent}_low"] < metrics[f"coverage_{percent}"] < metrics[f"coverage_{percent}_high"]
    assert metrics["squared_error_ratio"] == pytest.approx(1, abs=4 * math.sqrt(2 / VALUES))
    assert metrics["pit_distance"] < 1.95 / math.sqrt(VALUES)  # exceeded by one calibrated sample in a thousand
    assert curves["pit"]["share"] == pytest.approx([0.05] * 20, abs=error(0.05, VALUES))
    assert curves["coverage"]["coordinates"] == pytest.approx(curves["coverage"]["nominal"], abs=error(0.5, VALUES))
    assert curves["coverage"]["joint"] == pytest.approx(curves["coverage"]["nominal"], abs=error(0.5, 2 * PICTURES))


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_wrong_scale_has_its_known_coverage(factor: float) -> None:
    right = simulated()
    metrics, curves = judge_coverage(right._replace(scale=factor * right.scale), seed=0)
    for percent in (50, 90, 95):
        quantile = stats.norm.ppf(0.5 + percent / 200)
        expected = 2 * stats.norm.cdf(factor * quantile) - 1  # at half the scale 26, 59 and 67 %
        assert metrics[f"coverage_{percent}"] == pytest.approx(expected, abs=error(expected, VALUES))
        assert metrics[f"joint_coverage_{percent}"] == pytest.approx(float(factor > 1), abs=1e-3)
    assert metrics["squared_error_ratio"] == pytest.approx(factor**-2, abs=4 * math.sqrt(2 / VALUES) * factor**-2)
    share = curves["pit"]["share"]
    assert (share[0] + share[-1] > 0.2) == (factor < 1)  # too narrow: a U; too wide: a hill
    gap = max(abs(stats.norm.cdf(q) - stats.norm.cdf(factor * q)) for q in torch.linspace(-4, 4, 2001).tolist())
    assert metrics["pit_distance"] == pytest.approx(gap, abs=1.95 / math.sqrt(VALUES))


def test_a_wrong_mean_leans_the_pit() -> None:
    right = simulated()
    share = judge_coverage(right._replace(mean=right.mean - right.scale), seed=0)[1]["pit"]["share"]
    assert all(low < high for low, high in itertools.pairwise(share))


def test_the_joint_coverage_sees_dependence_that_coordinates_do_not() -> None:
    right = simulated()
    together = torch.randn(2, PICTURES, 1, generator=torch.Generator().manual_seed(5))
    metrics, _ = judge_coverage(right._replace(observed=right.mean + right.scale * together), seed=0)
    # The coordinates of an image move as one: 800 draws, not 40,000.
    assert metrics["coverage_90"] == pytest.approx(0.9, abs=error(0.9, 2 * PICTURES))
    # |e|^2 = K x^2 of one normal x: below the quantile q of chi-square with K degrees where |x| < sqrt(q / K).
    for percent in (50, 90, 95):
        expected = 2 * stats.norm.cdf(math.sqrt(stats.chi2.ppf(percent / 100, SIZE) / SIZE)) - 1
        assert metrics[f"joint_coverage_{percent}"] == pytest.approx(expected, abs=error(expected, 2 * PICTURES))
    # The interval knows that an image is one observation.
    assert metrics["coverage_90_high"] - metrics["coverage_90_low"] > error(0.9, 2 * PICTURES) / 2


def test_functions_agree_with_scipy() -> None:
    errors = torch.randn(3, 7, 1024, generator=torch.Generator().manual_seed(0)).double()
    expected = stats.chi2.cdf(errors.square().sum(-1).numpy(), 1024)
    torch.testing.assert_close(coverage.joint_pit(errors), torch.from_numpy(expected), atol=1e-9, rtol=0)
    values = torch.rand(500, generator=torch.Generator().manual_seed(1)).double() ** 1.2
    assert coverage.uniform_distance(values) == pytest.approx(stats.kstest(values.numpy(), "uniform").statistic)


def test_a_coordinate_without_spread_is_missed_and_nothing_is_nan() -> None:
    right = simulated()
    scale = right.scale.clone()
    scale[..., 0] = 0.0
    metrics, _ = judge_coverage(right._replace(scale=scale), seed=0)
    assert metrics["coverage_95"] == pytest.approx(0.95 * (SIZE - 1) / SIZE, abs=error(0.95, VALUES))
    assert all(math.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("rank", [8, 20])
def test_what_ellipsoids_could_reach_follows_from_how_errors_go_together(rank: int) -> None:
    """Errors within r directions of K, each coordinate N(0, 1): no scale can be blamed for what the ellipsoids miss."""
    random = torch.Generator().manual_seed(rank)
    directions = torch.nn.functional.normalize(torch.randn(SIZE, rank, generator=random), dim=1)
    errors = torch.randn(2, PICTURES, rank, generator=random) @ directions.T
    right = simulated()
    metrics, _ = judge_coverage(right._replace(observed=right.mean + right.scale * errors), seed=0)
    for percent in (50, 90, 95):
        could = metrics[f"joint_coverage_{percent}_reachable"]
        # The gamma distribution has the mean and the variance of the squared length alone.
        assert metrics[f"joint_coverage_{percent}"] == pytest.approx(could, abs=error(could, 2 * PICTURES) + 0.01)
    assert metrics["joint_coverage_90_reachable"] < 0.85
    # Scales of half the size miss more, and could hold as much as before.
    narrow, _ = judge_coverage(
        right._replace(scale=right.scale / 2, observed=right.mean + right.scale * errors), seed=0
    )
    assert narrow["joint_coverage_90"] < 0.1
    assert narrow["joint_coverage_90_reachable"] == pytest.approx(metrics["joint_coverage_90_reachable"], abs=1e-6)


def test_independent_errors_can_reach_their_level() -> None:
    metrics, _ = judge_coverage(simulated(), seed=0)
    for percent in (50, 90, 95):
        assert metrics[f"joint_coverage_{percent}_reachable"] == pytest.approx(percent / 100, abs=0.015)


def test_what_docs_say_a_bottleneck_allows() -> None:
    """Errors with 256 equal directions: (K / 256) chi-square with 256 degrees, against that with K."""
    assert stats.chi2.cdf(stats.chi2.ppf(0.9, 2048) * 256 / 2048, 256) == pytest.approx(0.684, abs=5e-4)
