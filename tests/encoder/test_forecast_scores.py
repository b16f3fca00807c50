"""OOD scores of the forecasts: values computed by hand, and moments of the mixture they describe."""

import itertools
import math

import pytest
import torch

from prosmin import randomness
from prosmin.encoder import detectors
from prosmin.encoder.detectors import SCORES, cross_view_energy, mean_log_scale, standardised_error, total_variance
from prosmin.errors import ProsminError
from prosmin.evaluation.metrics.ranking import ood_metrics
from prosmin.scoring import gaussian_energy_score


def forecasts(size: int, *, views: int = 3, dim: int = 16, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(views, size, dim, generator=random), 0.5 + torch.rand(views, size, dim, generator=random)


def test_mean_log_scale_by_hand() -> None:
    scale = torch.tensor([[[1.0, math.e], [1.0, 1.0]], [[math.e, math.e**2], [0.5, 2.0]]])  # (2 views, 2 images, 2)
    torch.testing.assert_close(mean_log_scale(scale), torch.tensor([1.0, 0.0]))
    assert bool(torch.isfinite(mean_log_scale(torch.zeros(2, 3, 4))).all())


def test_total_variance_is_that_of_the_mixture() -> None:
    mean, scale = forecasts(2)
    noise = torch.randn(20_000, *mean.shape, generator=torch.Generator().manual_seed(1))
    draws = (mean + scale * noise).flatten(0, 1)  # (draws of all views, 2, K)
    expected = draws.var(dim=0).mean(dim=1)
    # The relative error of a variance from 60,000 draws is 0.6 %, and sixteen are averaged.
    torch.testing.assert_close(total_variance(mean, scale), expected, rtol=0.01, atol=0)


def test_cross_view_energy_without_spread_is_half_of_twice_the_distance() -> None:
    # A forecast without spread scores 2 lam |mean - other|, the distance; views 3, 4 and 5 apart average 4.
    points = torch.tensor([[0.0, 0.0], [3.0, 0.0], [3.0, 4.0]])[:, None]  # (3, 1, 2)
    got = cross_view_energy(points, torch.zeros(3, 1, 2))
    torch.testing.assert_close(got, torch.tensor([4.0]))


def test_cross_view_energy_agrees_with_its_expectation() -> None:
    # Equal means, one scale s: E|s eps| - E|s (eps - eps')| / 2 = s E|eps| (1 - 1/sqrt 2), |eps| a chi.
    mean, scale = torch.zeros(2, 1, 16), torch.full((2, 1, 16), 0.3)
    chi = math.sqrt(2) * math.exp(math.lgamma(8.5) - math.lgamma(8.0))
    got = cross_view_energy(mean, scale, samples=20_000)
    assert got.item() == pytest.approx(0.3 * chi * (1 - 0.5**0.5), rel=0.01)  # 10,000 draws that vary by 18 %


def test_cross_view_energy_is_the_mean_of_the_pairs_energy_scores() -> None:
    mean, scale = forecasts(5)
    noise = randomness.normal(randomness.key(2, 0, "cross-view energy"), torch.arange(8), (1, 16)).expand(8, 5, 16)
    pairs = [
        gaussian_energy_score(mean[a], scale[a], mean[b], samples=16, noise=noise)
        for a, b in itertools.permutations(range(3), 2)
    ]
    torch.testing.assert_close(cross_view_energy(mean, scale, seed=2), torch.stack(pairs).mean(0))


def test_surprise_is_the_score_at_what_is_seen_in_the_other_views() -> None:
    mean, scale = forecasts(5)
    seen = torch.randn(mean.shape, generator=torch.Generator().manual_seed(3))
    noise = randomness.normal(randomness.key(2, 0, "cross-view energy"), torch.arange(8), (1, 16)).expand(8, 5, 16)
    pairs = [
        gaussian_energy_score(mean[v], scale[v], seen[w], samples=16, noise=noise)
        for v, w in itertools.permutations(range(3), 2)
    ]
    torch.testing.assert_close(cross_view_energy(mean, scale, seen, seed=2), torch.stack(pairs).mean(0))


def test_standardised_error_by_hand() -> None:
    mean, scale = torch.zeros(2, 1, 2), torch.tensor([[[1.0, 2.0]], [[0.5, 0.5]]])
    seen = torch.tensor([[[1.0, 1.0]], [[3.0, 4.0]]])
    first = math.log(math.sqrt((3.0**2 + 2.0**2) / 2))  # the first view's forecast at what is seen in the second
    second = math.log(math.sqrt((2.0**2 + 2.0**2) / 2))
    torch.testing.assert_close(standardised_error(mean, scale, seen), torch.tensor([(first + second) / 2]))


def test_cross_view_energy_does_not_depend_on_the_other_images(monkeypatch: pytest.MonkeyPatch) -> None:
    mean, scale = forecasts(10)
    whole = cross_view_energy(mean, scale)
    alone = torch.cat([cross_view_energy(mean[:, i : i + 1], scale[:, i : i + 1]) for i in range(10)])
    torch.testing.assert_close(whole, alone)
    monkeypatch.setattr(detectors, "_CPU_VALUES", 3 * 3 * 8 * 16)  # three images at a time
    torch.testing.assert_close(cross_view_energy(mean, scale), whole)
    torch.testing.assert_close(cross_view_energy(mean.flip(0), scale.flip(0)), whole)


@pytest.mark.parametrize("name", list(SCORES))
def test_a_wider_forecast_with_views_further_apart_is_more_uncertain(name: str) -> None:
    sure_mean, sure_scale = forecasts(50)
    wide_mean, wide_scale = forecasts(50, seed=1)
    low, high = SCORES[name](sure_mean, sure_scale), SCORES[name](3 * wide_mean, 3 * wide_scale)
    assert low.shape == (50,)
    assert ood_metrics(low, high)["auroc"] == 1.0


def test_bad_shapes_are_named() -> None:
    mean, scale = forecasts(4)
    for score, allowed in (
        (lambda: total_variance(mean, scale[:2]), r"\(V, N, K\)"),
        (lambda: mean_log_scale(scale[0]), r"\(V, N, K\)"),
        (lambda: cross_view_energy(mean[:1], scale[:1]), "2 or more"),
        (lambda: cross_view_energy(mean, scale, mean[:, :1]), "allowed"),
        (lambda: standardised_error(mean[:1], scale[:1], mean[:1]), "2 or more"),
        (lambda: standardised_error(mean, scale, mean[..., :1]), "allowed"),
    ):
        with pytest.raises(ProsminError, match=allowed):
            score()
