"""Health: the numbers of known spectra, verdicts, and when a run is reported."""

import json
import math
from pathlib import Path

import pytest
import torch

from prosmin.models.whitening import Whitening
from prosmin.training import health
from tiny_methods import tiny_method

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_effective_rank_of_known_spectra():
    """RankMe of n equal directions is n; of one direction 1."""
    assert float(health.effective_rank(torch.eye(6))) == pytest.approx(6.0, rel=1e-5)
    assert float(health.effective_rank(torch.ones(8, 4))) == pytest.approx(1.0, rel=1e-4)
    unequal = torch.diag(torch.tensor([3.0, 1.0]))  # shares 3/4 and 1/4
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert float(health.effective_rank(unequal)) == pytest.approx(math.exp(entropy), rel=1e-5)


def test_skill_against_climatology():
    """0 for a forecast that ignores the image, 1 for a perfect one, in between for one that explains part."""
    random = torch.Generator().manual_seed(0)
    seen = torch.randn(2, 512, 64, generator=random)
    none = health.climatology_skill(torch.zeros_like(seen), torch.ones_like(seen), seen)
    perfect = health.climatology_skill(seen.flip(0), torch.zeros_like(seen), seen)
    assert float(none) == pytest.approx(0.0, abs=0.005)  # mean and deviation of 1,024 rows are not quite 0 and 1
    assert float(perfect) == pytest.approx(1.0, abs=1e-5)
    # Correlation .8 between views: the best forecast has mean .8 z and scale .6, and skill 1 - .6.
    pair = torch.cat([seen[:1], 0.8 * seen[:1] + 0.6 * seen[1:]])
    part = health.climatology_skill(0.8 * pair, torch.full_like(pair, 0.6), pair)
    assert float(part) == pytest.approx(0.4, abs=0.01)


@pytest.mark.parametrize("variance", [1e-4, 0.03, 1.0, 5.0])
def test_a_forecast_that_ignores_the_image_has_no_skill_whatever_the_variance(variance):
    """Against N(0, I) it was .60 at a variance of .03."""
    seen = 0.1 + variance**0.5 * torch.randn(2, 256, 64, generator=torch.Generator().manual_seed(0))
    forecast = torch.full_like(seen, 0.1), torch.full_like(seen, variance**0.5)
    assert float(health.climatology_skill(*forecast, seen)) == pytest.approx(0.0, abs=0.005)


def test_a_constant_target_gives_a_finite_skill():
    constant = torch.zeros(2, 8, 16)
    assert health.climatology_skill(constant, torch.ones_like(constant), constant).isfinite()


def test_a_singular_target_gives_numbers_and_a_verdict():
    """Outputs of rank 2 in 16 dimensions."""
    random = torch.Generator().manual_seed(0)
    raw = torch.randn(2, 64, 2, generator=random) @ torch.randn(2, 16, generator=random)
    whitening = Whitening(16, momentum=0.0, eps=1e-3)
    whitening.update(whitening.batch_statistics(raw))
    observed = {"whitened": whitening(raw), "scored": whitening(raw), "mean": torch.zeros_like(raw)}
    observed |= {"scale": torch.ones_like(raw), "target": raw, "features": torch.randn(128, 16, generator=random)}
    found = health.numbers(health.measure(observed))
    assert all(math.isfinite(value) for value in found.values())
    assert found["target_rank"] < 2.1
    assert found["whitened_variance"] == pytest.approx(2 / 16, rel=0.02)
    assert health.verdict([{"step": 1, "loss": 1.0, **found}]).startswith("singular")


def test_target_std_is_over_images_not_views():
    target = torch.tensor([[[0.0], [2.0]], [[10.0], [12.0]]])  # two views far apart, images 2 apart in each
    assert float(health.target_std(target)) == pytest.approx(math.sqrt(2.0))


def rows(**columns):
    length = len(next(iter(columns.values())))
    return [{"step": 10 * (i + 1), **{name: values[i] for name, values in columns.items()}} for i in range(length)]


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        ([], ["no steps yet"]),
        ([{"step": 1, "loss": 2.0}], ["unknown", "neither features nor targets"]),
        (rows(target_std=[0.05, 0.05], feature_rank=[20.0, 24.0]), ["healthy", "target std 0.050", "rank 24"]),
        (
            rows(target_std=[0.05, 1e-4, 1e-4], feature_rank=[9.0, 8.0, 8.0]),
            ["collapsing", "since step 20", "optimizer.lr"],
        ),
        (rows(target_std=[0.05, 1e-4, 0.05], feature_rank=[9.0, 8.0, 8.0]), ["healthy"]),
        (rows(target_std=[0.05, 0.05], feature_rank=[40.0, 1.2]), ["collapsing"]),
        (rows(target_std=[0.05, 0.03], feature_rank=[43.4, 3.8]), ["shrinking", "3.8", "43.4", "optimizer.lr"]),
        (
            rows(target_std=[1.0], feature_rank=[43.4], whitened_variance=[0.21], target_rank=[3.2]),
            ["singular", "0.21", "rank 3", "heads.dim"],
        ),
        (rows(target_std=[1.0], feature_rank=[43.4], whitened_variance=[0.9], target_rank=[30.0]), ["healthy"]),
    ],
)
def test_verdicts(lines, parts):
    for part in parts:
        assert part in health.verdict(lines)


