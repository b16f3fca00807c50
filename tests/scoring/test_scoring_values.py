"""Values and gradients of every rule: closed forms, slow references, gradcheck, an independent package."""

import math
from functools import partial
from itertools import permutations

import numpy as np
import pytest
import scoringrules
import torch
from scipy import integrate, special, stats

from prosmin.scoring import (
    approximate_energy_score,
    energy_score,
    gaussian_crps,
    gaussian_energy_score,
    gaussian_kernel_score,
    gaussian_mixture_crps,
    kernel_score,
    median_bandwidth,
)

BETAS = [0.5, 1.0, 1.5, 2.0]
LAMS = [0.3, 0.5, 0.8]


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def forecast(*shape):
    """mean, scale, target, and the noise of two samples."""
    return draw(*shape), draw(*shape, seed=1).abs(), draw(*shape, seed=2), draw(2, *shape, seed=3)


def expected_distance(offset, scale, d, beta):
    """E|N(offset, scale^2 I_d)|^beta for an offset of that length: a moment of the noncentral chi law."""
    factor = (2 * scale**2) ** (beta / 2) * math.exp(math.lgamma((d + beta) / 2) - math.lgamma(d / 2))
    return factor * special.hyp1f1(-beta / 2, d / 2, -(offset**2) / (2 * scale**2))


def slow_score(samples, target, distance, lam):
    """The U-statistic of one item, from its pairs."""
    r = len(samples)
    to_target = sum(distance(z, target) for z in samples) / r
    pairs = sum(distance(a, b) for a, b in permutations(samples, 2)) / (r * (r - 1))
    return 2 * lam * to_target - (1 - lam) * pairs


def test_energy_score_of_hand_placed_points():
    # On a line: points 0 and 2, target 1. Distances 1, 1 to the target, 2 between the points.
    samples = torch.tensor([[0.0], [2.0]])
    assert energy_score(samples, torch.tensor([1.0])).item() == pytest.approx(1.0 - 0.5 * 2.0)
    assert energy_score(samples, torch.tensor([1.0]), lam=0.3).item() == pytest.approx(0.6 - 0.7 * 2.0)
    assert energy_score(samples, torch.tensor([1.0]), lam=0.3, absolute=True).item() == pytest.approx(0.8)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("d", [1, 3, 40])
def test_energy_score_equals_the_slow_reference(beta, d):
    samples, target = draw(5, 2, 3, d), draw(2, 3, d, seed=1)
    for lam in LAMS:
        score = energy_score(samples, target, beta=beta, lam=lam)
        assert score.shape == (2, 3)
        for i in np.ndindex(2, 3):
            points = samples[(slice(None), *i)].numpy()
            slow = slow_score(points, target[i].numpy(), lambda a, b: np.linalg.norm(a - b) ** beta, lam)
            assert score[i].item() == pytest.approx(slow, rel=1e-10)


@pytest.mark.parametrize("d", [1, 3, 40])
def test_kernel_score_equals_the_slow_reference(d):
    samples, target = draw(5, 4, d), draw(4, d, seed=1)
    for lam in LAMS:
        score = kernel_score(samples, target, bandwidth=1.7, lam=lam)
        for i in range(4):

            def kernel(a, b):
                return math.exp(-((a - b) ** 2).sum() / (2 * 1.7**2))

            z, t = samples[:, i].numpy(), target[i].numpy()
            # The form of the documentation: (1 - lam) E k(Z, Z') - 2 lam E k(Z, z) + 3 lam - 1.
            pairs = sum(kernel(a, b) for a, b in permutations(z, 2)) / 20
            slow = (1 - lam) * pairs - 2 * lam * sum(kernel(a, t) for a in z) / 5 + 3 * lam - 1
            assert score[i].item() == pytest.approx(slow, abs=1e-12)


