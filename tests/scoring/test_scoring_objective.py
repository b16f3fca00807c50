"""Checks of settings and tensors: errors, warnings, and what they name."""

import contextlib
import itertools
import warnings

import numpy as np
import pytest
import torch

from prosmin.errors import UsageError
from prosmin.scoring import (
    ProprietyWarning,
    check_objective,
    energy_score,
    gaussian_crps,
    gaussian_energy_score,
    gaussian_kernel_score,
    gaussian_mixture_crps,
    kernel_score,
    median_bandwidth,
    noise_count,
    propriety,
)
from prosmin.scoring.objective import ESTIMATORS, NORMS, TABLE
from prosmin.scoring.propriety import PAIRS, RULES

DEFAULT = {"rule": "energy", "norm": "euclidean", "pairs": "within", "estimator": "paired", "beta": 1.0,
           "lam": 0.5, "samples": 4, "antithetic": True, "same_view": True,
           "bandwidth": None, "force": False}  # fmt: skip
RELEASE = {"norm": "coordinate", "estimator": "ustat"}
PAPER = {"pairs": "pooled", "estimator": "ustat"}


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_every_row_of_the_table_is_accepted(row):
    names = {"rule": row.rule, "norm": row.norm, "pairs": row.pairs, "estimator": row.estimator}
    sampled_pool = row.pairs == "pooled" and row.estimator == "ustat"
    expected = pytest.warns(ProprietyWarning, match="apart") if sampled_pool else contextlib.nullcontext()
    with expected:
        check_objective(**(DEFAULT | names))
    if not row.any_beta:
        expected = pytest.raises(UsageError, match=r"beta 1\.5.*beta 1\.$")
    elif sampled_pool:
        expected = pytest.warns(ProprietyWarning)
    with expected:
        check_objective(**(DEFAULT | names | {"beta": 1.5}))


def test_everything_else_is_refused_with_a_row_that_works():
    rows = {(row.rule, row.norm, row.pairs, row.estimator) for row in TABLE}
    refused = 0
    for rule, norm, pairs, estimator in itertools.product(RULES, NORMS, PAIRS, ESTIMATORS):
        if (rule, norm, pairs, estimator) in rows:
            continue
        refused += 1
        with pytest.raises(UsageError) as caught:
            check_objective(**(DEFAULT | {"rule": rule, "norm": norm, "pairs": pairs, "estimator": estimator}))
        offer = str(caught.value).split(" can: ")[1].rstrip(".")
        assert offer in [str(row) for row in TABLE]
        assert offer.startswith(f"rule {rule}, ")  # the rule is the most important setting
    assert refused == 36 - len(TABLE)


@pytest.mark.parametrize("settings", [{}, RELEASE])
def test_the_settings_of_the_recipes_pass_without_a_warning(settings):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_objective(**(DEFAULT | settings))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"beta": 0.0}, "loss.beta is 0; allowed: above 0 and at most 2"),
        ({"beta": 2.1}, "loss.beta is 2.1; allowed"),
        ({"lam": 0.0}, "loss.lam is 0; allowed: above 0 and below 1"),
        ({"lam": 1.0}, "loss.lam is 1; allowed"),
        ({"lam": float("nan")}, "loss.lam is nan; allowed"),
        ({"samples": 1, "estimator": "ustat"}, "loss.samples is 1; allowed: 2 or more"),
        ({"samples": 3}, "loss.samples is 3; allowed: an even number"),
        ({"samples": 0, "antithetic": False}, "loss.samples is 0; allowed: 1 or more"),
        ({"rule": "kernel", "bandwidth": 0.0}, "loss.bandwidth is 0; allowed: a finite number above 0"),
        ({"rule": "kernel", "bandwidth": -1.0}, "loss.bandwidth is -1; allowed"),
        ({"rule": "log"}, "loss.rule is 'log'; allowed: energy, crps, kernel"),
        (PAPER | {"same_view": False}, "loss.same_view is false with loss.pairs pooled"),
        ({"pairs": "pooled"}, "pairs pooled, estimator paired, .*pairs pooled, estimator ustat"),
        ({"rule": "crps"}, "can: rule crps, norm coordinate, pairs within, estimator closed"),
        ({"estimator": "closed", "beta": 1.5}, "can: .*estimator closed, beta 1"),
        ({"lam": 0.41}, r"at or below 0\.4142: the score has no minimum.*loss.force"),
        ({"lam": 0.41, "estimator": "ustat"}, "no minimum"),
        ({"beta": 2.0}, "does not identify the scale.*loss.force"),
        ({"rule": "kernel", "lam": 0.49}, r"lam 0\.49 is below 0\.5"),
        (PAPER | {"lam": 0.49, "views": 18}, "no minimum, the views or their scales move"),
        (PAPER | {"beta": 1.9, "samples": 2}, "no minimum"),
    ],
)  # fmt: skip
def test_bad_settings_are_named(change, words):
    with pytest.raises(UsageError, match=words):
        check_objective(**(DEFAULT | change))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lam": 0.45}, r"^lam 0\.45: the learned scale will be 1\.72 times the true spread\.$"),
        ({"lam": 0.6}, r"^lam 0\.6: the learned scale will be 0\.535 times"),
        ({"rule": "kernel", "lam": 0.6}, "below the true spread"),
        ({"lam": 0.41, "force": True}, "no minimum"),
        ({"beta": 2.0, "force": True}, "does not identify the scale"),
        (PAPER | {"lam": 0.48, "views": 2}, "where all views agree"),
    ],
)
def test_warnings_say_what_will_be_learned(change, words):
    with pytest.warns(ProprietyWarning, match=words):
        check_objective(**(DEFAULT | change))


