"""The heads of `prosmin calibrate` on features whose law is known."""

import pytest
import torch

from prosmin.calibrate import heads as fitting
from prosmin.calibrate.heads import (
    TYPICAL,
    Examples,
    draw_pairs,
    fit_directions,
    fit_heads,
    forecasts_of_random,
    judge,
    linear_heads,
    scale_factor,
    skill,
    split,
)
from prosmin.config import ViewsConfig
from prosmin.data.views import PARAMETERS, evaluation_parameters, typical_parameters
from prosmin.encoder.calibrated import ForecastHeads
from prosmin.errors import ProsminError
from prosmin.evaluation.forecasts import Forecasts

VIEWS = ViewsConfig()
SOLARISE = PARAMETERS.index("solarise")


def made_views(images: int, *, noise: float, seed: int, dim: int = 4, views: int = 4) -> torch.Tensor:
    """Each coordinate is the image's own value plus noise of each view, with variance 1 in total."""
    random = torch.Generator().manual_seed(seed)
    own = torch.randn(images, 1, dim, generator=random) * (1 - noise**2) ** 0.5
    return own + noise * torch.randn(images, 2 + views, dim, generator=random)


def examples(x: torch.Tensor, solarised: torch.Tensor | None = None) -> Examples:
    """With the parameters of views that differ in nothing else than whether they are solarised, (N, V)."""
    sizes = torch.tensor([[32, 32]])
    known = [make(sizes, VIEWS)[0] for make in (evaluation_parameters, typical_parameters)]
    parameters = torch.stack([*known, *[known[1]] * (x.shape[1] - 2)]).repeat(len(x), 1, 1)
    if solarised is not None:
        parameters[:, 2:, SOLARISE] = solarised.float()
    return Examples(x, parameters)


def made(images: int, *, noise: float, seed: int, dim: int = 4) -> Examples:
    """Images whose views are all alike."""
    return examples(made_views(images, noise=noise, seed=seed, dim=dim))


def fitted_to_noisy_views(*, told: bool) -> tuple[Forecasts, torch.Tensor, tuple[ForecastHeads, Examples]]:
    """Forecasts of other images' random views; which of these are solarised and noisy; the heads and the images."""
    random = torch.Generator().manual_seed(0)
    solarised = torch.zeros(4_000, 6, dtype=torch.bool)
    solarised[:, 2:] = torch.rand(4_000, 4, generator=random) < 0.5
    noise = torch.where(solarised, 0.9, 0.2)
    own = torch.randn(4_000, 1, 4, generator=random)
    x = own + noise[..., None] * torch.randn(4_000, 6, 4, generator=random)
    some = examples(x, solarised[:, 2:] if told else None)
    train, choice, test = (some.of(torch.arange(*rows)) for rows in ((3_000,), (3_000, 3_500), (3_500, 4_000)))
    heads = fit_heads(train, choice, views=VIEWS, seed=0).heads
    return forecasts_of_random(heads, test), solarised[3_500:, 2:].T, (heads, test)


@pytest.fixture
def short(monkeypatch):
    """A training of seconds."""
    monkeypatch.setattr(fitting, "STEPS", 400)
    monkeypatch.setattr(fitting, "WARM_UP", 40)


class TestDirections:
    def test_views_of_correlated_features_have_covariance_identity(self):
        torch.manual_seed(0)
        features = torch.randn(500, 4, 6) @ (torch.randn(6, 6) + 3 * torch.eye(6)) + 5
        found = fit_directions(lambda: features.split(100))
        white = ((features[:, 2:].flatten(0, 1) - found.centre) @ found.axes).double()
        assert white.mean(0).abs().max() < 1e-4
        covariance = white.T @ white / len(white)
        torch.testing.assert_close(covariance, torch.eye(6, dtype=torch.float64), atol=1e-4, rtol=0)

    def test_empty_directions_are_left_out(self):
        features = torch.randn(100, 4, 6, generator=torch.Generator().manual_seed(0))
        features[..., 3] = 2.0
        features[..., 5] *= 1e-3
        found = fit_directions(lambda: [features])
        assert found.axes.shape == (6, 4)
        white = ((features[:, 2:].flatten(0, 1) - found.centre) @ found.axes).double()
        torch.testing.assert_close(white.var(0, correction=0), torch.ones(4, dtype=torch.float64), atol=1e-4, rtol=0)

    def test_intervals_hold_also_beside_empty_directions(self, short):
        """With empty directions among the coordinates those of the others held 41 % instead of 90 %."""
        features = torch.cat([made_views(1000, noise=0.6, seed=0), torch.full((1000, 6, 12), 3.0)], dim=-1)
        found = fit_directions(lambda: [features])
        x = (features - found.centre) @ found.axes
        assert x.shape[-1] == 4
        fitted = fit_heads(examples(x[:800]), examples(x[800:900]), views=VIEWS, seed=0)
        # 400 forecasts of 4 coordinates, about 4 times as many errors as images: a standard error of 1.5 %
        found = judge(fitted, examples(x[900:]))
        assert found["random_coverage_90"] == pytest.approx(0.9, abs=0.045)

    def test_features_that_are_all_the_same_are_refused(self):
        features = torch.full((100, 4, 6), 0.7) + 1e-8 * torch.randn(100, 4, 6)
        with pytest.raises(ProsminError, match="same for all images"):
            fit_directions(lambda: [features])

    def test_few_images_give_few_directions(self):
        features = torch.randn(40, 4, 64, generator=torch.Generator().manual_seed(0))
        assert fit_directions(lambda: [features]).axes.shape == (64, 10)