@pytest.mark.parametrize("antithetic", [True, False])
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("d", [1, 3, 40])
def test_gaussian_energy_score_equals_the_slow_reference(antithetic, beta, d):
    mean, scale, target, noise = forecast(3, d)
    samples = 4 if antithetic else 2
    for lam in LAMS:
        score = gaussian_energy_score(
            mean, scale, target, beta=beta, lam=lam, samples=samples, antithetic=antithetic, noise=noise
        )
        for i in range(3):
            m, s, t = mean[i].numpy(), scale[i].numpy(), target[i].numpy()
            eps = noise[:, i].numpy()
            eps = np.concatenate([eps, -eps]) if antithetic else eps
            first = np.mean([np.linalg.norm(m + s * e - t) ** beta for e in eps])
            pair = np.mean([np.linalg.norm(math.sqrt(2) * s * e) ** beta for e in eps])
            assert score[i].item() == pytest.approx(2 * lam * first - (1 - lam) * pair, rel=1e-10)


@pytest.mark.parametrize(("mean", "scale", "target"), [(0.3, 0.7, 1.1), (0.0, 2.0, 0.0), (-4.0, 0.2, 5.0)])
def test_gaussian_crps_equals_integrals(mean, scale, target):
    def expected(offset, spread):
        """E|N(offset, spread^2)| by quadrature; ends and kink are given."""
        law = stats.norm(offset, spread)
        low, high = offset - 12 * spread, offset + 12 * spread
        points = [0.0] if low < 0 < high else None
        return integrate.quad(lambda u: abs(u) * law.pdf(u), low, high, points=points)[0]

    args = torch.tensor([[mean], [scale], [target]], dtype=torch.float64)
    to_target, pairs = expected(mean - target, scale), expected(0.0, math.sqrt(2) * scale)
    for lam in LAMS:
        # quad promises 1.5e-8
        found = gaussian_crps(*args, lam=lam).item()
        assert found == pytest.approx(2 * lam * to_target - (1 - lam) * pairs, abs=1e-7)


@pytest.mark.parametrize("lam", LAMS)
def test_mixture_crps_equals_an_integral(lam):
    means, scales, target = [0.0, 1.0, -2.0], [0.5, 1.0, 0.0], 0.4

    def cdf(x):
        return np.mean(
            [stats.norm.cdf((x - m) / s) if s else float(x >= m) for m, s in zip(means, scales, strict=True)]
        )

    # E|Z - x| and E|Z - Z'| from the distribution function: integrals of F and 1 - F.
    def integral(f):
        points = [-2.0, target]
        return integrate.quad(f, -12, 12, points=points, limit=200)[0]

    first = integral(lambda x: cdf(x) if x < target else 1 - cdf(x))
    pair = 2 * integral(lambda x: cdf(x) * (1 - cdf(x)))
    mean, scale = (torch.tensor(x, dtype=torch.float64)[:, None] for x in (means, scales))
    score = gaussian_mixture_crps(mean, scale, torch.tensor([target], dtype=torch.float64), lam=lam)
    assert score.item() == pytest.approx(2 * lam * first - (1 - lam) * pair, abs=1e-6)


def test_mixture_of_one_is_the_gaussian():
    mean, scale, target, _ = forecast(4, 5)
    one = gaussian_mixture_crps(mean[None], scale[None], target, lam=0.4)
    assert torch.allclose(one, gaussian_crps(mean, scale, target, lam=0.4), rtol=1e-12)


@pytest.mark.parametrize("lam", LAMS)
def test_gaussian_kernel_score_equals_integrals(lam):
    mean, scale, target, width = 0.3, 0.7, 1.1, 0.9

    def smooth(offset, spread):
        law = stats.norm(offset, spread)
        return integrate.quad(lambda u: math.exp(-(u**2) / (2 * width**2)) * law.pdf(u), -15, 15, limit=200)[0]

    slow = (1 - lam) * smooth(0, math.sqrt(2) * scale) - 2 * lam * smooth(mean - target, scale) + 3 * lam - 1
    args = torch.tensor([[mean], [scale], [target]], dtype=torch.float64)
    assert gaussian_kernel_score(*args, bandwidth=width, lam=lam).item() == pytest.approx(slow, abs=1e-7)


