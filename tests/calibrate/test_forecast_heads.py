"""The heads of `prosmin calibrate` on features whose law is known."""

import pytest
import torch

from prosmin.calibrate import heads as fitting
from prosmin.calibrate.heads import draw_pairs, fit_directions, fit_heads, judge, linear_heads, scale_factor, split
from prosmin.encoder.calibrated import ForecastHeads
from prosmin.errors import ProsminError
from prosmin.evaluation.forecasts import Forecasts


def made_views(images: int, *, noise: float, seed: int, dim: int = 4, views: int = 4) -> torch.Tensor:
    """Each coordinate is the image's own value plus noise of each view, with variance 1 in total."""
    random = torch.Generator().manual_seed(seed)
    own = torch.randn(images, 1, dim, generator=random) * (1 - noise**2) ** 0.5
    return own + noise * torch.randn(images, 1 + views, dim, generator=random)


@pytest.fixture
def short(monkeypatch):
    """A training of seconds."""
    monkeypatch.setattr(fitting, "STEPS", 400)
    monkeypatch.setattr(fitting, "WARM_UP", 40)


class TestDirections:
    def test_views_of_correlated_features_have_covariance_identity(self):
        torch.manual_seed(0)
        features = torch.randn(500, 3, 6) @ (torch.randn(6, 6) + 3 * torch.eye(6)) + 5
        found = fit_directions(lambda: features.split(100))
        white = ((features[:, 1:].flatten(0, 1) - found.centre) @ found.axes).double()
        assert white.mean(0).abs().max() < 1e-4
        covariance = white.T @ white / len(white)
        torch.testing.assert_close(covariance, torch.eye(6, dtype=torch.float64), atol=1e-4, rtol=0)

    def test_empty_directions_are_left_out(self):
        features = torch.randn(100, 3, 6, generator=torch.Generator().manual_seed(0))
        features[..., 3] = 2.0
        features[..., 5] *= 1e-3
        found = fit_directions(lambda: [features])
        assert found.axes.shape == (6, 4)
        white = ((features[:, 1:].flatten(0, 1) - found.centre) @ found.axes).double()
        torch.testing.assert_close(white.var(0, correction=0), torch.ones(4, dtype=torch.float64), atol=1e-4, rtol=0)

    def test_intervals_hold_also_beside_empty_directions(self, short):
        """With empty directions among the coordinates those of the others held 41 % instead of 90 %."""
        features = torch.cat([made_views(1000, noise=0.6, seed=0), torch.full((1000, 5, 12), 3.0)], dim=-1)
        found = fit_directions(lambda: [features])
        x = (features - found.centre) @ found.axes
        assert x.shape[-1] == 4
        fitted = fit_heads(x[:800], x[800:900], seed=0)
        # 400 forecasts of 4 coordinates, about 4 times as many errors as images: a standard error of 1.5 %
        assert judge(fitted.heads, x[900:])["coverage_90"] == pytest.approx(0.9, abs=0.045)

    def test_features_that_are_all_the_same_are_refused(self):
        features = torch.full((100, 3, 6), 0.7) + 1e-8 * torch.randn(100, 3, 6)
        with pytest.raises(ProsminError, match="same for all images"):
            fit_directions(lambda: [features])

    def test_few_images_give_few_directions(self):
        features = torch.randn(40, 3, 64, generator=torch.Generator().manual_seed(0))
        assert fit_directions(lambda: [features]).axes.shape == (64, 10)


