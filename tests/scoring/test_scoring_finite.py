"""Finite values and gradients of all rules for random shapes, dtypes, betas and lams (hypothesis)."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prosmin.scoring import (
    energy_score,
    gaussian_energy_score,
    gaussian_mixture_crps,
    kernel_score,
    noise_count,
    view_scores,
)
from prosmin.scoring.objective import TABLE

SIZES = st.sampled_from([0.0, 1e-30, 1e-12, 1e-4, 1.0, 1e4])  # of means, scales, targets: none to far apart
LAMS = st.floats(0.01, 0.99)
BETAS = st.floats(0.05, 2.0)
DTYPES = st.sampled_from([torch.float32, torch.float64])
# No deadline: the first call of an operator is slow, and the machine may be busy.
RUNS = settings(max_examples=120, deadline=None, derandomize=True)


def draw(shape, size, dtype, seed):
    return (size * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)


def assert_finite(score, *inputs):
    assert score.isfinite().all()
    score.sum().backward()
    for tensor in inputs:
        assert tensor.grad.isfinite().all()


@RUNS
@given(
    row=st.sampled_from(TABLE), sizes=st.tuples(SIZES, SIZES, SIZES), beta=BETAS, lam=LAMS, dtype=DTYPES,
    shape=st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 3), st.integers(1, 20)),
    half=st.integers(1, 3), antithetic=st.booleans(), absolute=st.booleans(),
    bandwidth=st.sampled_from([None, 1e-3, 1.0]), seed=st.integers(0, 99),
)  # fmt: skip
def test_training_path(row, shape, sizes, beta, lam, dtype, half, antithetic, absolute, bandwidth, seed):
    V, G, B, K = shape
    mean = draw((V, B, K), sizes[0], dtype, seed).requires_grad_()
    scale = draw((V, B, K), sizes[1], dtype, seed + 1).abs().requires_grad_()
    target = draw((G, B, K), sizes[2], dtype, seed + 2)
    if row.rule == "kernel" and G * B < 2:
        bandwidth = 1.0  # the median needs two targets
    count = noise_count(row.estimator, 2 * half, antithetic)
    noise = draw((V, B, count, K), 1.0, dtype, seed + 3) if count else None
    score = view_scores(
        mean, scale, target, rule=row.rule, norm=row.norm, pairs=row.pairs, estimator=row.estimator,
        beta=beta if row.any_beta else 1.0, lam=lam, samples=2 * half, antithetic=antithetic,
        absolute=absolute, bandwidth=bandwidth, noise=noise,
    )  # fmt: skip
    assert score.dtype == dtype
    assert score.shape == (1 if row.pairs == "pooled" else V, G, B)
    assert_finite(score, mean, scale)


@RUNS
@given(
    lead=st.lists(st.integers(1, 3), max_size=3), d=st.integers(1, 20), r=st.integers(2, 5),
    sizes=st.tuples(SIZES, SIZES), beta=BETAS, lam=LAMS, dtype=DTYPES,
    rule=st.sampled_from(["energy", "kernel", "gaussian", "mixture"]), seed=st.integers(0, 99),
)  # fmt: skip
def test_direct_functions(lead, d, r, sizes, beta, lam, dtype, rule, seed):
    samples = draw((r, *lead, d), sizes[0], dtype, seed).requires_grad_()
    target = draw((*lead, d), sizes[1], dtype, seed + 1).requires_grad_()
    if rule == "energy":
        score = energy_score(samples, target, beta=beta, lam=lam)
    elif rule == "kernel":
        score = kernel_score(samples, target, bandwidth=0.5, lam=lam)
    elif rule == "gaussian":
        noise = draw((2, *lead, d), 1.0, dtype, seed + 2)
        score = gaussian_energy_score(samples[0], samples[1].abs(), target, beta=beta, lam=lam, noise=noise)
    else:
        score = gaussian_mixture_crps(samples, samples.abs(), target, lam=lam)
    assert score.dtype == dtype
    assert score.shape == tuple(lead)
    assert_finite(score, samples, target)