def test_gaussian_kernel_score_multiplies_over_coordinates():
    mean, scale, target, _ = forecast(2, 3)
    whole = gaussian_kernel_score(mean, scale, target, bandwidth=1.3)
    parts = [
        1.3 / math.sqrt(1.3**2 + s**2) * math.exp(-((m - t) ** 2) / (2 * (1.3**2 + s**2)))
        for m, s, t in zip(mean[0].tolist(), scale[0].tolist(), target[0].tolist(), strict=True)
    ]
    pairs = [1.3 / math.sqrt(1.3**2 + 2 * s**2) for s in scale[0].tolist()]
    assert whole[0].item() == pytest.approx(0.5 * math.prod(pairs) - math.prod(parts) + 0.5, rel=1e-12)


def test_the_approximation_is_as_good_as_documented():
    for d, tolerance in [(64, 1e-5), (256, 1e-6)]:
        for offset in (0.0, 0.2, 3.0):
            mean = torch.full((d,), offset, dtype=torch.float64)
            one, zero = torch.ones_like(mean), torch.zeros_like(mean)
            exact = expected_distance(offset * math.sqrt(d), 1.0, d, 1.0)
            exact -= 0.5 * expected_distance(0.0, math.sqrt(2), d, 1.0)
            close = approximate_energy_score(mean, one, zero).item()
            assert close == pytest.approx(exact, abs=tolerance * math.sqrt(d * (1 + offset**2)))
    # One coordinate: E|N(0, 1)| is 0.798, its second-order approximation 0.75.
    rough = approximate_energy_score(torch.zeros(1), torch.ones(1), torch.zeros(1), lam=0.5).item()
    assert rough == pytest.approx(0.75 * (1 - math.sqrt(0.5)), rel=1e-6)


def test_scoringrules_agrees():
    samples, target = draw(6, 7, 3), draw(7, 3, seed=1)
    arrays, options = (target.numpy(), samples.numpy()), {"m_axis": 0, "v_axis": -1, "estimator": "fair"}
    fair = scoringrules.es_ensemble(*arrays, **options, backend="numpy")
    np.testing.assert_allclose(energy_score(samples, target).numpy(), fair, rtol=1e-12)
    kernel = scoringrules.gksmv_ensemble(*arrays, **options, backend="numpy")
    np.testing.assert_allclose(kernel_score(samples, target, bandwidth=1.0).numpy(), kernel, rtol=1e-10)
    mean, scale = draw(7, 3, seed=2), draw(7, 3, seed=3).abs()
    crps = scoringrules.crps_normal(target.numpy(), mean.numpy(), scale.numpy(), backend="numpy").mean(-1)
    np.testing.assert_allclose(gaussian_crps(mean, scale, target).numpy(), crps, rtol=1e-10)
    mixture = scoringrules.crps_mixnorm(target[:, 0].numpy(), mean.numpy(), scale.numpy(), m_axis=-1, backend="numpy")
    ours = gaussian_mixture_crps(mean.T[..., None], scale.T[..., None], target[:, :1])
    np.testing.assert_allclose(ours.numpy(), mixture, rtol=1e-10)