def test_the_threshold_itself_is_refused_and_the_next_number_is_not():
    edge = propriety(1.0, 0.5).threshold
    with pytest.raises(UsageError, match="no minimum"):
        check_objective(**(DEFAULT | {"lam": edge}))
    with pytest.warns(ProprietyWarning, match="times the true spread"):
        check_objective(**(DEFAULT | {"lam": edge + 1e-9}))


def test_one_plain_sample_is_enough_for_the_paired_estimator():
    check_objective(**(DEFAULT | {"samples": 1, "antithetic": False}))


def test_noise_count():
    assert noise_count("paired", 4, antithetic=True) == 2
    assert noise_count("paired", 3, antithetic=False) == 3
    assert noise_count("ustat", 4, antithetic=True) == 4
    assert noise_count("closed", 4, antithetic=True) == 0


GOOD = {"mean": torch.ones(4, 3), "scale": torch.ones(4, 3), "target": torch.zeros(4, 3)}
FORECASTS = {
    "energy": gaussian_energy_score,
    "crps": gaussian_crps,
    "kernel": lambda mean, scale, target, **rest: gaussian_kernel_score(mean, scale, target, bandwidth=1.0, **rest),
}


def spoiled(value):
    tensor = torch.ones(4, 3)
    tensor[1, 2] = value
    return tensor


@pytest.mark.parametrize("rule", FORECASTS)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scale": torch.ones(4, 2)}, r"scale has shape \(4, 2\); allowed: \(4, 3\), to match mean"),
        ({"target": torch.ones(3)}, r"target has shape \(3,\); allowed: \(4, 3\)"),
        ({"mean": spoiled(float("nan"))}, r"mean of shape \(4, 3\) has 1 values .* \(nan\) at \(1, 2\)"),
        ({"target": spoiled(float("inf"))}, r"target of shape \(4, 3\) has 1 values .* \(inf\)"),
        ({"scale": spoiled(-0.5)}, r"scale .* -0\.5; allowed: 0 or more"),
        ({"mean": torch.ones(0, 3)}, r"mean has shape \(0, 3\); allowed: at least one item"),
        ({"mean": torch.ones(4, 3, dtype=torch.int64)}, r"mean has dtype torch.int64; allowed: floating point"),
        ({"mean": np.ones((4, 3))}, r"mean is of type ndarray; allowed: .*torch\.as_tensor\(mean\)"),
        ({"target": [1.0, 2.0]}, "target is of type list; allowed: a torch tensor"),
        ({"lam": 1.5}, r"lam is 1\.5; allowed"),
    ],
)
def test_bad_forecasts_are_named(rule, change, words):
    with pytest.raises(UsageError, match=words):
        FORECASTS[rule](**(GOOD | change))


def test_values_are_not_checked_without_validate():
    bad = GOOD | {"mean": spoiled(float("nan"))}
    for rule in FORECASTS.values():
        assert rule(**bad, validate=False).isnan().sum() == 1
    with pytest.raises(UsageError, match="scale has shape"):
        gaussian_crps(torch.ones(4, 3), torch.ones(4, 2), torch.ones(4, 3), validate=False)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: energy_score(torch.ones(1, 4, 3), torch.ones(4, 3)), "samples is 1; allowed: 2 or more"),
        (lambda: energy_score(torch.ones(5, 4, 2), torch.ones(4, 3)), r"samples has shape \(5, 4, 2\)"),
        (lambda: energy_score(torch.ones(5, 0, 3), torch.ones(0, 3)), r"target has shape \(0, 3\)"),
        (lambda: energy_score(spoiled(float("nan"))[:, None], torch.ones(1, 3)), "samples of shape"),
        (lambda: energy_score(torch.ones(5, 4, 3), torch.ones(4, 3), beta=3.0), "beta is 3"),
        (lambda: kernel_score(torch.ones(5, 4, 3), torch.ones(4, 3), bandwidth=0.0), "bandwidth is 0"),
        (lambda: kernel_score(torch.ones(5, 3), torch.ones(3), bandwidth=None), r"target has shape \(3,\)"),
        (lambda: kernel_score(torch.ones(5, 4, 3), torch.ones(4, 3), bandwidth=None), "targets are equal"),
        (lambda: median_bandwidth(torch.ones(0, 3)), r"target has shape \(0, 3\); allowed: at least one item"),
        (lambda: median_bandwidth(torch.ones(())), r"target has shape \(\); allowed: at least one item"),
        (lambda: median_bandwidth(torch.ones(1, 3)), r"target has shape \(1, 3\); give a bandwidth, or two targets"),
        (lambda: median_bandwidth(torch.ones(4, 3)), "all targets are equal"),
        (lambda: median_bandwidth(np.ones((4, 3))), "target is of type ndarray"),
        (lambda: energy_score(np.ones((5, 4, 3)), torch.ones(4, 3)), "samples is of type ndarray"),
        (lambda: gaussian_energy_score(**GOOD, samples=3), "samples is 3; allowed: an even number"),
        (lambda: gaussian_energy_score(**GOOD, noise=torch.ones(4, 4, 3)), r"noise has shape \(4, 4, 3\)"),
        (
            lambda: gaussian_energy_score(**GOOD, noise=torch.ones(2, 4, 3), generator=torch.Generator()),
            "Both noise and generator",
        ),
        (
            lambda: gaussian_mixture_crps(torch.ones(2, 4, 3), torch.ones(2, 4, 3), torch.ones(2, 4, 3)),
            r"target has shape \(2, 4, 3\); allowed: \(4, 3\)",
        ),
    ],
)
def test_bad_calls_are_named(call, words):
    with pytest.raises(UsageError, match=words):
        call()


def test_the_generator_decides_the_draw():
    scores = [gaussian_energy_score(**GOOD, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])