@pytest.mark.parametrize(
    ("losses", "diverges"),
    [
        ([3.7, 8e15, 3e18], True),
        ([3e18], True),  # a short run has one row
        ([3.7, math.nan], True),
        ([3.7, math.inf], True),
        ([0.02, 12.0], True),
        ([-13.0, 150.0], True),
        ([0.02, 9.0], False),  # a loss near 0 rises while targets spread
        ([3.7, 30.0], False),
        ([-13.0, -2.0, -130.0], False),  # a score without a minimum falls: another problem
        ([3.7, 900.0, 3.0], False),  # a spike that is over
    ],
)
def test_a_rising_loss_is_diverging(losses, diverges):
    size = len(losses)
    word = health.verdict(rows(loss=losses, target_std=[0.05] * size, feature_rank=[9.0] * size)).split(":")[0]
    assert word == ("diverging" if diverges else "healthy")


def test_advice_for_a_diverging_loss(tiny):
    lines = rows(loss=[3.7, 3e18], target_std=[0.05, 0.03])
    assert health.verdict(lines, tiny()) == "diverging: loss 3e+18, 3.7 at the start; lower optimizer.lr"
    assert health.verdict(lines, tiny(optimizer__clip="null")).endswith("lower optimizer.lr, or set optimizer.clip")


def test_no_published_run_is_called_diverging():
    paths = {
        path.name: json.loads(path.read_text()).get("health", {}).get("path", []) for path in RESULTS.glob("*-s0.json")
    }
    assert sum(map(bool, paths.values())) > 5
    assert [name for name, path in paths.items() if path and health.is_diverged(path)] == []


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        (
            {"loss__lam": "0.45", "heads__batchnorm": "false"},
            "raise loss.lam to 0.5, or turn on heads.batchnorm, or turn on heads.bottleneck_batchnorm, "
            "or lower optimizer.lr",
        ),
        ({"heads__bottleneck_batchnorm": "true", "heads__batchnorm": "true"}, "; lower optimizer.lr"),
        (
            {"heads__last": "none", "heads__batchnorm": "true"},
            "; set target.whitening to whiten, or turn on target.normalise, or lower optimizer.lr",
        ),
        ({"method__name": "dino", "heads__batchnorm": "false"}, "turn on heads.batchnorm, or lower optimizer.lr"),
        ({"method__name": "mocov3", "views__local": "0"}, "; lower optimizer.lr"),
    ],
)
def test_advice_names_fields_that_the_run_has(fields, advice):
    config = tiny_method(fields.pop("method__name", "prosmin"), **fields)
    assert health.verdict(rows(target_std=[1e-4], feature_rank=[8.0]), config).endswith(advice)


def test_a_collapse_counts_after_three_rows_and_is_reported_once(tiny):
    lines = rows(target_std=[0.05, 1e-4, 1e-4, 1e-4, 1e-4, 0.05, 1e-4, 1e-4, 1e-4], feature_rank=[9.0] * 9)
    watch = health.Watch(tiny(training__on_collapse="stop"), lines[:1])
    warned = []
    for line in lines[1:]:
        if sentence := watch.add(line):
            warned.append((line["step"], sentence))
        assert watch.gives_up == (line["step"] in (40, 50, 90))
    assert [step for step, _ in warned] == [40, 90]
    assert "since step 20" in warned[0][1]
    assert not health.Watch(tiny(), lines[1:4]).gives_up  # only warned by default


def test_a_shrinking_run_is_reported_and_again_when_it_gets_worse(tiny):
    ranks = [40.0, 30.0, 13.0, 12.0, 12.0, 11.0, 1.5, 9.0, 1.5, 1.5, 1.5, 1.5, 30.0, 30.0]
    watch = health.Watch(tiny(training__on_collapse="stop"), [])
    lines = rows(target_std=[0.05] * len(ranks), feature_rank=ranks)
    warned = {line["step"]: sentence for line in lines if (sentence := watch.add(line))}
    assert list(warned) == [50, 110]  # at 40 below 14 for the third time; then below 2
    assert warned[50].startswith("shrinking: feature rank 12.0, 40.0 at the start")
    assert warned[110].startswith("collapsing")
    watch = health.Watch(tiny(training__on_collapse="stop"), [])
    assert [line["step"] for line in lines if (watch.add(line), watch.gives_up)[1]] == [110, 120]


def test_a_diverging_run_is_reported(tiny):
    watch = health.Watch(tiny(), [])
    lines = rows(loss=[3.7, 3.0, 900.0, 1e6, 1e9, 1e12], target_std=[0.05] * 6, feature_rank=[9.0] * 6)
    assert [line["step"] for line in lines if watch.add(line)] == [50]


def test_of_the_published_runs_exactly_the_failed_ones_are_reported(tiny):
    """From their saved rows: a failed run is reported before its end, a healthy one never."""
    files = [json.loads(path.read_text()) for path in RESULTS.glob("cifar10-*-s0.json")]
    tried = [json.loads(line) for line in (RESULTS / "tuning-cifar10-h200.jsonl").read_text().splitlines()]
    paths = {run["name"]: run["health"]["path"] for run in files} | {
        run["name"]: run["path"] for run in tried if len(run.get("path", [])) > health.PATIENCE
    }
    assert len(paths) > 30
    for name, path in paths.items():
        watch = health.Watch(tiny(), [])
        warned = [line["step"] for line in path if watch.add(line)]
        ended_well = health.verdict(path).startswith("healthy")
        assert bool(warned) != ended_well, name
        assert ended_well or warned[0] < path[-1]["step"], name


def test_features_that_are_nan_have_rank_one_and_no_error():
    """The loss of the same step stops the run, with a message."""
    for side in (8, health.HOST_RANK + 1):
        features = torch.full((side, side), math.nan)
        assert health.numbers(health.measure({"features": features}))["feature_rank"] == pytest.approx(1.0)
