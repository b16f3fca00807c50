"""The estimators: unbiased values and gradients, and how noisy they are."""

import math

import pytest
import torch
from scipy import special

from prosmin.scoring import gaussian_crps, gaussian_kernel_score, noise_count, view_scores

ESTIMATORS = [("ustat", False), ("paired", False), ("paired", True)]
OFFSET, SCALE, D = 0.8, 1.3, 3  # distance of the forecast from its target in each coordinate, its scale, coordinates


def draw(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scores(mean, scale, target, *, estimator, antithetic, noise, **settings):
    defaults = {"rule": "energy", "norm": "euclidean", "pairs": "within", "beta": 1.0, "lam": 0.5,
                "samples": 4, "absolute": False, "bandwidth": None}  # fmt: skip
    return view_scores(
        mean, scale, target, estimator=estimator, antithetic=antithetic, noise=noise, **(defaults | settings)
    )


def repeat(draws, *, estimator, antithetic, d=D, offset=OFFSET, scale=SCALE, seed=0, **settings):
    """`draws` independent scores of one forecast, and their mean and scale with gradients."""
    mean = torch.full((1, draws, d), offset, dtype=torch.float64, requires_grad=True)
    spread = torch.full((1, draws, d), scale, dtype=torch.float64, requires_grad=True)
    count = noise_count(estimator, settings.get("samples", 4), antithetic)
    noise = draw(1, draws, count, d, seed=seed)
    target = torch.zeros(1, draws, d, dtype=torch.float64)
    values = scores(mean, spread, target, estimator=estimator, antithetic=antithetic, noise=noise, **settings)
    return values[0, 0], mean, spread


def euclidean(offset, scale, beta, lam):
    """The expected score and its derivatives in one coordinate of the mean and in the scale of all."""

    def moment(length, s):
        factor = (2 * s**2) ** (beta / 2) * special.poch(D / 2, beta / 2)
        return factor * special.hyp1f1(-beta / 2, D / 2, -(length**2) / (2 * s**2))

    def value(x, s):
        length = math.sqrt(x**2 + (D - 1) * offset**2)
        return 2 * lam * moment(length, s) - (1 - lam) * moment(0.0, math.sqrt(2) * s)

    step = 1e-5
    to_mean = (value(offset + step, scale) - value(offset - step, scale)) / (2 * step)
    to_scale = (value(offset, scale + step) - value(offset, scale - step)) / (2 * step)
    return value(offset, scale), to_mean, to_scale


def closed(rule, lam):
    """The same from the closed forms of the coordinate and the kernel score."""
    mean = torch.full((D,), OFFSET, dtype=torch.float64, requires_grad=True)
    scale = torch.full((D,), SCALE, dtype=torch.float64, requires_grad=True)
    target = torch.zeros(D, dtype=torch.float64)
    if rule == "kernel":
        value = gaussian_kernel_score(mean, scale, target, bandwidth=2.0, lam=lam)
    else:
        value = gaussian_crps(mean, scale, target, lam=lam)
    value.backward()
    return value.item(), mean.grad[0].item(), scale.grad.sum().item()


CASES = {
    "euclidean 0.5": ({"beta": 0.5, "lam": 0.5}, lambda: euclidean(OFFSET, SCALE, 0.5, 0.5)),
    "euclidean 1": ({"beta": 1.0, "lam": 0.45}, lambda: euclidean(OFFSET, SCALE, 1.0, 0.45)),
    "euclidean 1.5": ({"beta": 1.5, "lam": 0.5}, lambda: euclidean(OFFSET, SCALE, 1.5, 0.5)),
    "coordinate": ({"norm": "coordinate", "lam": 0.45}, lambda: closed("crps", 0.45)),
    "kernel": ({"rule": "kernel", "bandwidth": 2.0, "lam": 0.6}, lambda: closed("kernel", 0.6)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("estimator", "antithetic"), ESTIMATORS)
def test_values_and_gradients_are_unbiased(case, estimator, antithetic):
    settings, exact = CASES[case]
    value, to_mean, to_scale = exact()
    draws = 4000
    found, mean, scale = repeat(draws, estimator=estimator, antithetic=antithetic, **settings)
    found.sum().backward()  # draws are independent, so each row has its own gradient
    rows = {value: found.detach(), to_mean: mean.grad[0, :, 0], to_scale: scale.grad[0].sum(-1)}
    for expected, drawn in rows.items():
        error = drawn.std().item() / math.sqrt(draws)
        # Four standard errors, with a fixed seed; one of 45 such tests would fail by chance for one seed in 400.
        assert abs(drawn.mean().item() - expected) < 4 * error
        assert error < 0.02  # else the test could not fail


def test_antithetic_samples_would_bias_the_u_statistic():
    # So noise_count does not halve the noise of the U-statistic: mirrored pairs are at 2 |x|, not at sqrt(2) |x|.
    draws = 4000
    half = draw(1, draws, 2, D, seed=0)
    zero = torch.zeros(1, draws, D, dtype=torch.float64)
    mirrored = torch.cat([half, -half], 2)
    found = scores(zero + OFFSET, zero + SCALE, zero, estimator="ustat", antithetic=False, noise=mirrored)[0, 0]
    value = euclidean(OFFSET, SCALE, 1.0, 0.5)[0]
    assert abs(found.mean().item() - value) > 20 * found.std().item() / math.sqrt(draws)


def test_antithetic_samples_are_the_least_noisy():
    spread = {}
    for estimator, antithetic in ESTIMATORS:
        found, mean, _ = repeat(300, estimator=estimator, antithetic=antithetic, d=1024, offset=1.0, scale=1.0)
        found.sum().backward()
        spread[estimator, antithetic] = found.std().item(), mean.grad[0].std(0).mean().item()
    ustat, paired, mirrored = (spread[key] for key in ESTIMATORS)
    assert mirrored[0] < paired[0] < ustat[0]
    assert mirrored[0] < paired[0] / 20
    assert mirrored[1] < paired[1] / 10  # of the gradient in the mean


@pytest.mark.parametrize("norm", ["euclidean", "coordinate"])
def test_pooled_u_statistic_equals_the_slow_reference(norm):
    V, S, K = 3, 2, 4
    mean, scale, target = draw(V, 1, K, seed=0), draw(V, 1, K, seed=1).abs(), draw(2, 1, K, seed=2)
    noise = draw(V, 1, S, K, seed=3)
    for beta in (1.0, 1.5):
        found = scores(
            mean, scale, target, estimator="ustat", antithetic=False, noise=noise, pairs="pooled", norm=norm,
            beta=beta, lam=0.6, samples=S,
        )  # fmt: skip
        assert found.shape == (1, 2, 1)
        pool = (mean[:, 0, None] + scale[:, 0, None] * noise[:, 0]).reshape(V * S, K)

        def distance(a, b, beta=beta):
            gap = a - b
            return gap.norm() ** beta if norm == "euclidean" else (gap.abs() ** beta).mean()

        pairs = sum(distance(a, b) for a in pool for b in pool) / (V * S * (V * S - 1))
        for g in range(2):
            first = sum(distance(a, target[g, 0]) for a in pool) / (V * S)
            assert found[0, g, 0].item() == pytest.approx((1.2 * first - 0.4 * pairs).item(), rel=1e-10)
