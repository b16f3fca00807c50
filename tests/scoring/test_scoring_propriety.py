"""What the scores train towards: the true distribution, the predicted wrong scale, or nothing at all."""

import math

import pytest
import torch

from prosmin.errors import UsageError
from prosmin.scoring import (
    approximate_energy_score,
    energy_score,
    gaussian_crps,
    gaussian_energy_score,
    gaussian_kernel_score,
    gaussian_mixture_crps,
    kernel_score,
    noise_count,
    propriety,
    view_scores,
)

D, N = 32, 300  # coordinates; targets
WIDTH = 3.0
MEANS = [0.1, 0.2, 0.3]
SCALES = [round(0.4 + 0.1 * i, 1) for i in range(18)]  # to 2.1


def generator(seed):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


NOISE = draw(4, N, D, seed=1)
RULES = {  # score of forecasts (..., N, D) with a given lam
    "energy": (1.0, "energy", lambda m, s, t, lam: energy_score(m + s * NOISE, t, lam=lam)),
    "energy 1.5": (1.5, "energy", lambda m, s, t, lam: energy_score(m + s * NOISE, t, lam=lam, beta=1.5)),
    "paired": (1.0, "energy", lambda m, s, t, lam: gaussian_energy_score(m, s, t, lam=lam, noise=NOISE[:2])),
    "approximate": (1.0, "energy", lambda m, s, t, lam: approximate_energy_score(m, s, t, lam=lam)),
    "crps": (1.0, "crps", lambda m, s, t, lam: gaussian_crps(m, s, t, lam=lam)),
    "mixture": (
        1.0, "crps",
        lambda m, s, t, lam: gaussian_mixture_crps(m.expand(2, N, D), s.expand(2, N, D), t, lam=lam),
    ),
    "kernel": (1.0, "kernel", lambda m, s, t, lam: kernel_score(m + s * NOISE, t, lam=lam, bandwidth=WIDTH)),
    "closed kernel": (
        1.0, "kernel", lambda m, s, t, lam: gaussian_kernel_score(m, s, t, lam=lam, bandwidth=WIDTH)
    ),
}  # fmt: skip


def minimiser(score, lam):
    """The mean and scale of the grid with the lowest mean score over N targets of N(0.2, 1)."""
    target = 0.2 + draw(N, D, seed=2)
    one = torch.ones(N, D, dtype=torch.float64)
    table = torch.tensor([[score(m * one, s * one, target, lam).mean() for s in SCALES] for m in MEANS])
    i, j = divmod(int(table.argmin()), len(SCALES))
    return MEANS[i], SCALES[j]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("lam", [0.45, 0.5, 0.6])
def test_the_minimiser_is_the_truth_at_one_half_and_the_predicted_scale_elsewhere(rule, lam):
    beta, name, score = RULES[rule]
    mean, scale = minimiser(score, lam)
    predicted = propriety(beta, lam, rule=name, dim=D, bandwidth=WIDTH).scale_inflation
    if lam == 0.5:
        assert predicted == 1.0
    assert mean == 0.2
    # Half a step of the grid is 0.05; the spread of 9600 draws is known to 0.7 %, times the inflation.
    assert scale == pytest.approx(min(predicted, SCALES[-1]), abs=0.09)


@pytest.mark.parametrize("beta", [0.5, 1.0, 1.5])
def test_the_threshold_of_a_single_view(beta):
    edge = 1 / (1 + 2 ** (1 - beta / 2))
    assert propriety(beta, 0.5).threshold == pytest.approx(edge)
    target = torch.zeros(6, dtype=torch.float64)

    def slope(lam):
        """What a tenfold scale adds, for a forecast centred on its target."""
        small, large = (
            gaussian_energy_score(target, target + s, target, beta=beta, lam=lam, generator=generator(0)).item()
            for s in (0.1, 1.0)
        )
        return large - small

    assert slope(edge + 1e-6) > 0
    assert slope(edge - 1e-6) < 0
    assert math.isfinite(propriety(beta, edge + 1e-6).scale_inflation)
    assert propriety(beta, edge - 1e-6).scale_inflation == math.inf


def test_the_numbers_of_the_documentation():
    assert propriety(1.0, 0.5).threshold == pytest.approx(0.4142, abs=1e-4)
    assert propriety(1.0, 0.45).scale_inflation == pytest.approx(1.72, abs=5e-3)
    assert propriety(1.0, 0.6).scale_inflation == pytest.approx(0.53, abs=6e-3)
    assert propriety(1.0, 0.5).scale_inflation == 1.0
    assert propriety(1.0, 0.45).verdict == "lam 0.45: the learned scale will be 1.72 times the true spread."
    assert propriety(1.0, 0.5).proper
    assert not propriety(1.0, 0.45).proper
    assert propriety(1.0, 0.5, rule="kernel").threshold == 0.5
    assert propriety(1.0, 0.5, rule="kernel").proper
    assert propriety(1.0, 0.5, pairs="pooled", views=18, samples=4).threshold == pytest.approx(0.4969, abs=1e-4)


def pooled(mean, scale, target, *, lam, beta=1.0, samples=4, draws, seed=0):
    """The pooled score by `draws` draws: mean, scale (V, K), target (K,)."""
    V, K = mean.shape
    noise = draw(V, draws, noise_count("ustat", samples, antithetic=False), K, seed=seed)
    scores = view_scores(
        mean[:, None].expand(V, draws, K), scale[:, None].expand(V, draws, K), target.expand(1, draws, K),
        rule="energy", norm="euclidean", pairs="pooled", estimator="ustat", beta=beta, lam=lam,
        samples=samples, antithetic=False, absolute=False, bandwidth=None, noise=noise,
    )  # fmt: skip
    return scores.mean().item()