RULES = {
    "energy": lambda m, s, t: energy_score(m + s * draw(4, *m.shape, seed=9), t, beta=1.3, lam=0.6),
    "kernel": lambda m, s, t: kernel_score(m + s * draw(4, *m.shape, seed=9), t, bandwidth=1.5, lam=0.6),
    "paired": lambda m, s, t: gaussian_energy_score(m, s, t, beta=0.7, noise=draw(2, *m.shape, seed=9)),
    "plain": lambda m, s, t: gaussian_energy_score(
        m, s, t, samples=3, antithetic=False, noise=draw(3, *m.shape, seed=9)
    ),
    "crps": lambda m, s, t: gaussian_crps(m, s, t, lam=0.4),
    "mixture": lambda m, s, t: gaussian_mixture_crps(m, s, t[0], lam=0.6),
    "closed kernel": lambda m, s, t: gaussian_kernel_score(m, s, t, bandwidth=1.5, lam=0.4),
    "approximate": lambda m, s, t: approximate_energy_score(m, s, t, lam=0.4),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("d", [2, 20])
def test_gradcheck(rule, d):
    mean, scale, target = draw(3, d), draw(3, d, seed=1).abs() + 0.1, draw(3, d, seed=2)
    inputs = tuple(x.requires_grad_() for x in (mean, scale, target))
    assert torch.autograd.gradcheck(RULES[rule], inputs)


def test_gradient_of_the_noise():
    mean, scale, target, noise = forecast(3, 4)
    noise.requires_grad_()
    assert torch.autograd.gradcheck(lambda e: gaussian_energy_score(mean, scale, target, noise=e), (noise,))


@pytest.mark.parametrize("beta", [0.5, 1.0, 1.5])
def test_gradient_of_the_u_statistic_equals_the_formula(beta):
    lam, r = 0.45, 5
    mean, scale, target, eps = draw(3), draw(3, seed=1).abs(), draw(3, seed=2), draw(r, 3, seed=3)
    mean.requires_grad_()
    scale.requires_grad_()
    energy_score(mean + scale * eps, target, beta=beta, lam=lam).backward()
    with torch.no_grad():
        u = mean + scale * eps - target
        w = scale * (eps[:, None] - eps)
        pull = u.norm(dim=-1, keepdim=True) ** (beta - 2) * u
        length = w.norm(dim=-1, keepdim=True)
        push = torch.where(length > 0, length, 1.0) ** (beta - 2) * w * (eps[:, None] - eps)
        to_mean = 2 * lam * beta / r * pull.sum(0)
        to_scale = 2 * lam * beta / r * (pull * eps).sum(0) - (1 - lam) * beta / (r * (r - 1)) * push.sum((0, 1))
    assert torch.allclose(mean.grad, to_mean, rtol=1e-9)
    assert torch.allclose(scale.grad, to_scale, rtol=1e-9)


def test_median_bandwidth_is_the_median_distance_without_gradient():
    target = draw(2, 3, 4).requires_grad_()
    points = target.detach().reshape(6, 4)
    distances = sorted((points[i] - points[j]).norm().item() for i in range(6) for j in range(i))
    width = median_bandwidth(target)
    assert width.item() == pytest.approx(distances[7])  # of 15
    assert not width.requires_grad
    samples = draw(4, 2, 3, 4, seed=1)
    with_median = kernel_score(samples, target, bandwidth=None)
    assert torch.equal(with_median, kernel_score(samples, target, bandwidth=width))


def test_small_dimensions_stay_exact_in_float32():
    # |D + x|^2 is 6e-8 of sums of size 4: in float32 only rounding error.
    mean, target = torch.tensor([1.0, 1.0]), torch.tensor([0.0, 0.0])
    noise = torch.tensor([[-1.0 + 2.0**-12, -1.0]])
    score = gaussian_energy_score(mean, torch.ones(2), target, samples=1, antithetic=False, noise=noise, lam=0.9999)
    pair = 1e-4 * math.sqrt(2) * noise.double().norm().item()
    assert score.item() == pytest.approx(2 * 0.9999 * 2.0**-12 - pair, rel=1e-6)


def test_one_far_sample_does_not_hide_the_others():
    """In float32, the distances of the others vanish next to |z|^2 of the far one."""
    samples = 0.05 * torch.randn(20, 64, generator=torch.Generator().manual_seed(0))
    samples[0] += 1000
    target = torch.zeros(64)
    for score in (energy_score, partial(energy_score, beta=0.5), partial(kernel_score, bandwidth=1.0)):
        exact = score(samples.double(), target.double()).item()
        assert score(samples, target).item() == pytest.approx(exact, rel=1e-5)