class TestHeads:
    def test_at_the_start_they_are_the_best_linear_forecast(self):
        """Of a Gaussian with correlation r between views: mean r x, variance 1 - r^2."""
        found = made(20_000, noise=0.6, seed=0)
        heads = linear_heads(found, views=VIEWS, seed=0)
        # the standard error of a correlation of 20,000 images is at most .007
        torch.testing.assert_close(heads.correlation, torch.full((4,), 0.64), atol=0.02, rtol=0)
        x = found.x[:3, 0]
        mean, scale = heads(x)
        torch.testing.assert_close(mean, heads.correlation * x)
        torch.testing.assert_close(scale, (1 - heads.correlation**2).sqrt().expand(3, 4))

    def test_where_that_is_the_truth_the_intervals_hold_what_they_say(self, short):
        train, choice, other = (made(n, noise=0.6, seed=seed) for seed, n in enumerate((2_000, 500, 2_000)))
        fitted = fit_heads(train, choice, views=VIEWS, seed=0)
        found = judge(fitted, other)
        # 32,000 coordinates, of which the four views of an image share their error: a standard error of about .004
        # and of the typical view a quarter of that
        for kind, tolerance in (("random_", 1), ("", 2)):
            for level in (50, 90, 95):
                expected = level / 100
                assert found[f"{kind}coverage_{level}"] == pytest.approx(expected, abs=0.02 * tolerance)
                for joint in (f"joint_coverage_{level}", f"joint_coverage_{level}_radius"):
                    assert found[kind + joint] == pytest.approx(expected, abs=0.04 * tolerance)
        # the CRPS is proportional to the scale: 1 - sqrt(1 - .64^2)
        assert found["skill"] == pytest.approx(1 - (1 - 0.64**2) ** 0.5, abs=0.02)

    def test_they_learn_which_images_are_uncertain(self, short):
        """The first coordinate says how noisy the others are: the linear forecast cannot know."""
        random = torch.Generator().manual_seed(0)
        x = torch.randn(3_000, 6, 4, generator=random)
        noisy = torch.rand(3_000, generator=random) < 0.5
        own = torch.randn(3_000, 1, 4, generator=random)
        x = torch.where(noisy[:, None, None], x, own + 0.1 * x)
        x[..., 0] = torch.where(noisy, 1.0, -1.0)[:, None] + 0.05 * torch.randn(3_000, 6, generator=random)
        fitted = fit_heads(examples(x[:2_000]), examples(x[2_000:2_500]), views=VIEWS, seed=0)
        scale = fitted.heads(x[2_500:, 0])[1]
        test = noisy[2_500:]
        assert scale[test, 1:].mean() > 4 * scale[~test, 1:].mean()  # the truth is a factor of 10
        other = examples(x[2_500:])
        trained, linear = (skill(forecasts_of_random(heads, other)) for heads in (fitted.heads, fitted.linear))
        assert trained > linear + 0.1
        assert fitted.step > 0

    @pytest.mark.parametrize("told", [True, False])
    def test_forecasts_that_know_the_view_contain_as_much_of_each_kind(self, short, told):
        """Half of the views are solarised, and noisy. A forecast that is not told which covers too few of them."""
        found, solarised, _ = fitted_to_noisy_views(told=told)
        inside = ((found.observed - found.mean) / found.scale).abs() < 1.645
        shares = {kind: inside[solarised == kind].float().mean().item() for kind in (False, True)}
        # About 1,000 or more forecasts of 4 coordinates each: a standard error of .006, and the views of an image are
        # not independent.
        if told:
            assert shares == {kind: pytest.approx(0.9, abs=0.04) for kind in shares}
        else:
            assert shares[False] > 0.95 > 0.85 > shares[True]
        assert inside.float().mean().item() == pytest.approx(0.9, abs=0.03)

    def test_the_scale_of_the_typical_view_is_not_that_of_noisy_ones(self, short):
        _, _, (heads, test) = fitted_to_noisy_views(told=True)
        typical = heads(test.x[:, 0])[1]
        image, view = test.parameters[..., SOLARISE].nonzero().T
        given, told, _ = test.pair(image, torch.zeros_like(view), view)
        noisy = heads(given, told)[1]
        # Of a standard normal seen with noise .2 the variance that is left is .04 / 1.04, beside the target's own.
        for scale, noise in ((typical, 0.2), (noisy, 0.9)):
            assert scale.mean().item() == pytest.approx((0.04 / 1.04 + noise**2) ** 0.5, rel=0.1)

    def test_random_views_are_covered_though_the_typical_view_is_easier(self, short):
        """With factor and regions fitted to both, 90 % intervals of random views held 75 %, regions of 50 % 12 %."""
        x = made_views(3_000, noise=0.6, seed=0, views=2)
        x[:, TYPICAL] += 0.8 * (x[:, 0] - x[:, TYPICAL])
        train, choice, test = map(examples, x.split([1_500, 500, 1_000]))
        found = judge(fit_heads(train, choice, views=VIEWS, seed=0), test)
        for kind in ("", "random_"):
            # 500 chosen and 1,000 other images: a standard error of .01 of intervals, .03 of regions of 50 %
            assert found[f"{kind}coverage_90"] == pytest.approx(0.9, abs=0.03)
            assert found[f"{kind}joint_coverage_90_radius"] == pytest.approx(0.9, abs=0.05)
        assert found["random_joint_coverage_50_radius"] == pytest.approx(0.5, abs=0.08)

    def test_regions_contain_what_they_say_after_few_images_too(self, short):
        """With 100 training images errors on these are smaller than on others; regions held 79 % instead of 90 %."""
        train, choice, test = (made(n, noise=0.6, seed=seed, dim=25) for seed, n in enumerate((100, 100, 2_000)))
        found = judge(fit_heads(train, choice, views=VIEWS, seed=0), test)
        # 100 chosen images: the share they leave out is a beta variable with a standard deviation of .03
        assert found["joint_coverage_90_radius"] == pytest.approx(0.9, abs=0.07)
        assert found["random_joint_coverage_90_radius"] == pytest.approx(0.9, abs=0.07)

    def test_a_few_images_keep_the_linear_forecast(self, short):
        train, choice, test = (made(n, noise=0.6, seed=seed, dim=16) for seed, n in enumerate((20, 200, 500)))
        fitted = fit_heads(train, choice, views=VIEWS, seed=0)
        assert judge(fitted, test)["skill"] > 0.1

    def test_the_same_seed_gives_the_same_bits(self, short, monkeypatch):
        monkeypatch.setattr(fitting, "STEPS", 100)
        train = made(100, noise=0.6, seed=0)
        first, second = (fit_heads(train, train.of(torch.arange(20)), views=VIEWS, seed=3) for _ in range(2))
        for one, other in zip(first[:3], second[:3], strict=True):
            assert all(torch.equal(one.state_dict()[name], other.state_dict()[name]) for name in one.state_dict())

    def test_the_factor_makes_intervals_of_90_percent_hold_90_percent(self):
        observed = 2 * torch.randn(3, 400, 5, generator=torch.Generator().manual_seed(0))
        found = Forecasts(torch.zeros(3, 400, 5), torch.ones(3, 400, 5), observed)
        assert scale_factor(found) == pytest.approx(2.0, rel=0.03)  # 6,000 values: 1.5 % of standard error

    def test_heads_of_zeros_are_finite_for_any_correlation(self):
        heads = ForecastHeads(dim=3, hidden=8, views=VIEWS)
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
        images = 2 * torch.arange(count)
        found = split(images, seed=0)
        assert torch.equal(torch.cat(found).sort().values, images)
        assert len(found.choice) == len(found.report) == max(20, count // 10) // 2