@pytest.mark.parametrize(("views", "samples", "beta"), [(3, 4, 1.0), (2, 2, 0.5), (2, 4, 1.5)])
def test_the_threshold_of_pooled_pairs_is_where_widening_one_view_lowers_the_score(views, samples, beta):
    edge = propriety(beta, 0.5, pairs="pooled", views=views, samples=samples).threshold
    zero = torch.zeros(views, 64, dtype=torch.float64)
    wide = zero.clone()
    wide[0] = 1.0  # one view widens, the others are at the target
    settings = {"beta": beta, "samples": samples, "draws": 400}
    assert pooled(zero, wide, zero[0], lam=edge + 0.004, **settings) > 0
    assert pooled(zero, wide, zero[0], lam=edge - 0.004, **settings) < 0
    # If one view only moves away, the threshold is lower: that bound would accept settings without a minimum.
    moved = samples * (views - 1) / (2 * views * samples - samples - 1)
    assert edge > moved
    far = zero.clone()
    far[0] = 1.0
    if beta == 1.0:
        assert pooled(far, zero, zero[0], lam=moved, **settings) == pytest.approx(0.0, abs=1e-12)


def test_pooled_pairs_at_beta_near_two_have_no_minimum_even_at_one_half():
    found = propriety(1.9, 0.5, pairs="pooled", views=2, samples=2)
    assert found.threshold > 0.5
    assert found.scale_inflation == math.inf
    apart = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    assert pooled(apart, apart * 0.0, zero, lam=0.5, beta=1.9, samples=2, draws=1) < 0


def test_pooled_samples_reward_views_for_being_apart_and_the_exact_mixture_does_not():
    def folded(offset, scale):
        """E|N(offset, scale^2)|."""
        t = offset / scale
        return offset * math.erf(t / math.sqrt(2)) + scale * math.sqrt(2 / math.pi) * math.exp(-(t**2) / 2)

    def expected(apart, samples):
        """Expected score, for a target N(0, 1), of two views at +-apart that together have the variance 1."""
        scale = math.sqrt(1 - apart**2)
        to_target = folded(apart, math.sqrt(1 + scale**2))
        own, other = folded(0.0, math.sqrt(2) * scale), folded(2 * apart, math.sqrt(2) * scale)
        share = 0.5 if samples is None else (samples - 1) / (2 * samples - 1)  # of the pairs, within a view
        return to_target - 0.5 * (share * own + (1 - share) * other)

    assert expected(0.0, None) < expected(0.3, None)
    assert expected(0.0, 2) > expected(0.3, 2)
    assert propriety(1.0, 0.5, pairs="pooled", views=2, samples=None).proper
    found = propriety(1.0, 0.5, pairs="pooled", views=2, samples=2)
    assert not found.proper
    assert "apart" in found.verdict
    # The same from the code, at one target: the pool of samples and the exact mixture differ as derived.
    mean = torch.tensor([[0.6], [-0.6]], dtype=torch.float64)
    scale, zero = torch.full_like(mean, 0.8), torch.zeros(1, dtype=torch.float64)
    own, other = folded(0.0, math.sqrt(2) * 0.8), folded(1.2, math.sqrt(2) * 0.8)
    exact = folded(0.6, 0.8) - 0.25 * (own + other)
    assert gaussian_mixture_crps(mean, scale, zero).item() == pytest.approx(exact, rel=1e-9)
    sampled = folded(0.6, 0.8) - 0.5 * (own + 2 * other) / 3
    # 40000 draws of a score with a standard deviation of about 0.3
    assert pooled(mean, scale, zero, lam=0.5, samples=2, draws=40000) == pytest.approx(sampled, abs=0.006)


def test_the_kernel_score_rewards_spread_below_one_half():
    zero = torch.zeros(3, dtype=torch.float64)

    def score(scale, lam):
        return gaussian_kernel_score(zero, zero + scale, zero, bandwidth=1.0, lam=lam).item()

    assert score(0.05, 0.499) < 0.0 < score(0.05, 0.501)
    assert score(0.0, 0.3) == pytest.approx(0.0, abs=1e-15)


def test_beta_two_does_not_depend_on_the_scale_at_one_half():
    mean, target = draw(5, 3, seed=0), draw(5, 3, seed=1)
    narrow, wide = (
        gaussian_energy_score(mean, torch.full_like(mean, s), target, beta=2.0, samples=2, generator=generator(0))
        for s in (0.1, 3.0)
    )
    assert torch.allclose(narrow, wide, rtol=1e-9)
    found = propriety(2.0, 0.5)
    assert not found.proper
    assert math.isnan(found.scale_inflation)
    assert propriety(2.0, 0.6).scale_inflation == 0.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"beta": 2.5}, "beta is 2.5"),
        ({"beta": 0.0}, "beta is 0"),
        ({"lam": 1.0}, "lam is 1"),
        ({"rule": "log"}, "rule is 'log'"),
        ({"pairs": "all"}, "pairs is 'all'"),
        ({"rule": "kernel", "beta": 1.5}, "beta is 1.5 with rule kernel"),
        ({"views": 0}, "views is 0"),
        ({"samples": 1, "pairs": "pooled"}, "samples is 1"),
    ],
)
def test_bad_settings_are_named(change, words):
    settings = {"beta": 1.0, "lam": 0.5} | change
    with pytest.raises(UsageError, match=words):
        propriety(settings.pop("beta"), settings.pop("lam"), **settings)
