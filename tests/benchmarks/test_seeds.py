"""benchmarks/seeds.py and outcomes.py: intervals of differences hold, and files keep what they need."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from prosmin import config as configs

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))  # scripts, not a package

import evidence
import outcomes
import seeds


def test_what_is_packed_comes_back(tmp_path):
    random = np.random.default_rng(0)
    (tmp_path / "results").mkdir()
    made = {"correct": random.random(1003) < 0.8, "nll": random.exponential(size=1003)}
    for protocol in outcomes.KEPT:
        np.savez(tmp_path / "results" / f"{protocol}.npz", **made)
    found = json.loads(json.dumps(outcomes.read_outcomes(tmp_path)))
    assert found["images"] == 1003
    for protocol, names in outcomes.KEPT.items():
        for name in names:
            values = outcomes.unpack(found[protocol][name], 1003)
            np.testing.assert_allclose(values, made[name].astype(float), rtol=1e-3)


def simulate(random, *, images=400, runs=3, seed_sd=0.02, gap=0.0):
    """Two methods that answer the same images: their errors have a part that belongs to the image."""
    easy = random.normal(size=images)
    sides = []
    for mean in (0.5 + gap, 0.5):
        own = mean + seed_sd * random.normal(size=runs)
        sides.append([(easy + 0.5 * random.normal(size=images)) * 0.1 + value for value in own])
    return sides


@pytest.mark.parametrize("seed_sd", [0.0, 0.02])
def test_the_interval_of_a_difference_covers_it(seed_sd):
    """95 % nominal, 200 repetitions: fewer than 89 % happens by chance once in 5,000."""
    random = np.random.default_rng(1)
    found = [outcomes.compare(*simulate(random, seed_sd=seed_sd, gap=0.03), draws=200) for _ in range(200)]
    covered = np.mean([abs(each.mean - 0.03) <= each.half for each in found])
    assert covered > 0.89
    assert all((each.p < 0.05) == (abs(each.mean) > each.half) for each in found)


def test_pairs_of_images_count_and_seeds_widen_the_interval():
    one, two = simulate(np.random.default_rng(2), seed_sd=0.0, gap=0.02)
    paired = outcomes.compare(one, two)
    shuffled = [np.random.default_rng(3).permutation(x) for x in two]
    assert paired.half < 0.7 * outcomes.compare(one, shuffled).half
    apart = [x + shift for x, shift in zip(two, (-0.05, 0.0, 0.05), strict=True)]
    assert outcomes.compare(one, apart).half > 3 * paired.half
    same = outcomes.compare(one, one)
    assert (same.mean, same.p) == (0.0, 1.0)
    assert outcomes.compare(one[:1], two[:1]).seeds == (1, 1)


def test_holm_is_that_of_a_worked_example():
    assert seeds.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_the_stage_has_every_method_control_and_backbone_and_each_can_be_built():
    runs = evidence.STAGES["seeds"]
    assert len({run.name for run in runs}) == len(runs) == 15
    trees = [configs.to_tree(configs.resolve(recipe=run.recipe, overrides=run.fields)) for run in runs]
    assert len({json.dumps(tree) for tree in trees}) == 15
    by_name = dict(zip((run.name for run in runs), trees, strict=True))
    for recipe in (evidence.RESNET, evidence.VIT):
        prosmin, multicrop = (by_name[f"{recipe}-{name}-100-fair"] for name in ("prosmin", "mocov3-multicrop"))
        assert multicrop["views"] == prosmin["views"]
        assert by_name[f"{recipe}-score-100-fair"]["loss"]["identification"] == 0
        assert by_name[f"{recipe}-identification-100-fair"]["loss"]["score_weight"] == 0
        assert by_name[f"{recipe}-deterministic-100-fair"]["heads"]["scale"] == "zero"


def test_runs_are_summarised_and_compared_within_a_recipe(tmp_path, monkeypatch):
    random = np.random.default_rng(4)
    for run in evidence.STAGES["seeds"]:
        if run.name.split("-")[2] in ("prosmin", "dino"):
            rate = 0.9 if "prosmin" in run.name else 0.5
            for seed in (0, 1):
                flags = random.random(200) < rate
                packed = {"correct": outcomes.pack(flags), "nll": outcomes.pack(random.random(200))}
                metrics = {"knn": {"metrics": {"top1": float(flags.mean())}}}
                made = {"recipe": run.recipe, "seed": seed, "results": metrics}
                made["outcomes"] = {"knn": packed, "linear": packed, "images": 200}
                (tmp_path / f"{run.name}-s{seed}.json").write_text(json.dumps(made))
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["seeds.py", "--results", str(tmp_path), "--out", str(out)])
    seeds.main()
    found = json.loads(out.read_text())
    assert len(found["runs"]) == 4
    assert len(found["missing"]) == 11
    assert len(found["pairs"]) == 2 * 3  # one pair a recipe, three measures
    for row in found["pairs"]:
        assert row["one"].startswith(row["recipe"])
        assert row["two"].startswith(row["recipe"])
        if row["measure"] == "knn":
            assert row["mean"] == pytest.approx(0.4, abs=0.1)
            assert row["p"] <= row["p_holm"] < 0.05
    told = next(iter(found["runs"].values()))["knn.top1"]
    assert told["seeds"] == 2
    assert told["sd"] > 0
