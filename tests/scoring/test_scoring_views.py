"""The training path: the same numbers as the public functions, in every precision, compiled and not."""

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
    median_bandwidth,
    noise_count,
    view_scores,
)
from prosmin.scoring.objective import TABLE

V, G, B = 3, 2, 4
DEFAULT = {"rule": "energy", "norm": "euclidean", "pairs": "within", "estimator": "paired", "beta": 1.0,
           "lam": 0.5, "samples": 4, "antithetic": True, "absolute": False, "bandwidth": None}  # fmt: skip


def inputs(K, *, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    mean, scale = (torch.randn(V, B, K, generator=g, dtype=dtype) for _ in range(2))
    return mean, scale.abs(), torch.randn(G, B, K, generator=g, dtype=dtype)


def draw_noise(K, settings, *, dtype=torch.float64):
    count = noise_count(settings["estimator"], settings["samples"], settings["antithetic"])
    g = torch.Generator().manual_seed(9)
    return torch.randn(V, B, count, K, generator=g, dtype=dtype) if count else None


def row_settings(row):
    names = {name: getattr(row, name) for name in ("rule", "norm", "pairs", "estimator")}
    return DEFAULT | names | {"beta": 1.5 if row.any_beta else 1.0}


def direct(mean, scale, target, noise, row, settings):
    """The score of one view (pooled pairs: of all) and one target, by the function a user would call."""
    beta, lam, width = settings["beta"], settings["lam"], settings["bandwidth"]
    if row.estimator == "paired":
        if row.rule == "kernel" or row.norm == "coordinate":
            return None  # only in training; test_scoring_estimators.py tests its expectation
        return gaussian_energy_score(mean, scale, target, beta=beta, lam=lam, noise=noise.movedim(-2, 0))
    if row.estimator == "ustat":
        if row.norm == "coordinate":
            return None
        samples = mean[..., None, :] + scale[..., None, :] * noise
        samples = samples.movedim(-2, 0)
        samples = samples.flatten(0, 1) if row.pairs == "pooled" else samples
        if row.rule == "kernel":
            return kernel_score(samples, target, bandwidth=width, lam=lam)
        return energy_score(samples, target, beta=beta, lam=lam)
    if row.pairs == "pooled":
        return gaussian_mixture_crps(mean, scale, target, lam=lam) if row.norm == "coordinate" else None
    if row.rule == "kernel":
        return gaussian_kernel_score(mean, scale, target, bandwidth=width, lam=lam)
    function = gaussian_crps if row.norm == "coordinate" else approximate_energy_score
    return function(mean, scale, target, lam=lam)


@pytest.mark.parametrize("row", TABLE, ids=str)
@pytest.mark.parametrize("K", [3, 40])
def test_every_row_equals_the_public_function(row, K):
    mean, scale, target = inputs(K)
    settings = row_settings(row) | {"lam": 0.6, "bandwidth": 2.0}
    noise = draw_noise(K, settings)
    found = view_scores(mean, scale, target, noise=noise, **settings)
    assert found.shape == ((1 if row.pairs == "pooled" else V), G, B)
    for v in range(len(found)):
        for g in range(G):
            at = slice(None) if row.pairs == "pooled" else v
            expected = direct(mean[at], scale[at], target[g], None if noise is None else noise[at], row, settings)
            if expected is not None:
                assert torch.allclose(found[v, g], expected, rtol=1e-9)
    flipped = view_scores(mean, scale, target, noise=noise, **(settings | {"absolute": True}))
    assert torch.equal(flipped, found.abs())


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_a_forecast_without_spread_is_scored_by_its_distance(row):
    mean, _, target = inputs(24)
    mean, zero = mean.requires_grad_(), torch.zeros_like(mean).requires_grad_()
    settings = row_settings(row) | {"bandwidth": 2.0}
    found = view_scores(mean, zero, target, noise=draw_noise(24, settings), **settings)
    if row.pairs == "within":
        gap = mean.detach()[:, None] - target
        distance = (gap.abs() ** settings["beta"]).mean(-1)
        if row.norm == "euclidean":
            distance = gap.norm(dim=-1) ** settings["beta"]
        if row.rule == "kernel":
            distance = 1 - torch.exp(-gap.square().sum(-1) / 8)
        assert torch.allclose(found, distance, rtol=1e-6)
    found.sum().backward()
    assert mean.grad.isfinite().all()
    assert zero.grad.isfinite().all()


@pytest.mark.parametrize("row", TABLE, ids=str)
@pytest.mark.parametrize("name", ["mean", "scale", "target"])
def test_nan_is_not_hidden(row, name):
    tensors = dict(zip(("mean", "scale", "target"), inputs(24), strict=True))
    tensors[name][0, 1, 5] = float("nan")
    settings = row_settings(row) | {"bandwidth": 2.0}
    found = view_scores(**tensors, noise=draw_noise(24, settings), **settings)
    assert found[0, 0, 1].isnan()
    assert found[..., 2:].isfinite().all()


@pytest.mark.parametrize("row", TABLE, ids=str)
@pytest.mark.parametrize("K", [3, 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_at_distance_zero_the_gradient_is_zero(row, K, dtype):
    target = torch.ones(G, B, K, dtype=dtype)
    mean = torch.ones(V, B, K, dtype=dtype, requires_grad=True)
    scale = torch.zeros(V, B, K, dtype=dtype, requires_grad=True)
    settings = row_settings(row) | {"bandwidth": 2.0}
    if row.any_beta:
        settings["beta"] = 0.5  # the steepest at 0
    found = view_scores(mean, scale, target, noise=draw_noise(K, settings, dtype=dtype), **settings)
    assert found.abs().max() < 1e-7
    found.sum().backward()
    assert mean.grad.abs().max() < 1e-6
    assert scale.grad.isfinite().all()


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_autocast_and_bfloat16_accumulate_in_float32(row):
    K = 64
    mean, scale, target = (x.bfloat16() for x in inputs(K))
    settings = row_settings(row)
    noise = draw_noise(K, settings, dtype=torch.float32)
    noise = None if noise is None else noise.bfloat16()
    wide = None if noise is None else noise.double()
    exact = view_scores(mean.double(), scale.double(), target.double(), noise=wide, **settings)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = view_scores(mean, scale, target, noise=noise, **settings)
    assert found.dtype == torch.float32
    # Products in bfloat16 would be off by 1e-3 and more.
    assert torch.allclose(found.double(), exact, rtol=2e-5, atol=2e-6)


def test_gradients_of_bfloat16_inputs_come_back_in_bfloat16():
    mean, scale, target = (x.bfloat16() for x in inputs(32))
    mean.requires_grad_()
    view_scores(mean, scale, target, noise=draw_noise(32, DEFAULT), **DEFAULT).sum().backward()
    assert mean.grad.dtype == torch.bfloat16
    assert mean.grad.isfinite().all()


def test_noise_in_another_memory_order_gives_the_same_gradient():
    grads = []
    for transposed in (False, True):
        mean, scale, target = inputs(20)
        noise = draw_noise(20, DEFAULT)
        if transposed:  # position by position, as prosmin.randomness draws them
            noise = noise.transpose(0, 1).contiguous().transpose(0, 1)
            mean, scale = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in (mean, scale))
        mean.requires_grad_()
        scale.requires_grad_()
        view_scores(mean, scale, target, noise=noise, **DEFAULT).sum().backward()
        grads.append((mean.grad, scale.grad))
    for one, other in zip(*grads, strict=True):
        assert torch.allclose(one, other, rtol=1e-12)


def test_the_median_bandwidth_is_that_of_all_targets():
    mean, scale, target = inputs(8)
    settings = DEFAULT | {"rule": "kernel", "estimator": "closed"}
    automatic = view_scores(mean, scale, target, noise=None, **settings)
    given = view_scores(mean, scale, target, noise=None, **(settings | {"bandwidth": median_bandwidth(target).item()}))
    assert torch.allclose(automatic, given, rtol=1e-12)


@pytest.mark.parametrize("row", [TABLE[i] for i in (0, 3, 10, 12)], ids=str)  # a row of each kind of arithmetic
def test_one_graph_and_the_same_numbers_when_compiled(row):
    """Traced without a graph break; the aot_eager backend runs the traced graph without compiling C++."""
    mean, scale, target = inputs(24)
    settings = row_settings(row)
    noise = draw_noise(24, settings)

    def loss(mean, scale):
        return view_scores(mean, scale, target, noise=noise, **settings)

    results = []
    for function in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
        m, s = mean.clone().requires_grad_(), scale.clone().requires_grad_()
        found = function(m, s)
        found.square().sum().backward()
        results.append((found.detach(), m.grad, s.grad))
    torch._dynamo.reset()
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scale": (V, B, 5)}, r"scale has shape \(3, 4, 5\); allowed: \(3, 4, 6\)"),
        ({"target": (G, B + 1, 6)}, r"target has shape \(2, 5, 6\)"),
        ({"mean": (V, 6)}, r"mean has shape \(3, 6\); allowed: \(views, batch, K\)"),
        ({"mean": (V, 0, 6)}, r"mean has shape \(3, 0, 6\); allowed: at least one item"),
        ({"noise": (V, B, 4, 6)}, r"noise has shape \(3, 4, 4, 6\); allowed: \(3, 4, 2, 6\)"),
    ],
)
def test_wrong_shapes_are_named(change, words):
    shapes = {"mean": (V, B, 6), "scale": (V, B, 6), "target": (G, B, 6), "noise": (V, B, 2, 6)} | change
    with pytest.raises(UsageError, match=words):
        view_scores(**{name: torch.ones(shape) for name, shape in shapes.items()}, **DEFAULT)


def test_missing_superfluous_and_impossible_noise():
    ones, target = torch.ones(V, B, 6), torch.ones(G, B, 6)
    with pytest.raises(UsageError, match=r"noise is none; allowed: shape \(3, 4, 2, 6\)"):
        view_scores(ones, ones, target, noise=None, **DEFAULT)
    with pytest.raises(UsageError, match=r"noise has shape \(3, 4, 2, 6\); allowed: none"):
        view_scores(ones, ones, target, noise=torch.ones(V, B, 2, 6), **(DEFAULT | {"estimator": "closed"}))
    with pytest.raises(UsageError, match="estimator is paired with loss"):
        view_scores(ones, ones, target, noise=torch.ones(V, B, 2, 6), **(DEFAULT | {"pairs": "pooled"}))