class TestHeads:
    def test_at_the_start_they_are_the_best_linear_forecast(self):
        """Of a Gaussian with correlation r between views: mean r x, variance 1 - r^2."""
        x = made_views(20_000, noise=0.6, seed=0)
        heads = linear_heads(x, seed=0)
        # the standard error of a correlation of 20,000 images is at most .007
        torch.testing.assert_close(heads.correlation, torch.full((4,), 0.64), atol=0.02, rtol=0)
        mean, scale = heads(x[:3, 0])
        torch.testing.assert_close(mean, heads.correlation * x[:3, 0])
        torch.testing.assert_close(scale, (1 - heads.correlation**2).sqrt().expand(3, 4))

    def test_where_that_is_the_truth_the_intervals_hold_what_they_say(self, short):
        x, other = made_views(2_000, noise=0.6, seed=0), made_views(2_000, noise=0.6, seed=1)
        fitted = fit_heads(x, made_views(500, noise=0.6, seed=2), seed=0)
        found = judge(fitted.heads, other)
        # 32,000 coordinates, of which the four views of an image share their error: a standard error of about .004
        for level in (50, 90, 95):
            assert found[f"coverage_{level}"] == pytest.approx(level / 100, abs=0.02)
            assert found[f"joint_coverage_{level}"] == pytest.approx(level / 100, abs=0.04)
        # the CRPS is proportional to the scale: 1 - sqrt(1 - .64^2)
        assert found["skill"] == pytest.approx(1 - (1 - 0.64**2) ** 0.5, abs=0.02)

    def test_they_learn_which_images_are_uncertain(self, short):
        """The first coordinate says how noisy the others are: the linear forecast cannot know."""
        random = torch.Generator().manual_seed(0)
        x = torch.randn(3_000, 5, 4, generator=random)
        noisy = torch.rand(3_000, generator=random) < 0.5
        own = torch.randn(3_000, 1, 4, generator=random)
        x = torch.where(noisy[:, None, None], x, own + 0.1 * x)
        x[..., 0] = torch.where(noisy, 1.0, -1.0)[:, None] + 0.05 * torch.randn(3_000, 5, generator=random)
        fitted = fit_heads(x[:2_000], x[2_000:2_500], seed=0)
        scale = fitted.heads(x[2_500:, 0])[1]
        test = noisy[2_500:]
        assert scale[test, 1:].mean() > 4 * scale[~test, 1:].mean()  # the truth is a factor of 10
        skills = judge(fitted.heads, x[2_500:])["skill"], judge(fitted.linear, x[2_500:])["skill"]
        assert skills[0] > skills[1] + 0.1
        assert fitted.step > 0

    def test_a_few_images_keep_the_linear_forecast(self, short):
        x = made_views(20, noise=0.6, seed=0, dim=16)
        fitted = fit_heads(x, made_views(200, noise=0.6, seed=1, dim=16), seed=0)
        assert judge(fitted.heads, made_views(500, noise=0.6, seed=2, dim=16))["skill"] > 0.1

    def test_the_same_seed_gives_the_same_bits(self, short, monkeypatch):
        monkeypatch.setattr(fitting, "STEPS", 100)
        x = made_views(100, noise=0.6, seed=0)
        first, second = (fit_heads(x, x[:20], seed=3).heads.state_dict() for _ in range(2))
        assert all(torch.equal(first[name], second[name]) for name in first)

    def test_the_factor_makes_intervals_of_90_percent_hold_90_percent(self):
        observed = 2 * torch.randn(3, 400, 5, generator=torch.Generator().manual_seed(0))
        found = Forecasts(torch.zeros(3, 400, 5), torch.ones(3, 400, 5), observed)
        assert scale_factor(found) == pytest.approx(2.0, rel=0.03)  # 6,000 values: 1.5 % of standard error

    def test_heads_of_zeros_are_finite_for_any_correlation(self):
        heads = ForecastHeads(dim=3, hidden=8)
        heads.correlation.copy_(torch.tensor([0.0, 0.5, fitting.MOST_CORRELATION]))
        mean, scale = heads(torch.full((2, 3), 1e6))
        assert mean.isfinite().all()
        assert (scale > 0).all()


class TestPairs:
    def test_a_view_never_forecasts_itself_nor_the_evaluation_view(self):
        random = torch.Generator().manual_seed(0)
        pairs = {(int(a), int(b)) for _ in range(20) for a, b in zip(*draw_pairs(4, random), strict=True)}
        assert pairs == {(a, b) for a in range(4) for b in range(1, 4) if a != b}

    def test_with_two_views_each_forecasts_the_other(self):
        given, target = draw_pairs(3, torch.Generator().manual_seed(0))
        assert set(zip(given.tolist(), target.tolist(), strict=True)) == {(0, 1), (0, 2), (1, 2), (2, 1)}

    @pytest.mark.parametrize("count", [100, 1_000])
    def test_the_split_has_every_image_once(self, count):
        found = split(count, seed=0)
        assert torch.cat(found).sort().values.tolist() == list(range(count))
        assert len(found.choice) == len(found.report) == max(20, count // 10) // 2
