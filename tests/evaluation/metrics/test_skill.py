"""Energy-score skill of simulated forecasts, where the answer is known."""

import math

import pytest
import torch

from prosmin.evaluation.forecasts import Forecasts
from prosmin.evaluation.metrics import skill
from prosmin.evaluation.metrics.skill import energy_scores, fit_constant_scale, judge_skill
from prosmin.scoring import gaussian_energy_score

SIZE = 256


def simulated(scales: list[float], *, pictures: int = 400, seed: int = 0) -> Forecasts:
    """Images in turn of these scales, observations drawn from their forecasts; means a scale of 2 about 0."""
    random = torch.Generator().manual_seed(seed)
    mean, noise = (torch.randn(2, pictures, SIZE, generator=random) for _ in range(2))
    own = torch.tensor(scales)[torch.arange(pictures) % len(scales)]
    scale = own[None, :, None].expand(2, -1, SIZE).contiguous()
    return Forecasts(2 * mean, scale, 2 * mean + scale * noise)


def test_the_fitted_scale_is_the_one_the_errors_were_drawn_with() -> None:
    # 200,000 errors tell their deviation to 0.16 %.
    assert fit_constant_scale(simulated([0.3])) == pytest.approx(0.3, rel=0.005)


def test_the_fitted_scale_has_the_least_score() -> None:
    known = simulated([0.2, 1.0])
    best = fit_constant_scale(known)
    at = {f: energy_scores(skill.with_constant_scale(known, f * best), seed=0).mean() for f in (0.97, 1.0, 1.03)}
    assert at[1.0] < min(at[0.97], at[1.03])


def test_a_constant_scale_has_no_skill() -> None:
    known, test = simulated([0.2, 1.0], seed=1), simulated([0.2, 1.0])
    constant = skill.with_constant_scale(test, fit_constant_scale(known))
    metrics, scale = judge_skill(constant, known, seed=0)
    assert metrics["energy_skill"] == metrics["energy_skill_low"] == metrics["energy_skill_high"] == 0
    assert scale == fit_constant_scale(known)
    # One that was not fitted is as good, where all errors are alike.
    assert judge_skill(simulated([0.3]), simulated([0.3], seed=1), seed=0)[0]["energy_skill"] == pytest.approx(
        0, abs=1e-4
    )


def test_knowing_each_picture_s_scale_has_the_skill_that_theory_gives() -> None:
    """In many dimensions the score of scale s at errors of deviation d is sqrt(K) (sqrt(d^2 + s^2) - s / sqrt(2))."""
    metrics, _ = judge_skill(simulated([1.0, 3.0]), simulated([1.0, 3.0], seed=1), seed=0)
    grid = torch.linspace(0.5, 4, 10_001)
    constant = ((1 + grid**2).sqrt() / 2 + (9 + grid**2).sqrt() / 2 - grid / math.sqrt(2)).min().item()
    expected = 1 - (1 + 3) / 2 / math.sqrt(2) / constant
    assert expected > 0.05
    # An image's error varies by 1 / sqrt(2 K) = 4 %, the mean of 800 by 0.2 %.
    assert metrics["energy_skill"] == pytest.approx(expected, abs=0.005)
    assert metrics["energy_skill_low"] < expected < metrics["energy_skill_high"]
    # Means of deviation 2 and errors of root mean square d: the climatology has deviation sqrt(4 + d^2).
    climatology = math.sqrt(2) * math.sqrt(4 + 5) / 2  # to first order, with mean d^2 = 5
    assert metrics["energy_skill_climatology"] == pytest.approx(1 - math.sqrt(2) / climatology, abs=0.02)


def test_scales_that_mislead_have_less_than_none() -> None:
    test = simulated([1.0, 3.0])
    metrics, _ = judge_skill(test._replace(scale=4 - test.scale), simulated([1.0, 3.0], seed=1), seed=0)
    assert metrics["energy_skill_high"] < 0


def test_scores_are_the_scoring_rule_s_and_come_in_any_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    test = simulated([0.5, 1.0], pictures=30)
    whole = energy_scores(test, seed=0)
    random = torch.Generator().manual_seed(0)
    slow = gaussian_energy_score(*test, samples=400, generator=random).double().mean(0)
    torch.testing.assert_close(whole, slow, rtol=0.01, atol=0)  # 8 samples in 256 dimensions, mirrored
    monkeypatch.setattr(skill, "_VALUES", 8 * 2 * SIZE * 7)  # seven images at a time
    torch.testing.assert_close(energy_scores(test, seed=0), whole)


def test_scales_that_differ_by_coordinate_alone_are_no_skill_of_a_picture() -> None:
    random = torch.Generator().manual_seed(2)
    scale = torch.randn(SIZE, generator=random).mul(1.5).exp().expand(2, 800, SIZE)
    mean, noise = (torch.randn(2, 800, SIZE, generator=random) for _ in range(2))
    whole = Forecasts(mean, scale, mean + scale * noise)
    test, known = (Forecasts(*(x[:, part] for x in whole)) for part in (slice(400), slice(400, 800)))
    metrics, _ = judge_skill(test, known, seed=0)
    assert metrics["energy_skill"] > 0.01
    # Each of the 256 scales is known to 2.5 % from 800 errors, which costs their square.
    assert metrics["energy_skill_coordinates"] == pytest.approx(0, abs=0.002)
    # Where images differ, a scale of its own for each of them has the same skill against both.
    metrics, _ = judge_skill(simulated([1.0, 3.0]), simulated([1.0, 3.0], seed=1), seed=0)
    assert metrics["energy_skill_coordinates"] == pytest.approx(metrics["energy_skill"], abs=0.005)
