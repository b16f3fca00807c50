"""RESULTS.md is what the files give: its cells, ranks, verdicts and gaps, from made-up runs and from the real ones."""

import copy
import dataclasses
import json
import re
import shutil
import sys
import warnings
from pathlib import Path

import matplotlib as mpl
import pytest

from prosmin import config as configs
from prosmin.errors import ProsminError
from prosmin.scoring import ProprietyWarning

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "benchmarks"))  # scripts, not a package

import evidence  # noqa: E402
import results_collapse as collapses  # noqa: E402
import results_figures as figures  # noqa: E402
import results_numbers as numbers  # noqa: E402
import results_page  # noqa: E402
import results_runs  # noqa: E402
import results_table  # noqa: E402
import results_verdicts as verdicts  # noqa: E402
import results_words  # noqa: E402

RESNET, VIT = "cifar10-resnet18", "cifar10-vit"
FORECAST_ENDS = {"": 0.0, "_low": -0.01, "_high": 0.015}
DETECTORS = ("knn_distance", "mahalanobis", "relative_mahalanobis", "residual")


def document(
    name, seed=0, *, knn=0.8, nll=0.6, health="healthy: target std 0.060, feature rank 90", scale=0.05, **more
):
    """A run's file in evidence.py's layout, with round numbers; `more` are AUROCs by name and overrides by field."""
    plan = next((run for runs in evidence.STAGES.values() for run in runs if run.name == name), None)
    fields = dict(plan.fields if plan else {}) | {k.replace("__", "."): v for k, v in more.items() if "__" in k}
    fields |= {"training.seed": str(seed), "data.spec": "parquet:cifar10-train.parquet"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProprietyWarning)  # of lam off 1/2
        config = configs.resolve(recipe=plan.recipe if plan else RESNET, overrides=fields)
    scaled = getattr(config.heads, "scale", "zero") == "learned"
    scores = (*DETECTORS, *(results_table.SCALE_SCORES if scaled else ()))
    ood = {f"{group}_auroc_{score}": 0.7 for group in ("near", "far") for score in scores}
    ood |= {"near_fpr_at_95_tpr_in": 0.64, "far_fpr_at_95_tpr_in": 0.08}
    ood |= {"near_auroc": 0.7, "far_auroc": 0.7} | {k: v for k, v in more.items() if "auroc" in k}
    path = {"step": 100.0, "target_std": 0.06, "feature_rank": 90.0} | ({"scale_mean": scale} if scaled else {})
    probe = {"top1": knn + 0.02, "nll": nll, "ece": 0.02, "ece_low": 0.015, "ece_high": 0.026, "ece_floor": 0.008}
    few = {"top1_1pct": 0.5, "top1_1pct_sd": 0.02, "top1_10pct": 0.7, "top1_10pct_sd": 0.0}
    shares = {"1pct": {"l2": [1.0, 1.0, 1.0]}, "10pct": {"l2": [0.1, 0.1, 0.1]}}
    corrupted = {"mean_error": 0.4, "mean_nll": 1.5} | {f"ece_severity_{level}": 0.01 * level for level in range(1, 6)}
    judged = {"recall_at_1": 0.75, "r_auroc": 0.6, "spearman_feature_norm": -0.5}
    rivals = {"knn_distance": 0.55, "low_feature_norm": 0.53, "low_sharpness": 0.51}
    calibration = "not measured: the forecast has no scale"
    if scaled:
        for share in (50, 90, 95):
            judged |= {f"coverage_{share}{end}": share / 100 + off for end, off in FORECAST_ENDS.items()}
        judged |= {"joint_coverage_90": 0.7, "squared_error_ratio": 1.25, "pit_distance": 0.017}
        judged |= {f"energy_skill{end}": 0.02 + off for end, off in FORECAST_ENDS.items()}
        judged |= {f"energy_skill_climatology{end}": 0.5 + off for end, off in FORECAST_ENDS.items()}
        rivals["between_view_variance"], calibration = 0.57, {"constant_scale": 0.04}
    results = {
        "knn": {
            "metrics": {"top1": knn, "top1_k200": knn},
            "baselines": {"untrained": {"top1": 0.3}, "raw pixels": {"top1": 0.2, "top1_k200": 0.19}},
        },
        "linear": {"metrics": probe, "baselines": {"raw pixels": probe | {"top1": 0.25, "nll": 2.0}}},
        "lowshot": {"metrics": few, "settings": {"shares": shares}},
        "ood": {"metrics": ood},
        "corruption": {"metrics": corrupted, "settings": {"source": "generated", "parameters": "cifar-10-c"}},
        "uncertainty": {
            "metrics": judged,
            "sets": {"test": {order: {"r_auroc": value} for order, value in rivals.items()}},
            "settings": {"calibration": calibration},
        },
    }
    return {
        "name": name, "seed": seed, "recipe": RESNET, "overrides": fields, "fingerprint": configs.fingerprint(config),
        "epochs": config.training.epochs, "training_seconds": 321.0,
        "hardware": {"device": "NVIDIA H200", "torch": "2.11.0"},
        "command": f"python benchmarks/evidence.py --only {name}", "chosen_on": "a held-out tenth of train",
        "health": {"verdict": health, "path": [path]}, "effective_rank": 90.0,
        "results": {name: results[name] for name in (plan.protocols if plan else results)},
        "configuration": configs.to_tree(config), "code": evidence.CODE.get((RESNET, config.method.name), 1),
    }  # fmt: skip


def save(folder, *documents):
    for each in documents:
        (folder / f"{each['name']}-s{each['seed']}.json").write_text(json.dumps(each))
    return folder


def read(folder, *documents):
    return results_runs.read_runs(save(folder, *documents))


def text(folder):
    return results_page.build(folder)["RESULTS.md"].decode()


def section(page, heading):
    """What stands under a heading, up to the next of its kind."""
    level = heading.partition(" ")[0]
    _, _, rest = page.partition(f"\n{heading}\n")
    assert rest, heading
    return re.split(rf"^#{{2,{len(level)}}} ", rest, flags=re.MULTILINE)[0]


def cells(part, row):
    """A column's heading -> its cell, over all tables of a section, in the row that begins with `row`."""
    found, head = {}, None
    for line in part.splitlines():
        if not line.startswith("|"):
            head = None
        elif head is None:
            head = _split(line)
        elif _split(line)[0] == row:
            found |= dict(zip(head, _split(line), strict=True))
    return found


def _split(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three seeds of ProSMIN and its twin, one of DINO, none of MoCo v3; lam and an axis; a run of no table."""
    made = tmp_path_factory.mktemp("results")
    first = f"{RESNET}-{{}}-100-first"
    for seed in range(3):
        best = {"near_auroc_mahalanobis": 0.85, "far_auroc_residual": 0.95, "far_auroc_mean_log_scale": 0.45}
        save(made, document(first.format("prosmin"), seed, knn=0.80 + 0.02 * seed, nll=0.5, **best))
        save(made, document(first.format("deterministic"), seed, knn=0.75 + 0.021 * seed, nll=0.6))
    save(made, document(first.format("dino"), knn=0.79, nll=0.4))
    for lam, knn, scale in (("0.40", 0.25, 3.0), ("0.45", 0.6, 0.09), ("0.50", 0.65, 0.05), ("0.60", 0.6, 0.03)):
        verdict = "collapsing: target std 1.0e-04, feature rank 1.5 since step 50; raise" if knn < 0.3 else "healthy: x"
        save(made, document(f"{RESNET}-lam-{lam}", knn=knn, scale=scale, health=verdict))
    save(made, *(document(f"{RESNET}-samples-{count}", knn=0.6) for count in (2, 4)))
    save(made, document(f"{RESNET}-norm-coordinate", knn=0.55), document("a-run-of-its-own", knn=0.6))
    (made / "throughput-h200.json").write_text("{}")  # other measurements lie in the same folder
    tuned = {"recipe": RESNET, "overrides": {"training.epochs": "25", "method.name": "dino"}, "knn20_top1": 0.7}
    (made / "tuning-cifar10-25.jsonl").write_text(json.dumps(tuned) + "\n" + json.dumps({**tuned, "knn20_top1": 0.6}))
    return made


@pytest.fixture(scope="module")
def page(folder):
    return text(folder)


BEFORE = "### ResNet-18, 100 epochs (before tuning)"


def test_cells_hold_means_intervals_and_ranks(page):
    part = section(page, BEFORE)
    ours, twin, dino = (cells(part, row) for row in ("ProSMIN", "deterministic twin", "DINO"))
    assert ours["seed numbers"] == "0, 1, 2"
    assert ours["kNN top-1 %"] == "**82.0 ± 2.0 (1)**"
    assert twin["kNN top-1 %"] == "77.1 ± 2.1 (3)"
    assert dino["kNN top-1 %"] == "79.0 [78.2, 79.8] (2)"  # Wilson: 0.790 ± 0.008 of 10,000
    assert [row["linear NLL"] for row in (ours, twin, dino)] == ["0.500 (2)", "0.600 (3)", "**0.400 (1)**"]
    assert dino["linear ECE"] == "**0.0200 [0.0150, 0.0260], floor 0.0080 (1)**"
    # The pictures 1.96 sqrt(0.25 / 10,000) = 0.0098, the three draws 4.3027 * 0.02 / sqrt(3) = 0.0497
    assert dino["1 % of labels, top-1 %"] == "**50.0 [44.9, 55.1] (1)**"
    assert dino["near (CIFAR-100) AUROC %"] == "**70.0 [69.3, 70.7] (1)**"
    assert dino["near FPR at 95 %"] == "**64.0 (1)**"
    assert dino["mean corruption NLL"] == "**1.500 (1)**"
    assert ours["near, best score"] == "**85.0 `mahalanobis` (1)**"
    assert ours["far, best score"] == "**95.0 `residual` (1)**"
    assert ours["effective rank"] == "90.0"
    assert dino["training, s"] == "321"
    assert "training, s" not in part.partition("ProSMIN's rank")[2]
    assert dino["ECE, severity 5"] == "**0.0500 (1)**"


def test_what_will_never_be_run_is_a_planned_run_without_a_file():
    names = {run.name for stage in evidence.STAGES.values() for run in stage}
    assert set(results_words.NEVER) <= names
    assert not [path.name for name in results_words.NEVER for path in evidence.RESULTS.glob(f"{name}-s*.json")]


def test_what_is_missing_says_so(page):
    part = section(page, BEFORE)
    moco = cells(part, "MoCo v3")
    assert set(moco.values()) == {"MoCo v3", "not run"}
    assert "Not planned in this table: iBOT." in part
    assert "Not run yet: `cifar10-resnet18-prosmin-200`" in section(page, "## Headline: 200 epochs")
    assert f"`{RESNET}-mocov3-100-first`" in section(page, "## What was run")
    assert cells(section(page, "### lam"), "0.30")["kNN top-1 %"] == "not run"
    assert "Not run yet: `cifar10-resnet18-momentum-0.9`" in section(page, "### Momentum of the target")


def test_no_cell_is_blank(page):
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len(rows) > 60
    assert not [row for row in rows if "" in _split(row)]


def test_a_number_the_file_lacks_is_not_measured(tmp_path):
    broken = document(f"{RESNET}-prosmin-100")
    del broken["results"]["corruption"]
    broken["results"]["linear"]["metrics"]["nll"] = float("nan")
    row = cells(section(text(save(tmp_path, broken)), "### ResNet-18, 100 epochs"), "ProSMIN")
    assert row["mean corruption error %"] == row["linear NLL"] == "not measured"


def test_the_scale_is_held_against_what_the_twin_has_too(tmp_path):
    ours, twin = (document(f"{RESNET}-{method}-100") for method in ("prosmin", "deterministic"))
    for made, r_auroc, distance in ((ours, 0.76, 0.80), (twin, 0.60, 0.71)):
        made["results"]["uncertainty"]["metrics"]["r_auroc"] = r_auroc
        made["results"]["uncertainty"]["sets"]["test"]["knn_distance"]["r_auroc"] = distance
    page = text(save(tmp_path, ours, twin))
    table = section(page, "### ResNet-18, 100 epochs")
    by_distance = [cells(table, row)["R-AUROC by distance %"] for row in ("ProSMIN", "deterministic twin")]
    assert [cell.strip("*")[:4] for cell in by_distance] == ["80.0", "71.0"]
    claim = section(page, "## Claim: the probabilistic part helps")
    assert any(cell.startswith("+5.0 [") for cell in cells(claim, "R-AUROC %, the twin's by its best order").values())
    assert not cells(claim, "R-AUROC %")  # counted once, by the harder question
    assert "its twin's best order)? ResNet-18, 100 epochs, tuned: helps" in section(page, "## In short")


def test_every_order_stands_beside_the_uncertainty(page):
    headings = (
        "R@1 %",
        "R-AUROC %",
        "R-AUROC by distance %",
        "by view variance",
        "by short feature",
        "by low sharpness",
    )
    wanted = {"ProSMIN": ["75.0", "60.0", "55.0", "57.0", "53.0", "51.0"], "DINO": ["75.0", "60.0", "55.0", "60.0"]}
    for method, shown in wanted.items():  # without a scale the variance between views is the uncertainty
        row = cells(section(page, BEFORE), method)
        assert [row[heading].strip("*")[:4] for heading in headings[: len(shown)]] == shown
        assert row["Spearman with feature norm"] == "-0.50"
    row = cells(section(page, "## Other runs"), "`a-run-of-its-own`")
    assert [row[heading][:4] for heading in headings] == wanted["ProSMIN"]


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (0.70, "`scale` is best with 70.0 [68.7, 71.3], before `view variance` (57.0 [55.7, 58.3])"),
        (0.58, "`scale` is best with 58.0 [56.7, 59.3], not told apart from `view variance` (57.0 [55.7, 58.3])"),
        (0.50, "`view variance` is best with 57.0 [55.7, 58.3], before `distance` (55.0 [53.7, 56.3])"),
    ],
)
def test_the_scale_is_held_against_the_other_orders_of_its_run(tmp_path, scale, words):
    made = document(f"{RESNET}-prosmin-100")
    made["results"]["uncertainty"]["metrics"]["r_auroc"] = scale
    claim = section(text(save(tmp_path, made)), "## Claim: the probabilistic part helps")
    assert f"- ResNet-18, 100 epochs, tuned: {words}." in claim


def test_whether_the_forecast_holds(page):
    part = section(page, "## Does the forecast hold?")
    for name, mark in ((f"{RESNET}-prosmin-100-first", ""), ("a-run-of-its-own", " [89.0, 91.5]")):
        row = cells(part, f"`{name}`")
        assert row["90 % intervals hold %"] == f"90.0{mark}"  # three seeds alike, one with its interval
        assert row["90 % ellipsoids hold %"] == "70.0"
        assert (row["squared error ratio"], row["PIT distance"]) == ("1.25", "0.017")
    assert row["50 % intervals hold %"] == "50.0 [49.0, 51.5]"
    assert row["skill against one scale"] == "0.020 [0.010, 0.035]"
    assert row["skill against climatology"] == "0.500 [0.490, 0.515]"
    assert not cells(part, f"`{RESNET}-deterministic-100-first`")
    lam = cells(section(page, "### lam"), "0.45")
    assert lam["50 % intervals hold %"] == "50.0 [49.0, 51.5]"
    assert lam["scale / constant scale"] == "2.25"  # 0.09 / 0.04


def test_the_final_run_says_in_short_whether_its_forecast_holds(tmp_path):
    old, now = document(f"{RESNET}-prosmin-100-first"), document(f"{RESNET}-prosmin-100")
    old["results"]["uncertainty"]["metrics"]["joint_coverage_90"] = 0.1
    line = (
        "ResNet-18, 100 epochs, tuned: 90 % intervals hold 90.0 [89.0, 91.5] % of coordinates, 90 % ellipsoids 70.0 %"
    )
    part = section(text(save(tmp_path, old, now)), "## In short")
    assert line.format("- What its forecast promises and holds: ResNet-18, 100 epochs, tuned", "70.0") in part
    assert "10.0 %" not in part
    (tmp_path / f"{now['name']}-s0.json").unlink()
    assert "before tuning: 90 % intervals hold 90.0 [89.0, 91.5] % of coordinates, 90 % ellipsoids 10.0 %" in text(
        tmp_path
    )


def test_what_needs_no_training_has_rows_without_ranks(page):
    part = section(page, BEFORE)
    pixels, untrained = cells(part, "raw pixels"), cells(part, "untrained")
    assert pixels["seed numbers"] == "0, 1, 2"
    assert (pixels["kNN top-1 %"], pixels["linear NLL"]) == ("20.0", "2.000")
    assert (untrained["kNN top-1 %"], untrained["kNN top-1 %, k = 200"]) == ("30.0", "not measured")
    assert not {"mean corruption NLL", "R@1 %", "peak lr", "near, best score"} & set(pixels)


TUNED = [
    {"name": name, "recipe": RESNET, "overrides": {"training.epochs": "12"}, "knn20_top1": knn}
    for name, knn in (("unit", 0.4111), ("unit-id", 0.6222))
]


def test_what_prosmin_is_comes_from_the_files(tmp_path):
    names = [f"{RESNET}-{method}-100" for method in ("prosmin", "deterministic")]
    save(tmp_path, *map(document, names))
    (tmp_path / "tuning-cifar10-12.jsonl").write_text("\n".join(map(json.dumps, TUNED)))
    part = section(text(tmp_path), "## What was run")
    assert (
        "after 12 epochs of tuning kNN on the held-out tenth was 41.1 % without the identification term and 62.2 %"
        in part
    )
    assert "ResNet-18: the score, and 0.5 times an identification term, InfoNCE" in part
    for words in ("a fixed last layer", "), BatchNorm in the bottleneck", "no pairs of a view with itself"):
        assert words in part
    assert "the two differ in `heads.scale` alone" in part
    other = {"loss__same_view": "true", "loss__identification": "0", "heads__last": "learned"}
    save(tmp_path, document(names[0], **other))
    part = section(text(tmp_path), "## What was run")
    assert "no identification term (`loss.identification: 0`), a learned last layer" in part
    assert ", pairs of a view with itself (`loss.same_view: true`)" in part
    apart = ("heads.last", "heads.scale", "loss.identification", "loss.same_view")
    line = next(line for line in part.splitlines() if "The deterministic twin differs in" in line)
    assert all(f"`{name}`" in line for name in apart)


def test_settings_are_shown_and_not_ranked(page):
    dino = cells(section(page, BEFORE), "DINO")
    assert dino["views a picture"] == "6"
    assert dino["peak lr"] == "0.0040"  # 0.002 for 256 pictures, 512 of them
    assert dino["target momentum"] == "0.990"


def test_the_methods_of_a_table_share_what_the_page_says():
    runs = results_runs.read_runs(results_page.RESULTS)
    for table in results_runs.TABLES:
        for recipe in results_runs.BACKBONES:
            named = [runs[name][0].document["configuration"] for name in table.runs(recipe).values() if name in runs]
            shared = [(tree["data"], tree["backbone"], tree["training"]["batch_size"]) for tree in named]
            assert all(each == shared[0] for each in shared)
            assert {tree["training"]["epochs"] for tree in named} <= {table.epochs}


def test_earlier_code_is_known_by_what_its_file_lacks(tmp_path):
    name = f"{RESNET}-prosmin-100-first"
    old = document(name)
    del old["configuration"]["loss"]["identification"]
    assert read(tmp_path, old)[name][0].is_earlier_code
    words = "its forecast was not yet in units of the target's spread"
    assert words in text(tmp_path)
    assert not read(tmp_path, document(name))[name][0].is_earlier_code
    assert words not in text(tmp_path)


def test_the_target_network_has_a_table_where_it_was_judged(tmp_path):
    ours, dino = (document(f"{RESNET}-{method}-100") for method in ("prosmin", "dino"))
    title = "**The target network's features**"
    assert title not in text(save(tmp_path, ours, dino))
    dino["target"] = {"knn": {"top1": 0.66}, "linear": {"top1": 0.77}}
    page = text(save(tmp_path, dino))
    assert title in page
    rows = [cells(section(page, "### ResNet-18, 100 epochs"), row) for row in ("ProSMIN", "DINO")]
    assert [row["target's kNN top-1 %"].strip("*")[:4] for row in rows] == ["not ", "66.0"]
    assert rows[1]["target's linear top-1 %"].strip("*").startswith("77.0")


OLD = "ImageNet-C's, at the size the encoder sees"


@pytest.mark.parametrize(
    ("used", "shown", "note"),
    [
        (("cifar-10-c", "cifar-10-c", "cifar-10-c"), "yyy", "CIFAR-10-C's severities.\n"),
        (("imagenet-c", OLD, "imagenet-c"), "yyy", "ImageNet-C's severities.\n"),
        ((OLD, "cifar-10-c", "imagenet-c"), "yny", "ImageNet-C's severities. Runs with others"),
        (("cifar-10-c", OLD, None), "yn-", "CIFAR-10-C's severities. Runs with others"),  # as many of each
    ],
)
def test_corruptions_of_other_severities_are_neither_shown_nor_ranked(tmp_path, used, shown, note):
    methods = ("prosmin", "deterministic", "dino")
    for method, error, parameters in zip(methods, (0.5, 0.2, 0.6), used, strict=True):
        made = document(f"{RESNET}-{method}-100")
        made["results"]["corruption"]["metrics"]["mean_error"] = error
        made["results"]["corruption"]["settings"]["parameters"] = parameters
        if parameters is None:
            del made["results"]["corruption"]
        save(tmp_path, made)
    page = text(tmp_path)
    part = section(page, "### ResNet-18, 100 epochs")
    rows = [cells(part, results_runs.METHODS[method]) for method in methods]
    words = {"n": "other severities", "-": "not measured"}
    for row, how in zip(rows, shown, strict=True):
        for heading in ("mean corruption error %", "ECE, severity 3"):
            assert row[heading] == words[how] if how in words else row[heading][0].isdigit() or row[heading][0] == "*"
        assert row["linear NLL"] not in words.values()
    ranked = {"yyy": ["(2)", "(1)", "(3)"], "yny": ["(1)", None, "(2)"], "yn-": ["]", None, None]}[
        shown
    ]  # alone: no rank
    for row, place in zip(rows, ranked, strict=True):
        assert place is None or row["mean corruption error %"].rstrip("*").endswith(place)
    assert f"Corruptions are generated with {note}" in part
    # The twin, too, is held against corruptions of the same severities or not at all.
    difference = cells(section(page, "## Claim: the probabilistic part helps"), "mean corruption error %")
    assert ("not measured" in difference.values()) == (shown[1] == "n")


def test_seeds_of_other_severities_are_left_out_of_a_mean(tmp_path):
    for seed, parameters in enumerate(("cifar-10-c", "cifar-10-c", "imagenet-c")):
        made = document(f"{RESNET}-prosmin-100", seed)
        made["results"]["corruption"]["metrics"]["mean_error"] = 0.3 + 0.1 * seed
        made["results"]["corruption"]["settings"]["parameters"] = parameters
        save(tmp_path, made)
    row = cells(section(text(tmp_path), "### ResNet-18, 100 epochs"), "ProSMIN")
    assert row["mean corruption error %"] == "35.0 ± 7.1 of seeds 0, 1"


def test_equal_means_share_a_rank():
    def entry(*values):
        return numbers.NLL, numbers.Number(tuple(range(len(values))), values, None)

    assert sum((0.7, 0.7, 0.7)) / 3 != 0.7  # in the last bit
    entries = {"a": entry(0.7), "b": entry(0.7, 0.7, 0.7), "c": entry(0.4), "d": entry(0.9)}
    assert results_table.rank(entries) == {"a": 2, "b": 2, "c": 1, "d": 4}
    assert results_table.rank({"a": (numbers.RANK, numbers.Number((0,), (9.0,), None))}) == {}


def test_intervals_are_the_textbooks():
    assert numbers.binomial(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)  # Wilson (1927)
    # Hanley and McNeil at chance: the variance is (n + 1 / 2) / (6 n^2) for n and n pictures.
    assert numbers.ranking(0.5, 100, 100)[1] - 0.5 == pytest.approx(1.96 * (100.5 / 6e4) ** 0.5, rel=1e-6)
    assert numbers.ranking(0.9, 0, 100) is None
    assert numbers.over_seeds((1.0, 2.0, 3.0), []) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-4)  # t = 4.3027
    # Seeds share the test pictures, whose sampling does not average out: half a width of 2 on the mean of 1 and 3.
    both = (2.4841**2 + 2.0**2) ** 0.5
    assert numbers.over_seeds((1.0, 2.0, 3.0), [1.0, 3.0]) == pytest.approx((2 - both, 2 + both), abs=1e-4)


@pytest.mark.parametrize(
    ("interval", "better", "word"),
    [
        ((0.1, 0.3), 1, "helps"),
        ((0.1, 0.3), -1, "hurts"),
        ((-0.3, -0.1), 1, "hurts"),
        ((-0.3, -0.1), -1, "helps"),
        ((-0.1, 0.3), 1, "no difference beyond the interval"),
        ((0.0, 0.3), 1, "no difference beyond the interval"),
        (None, 1, "no interval"),
    ],
)
def test_the_words_follow_the_interval(interval, better, word):
    assert verdicts.judge(interval, better) == word


def test_the_twin_is_paired_by_seed(page):
    claim = section(page, "## Claim: the probabilistic part helps")
    # Differences 5.0, 4.9, 4.8: mean 4.9, sd 0.1, t 4.3027 / sqrt(3) makes 0.25; unpaired, sds of two points would
    # drown it. The pictures: 1.96 sqrt(0.82 * 0.18 / 10,000) = 0.75 and of 0.771 0.82; all three together 1.14.
    assert "ResNet-18, 100 epochs, before tuning: **helps** by kNN top-1, +4.9 [+3.8, +6.0] points" in claim
    assert "with seeds 0, 1, 2" in claim
    assert cells(claim, "linear NLL")["ResNet-18, 100 epochs, before tuning"] == "-0.100 [-0.100, -0.100] helps"
    assert "![" in claim


def test_one_seed_is_called_one_seed(tmp_path):
    ours, twin = document(f"{RESNET}-prosmin-100", 1, knn=0.8), document(f"{RESNET}-deterministic-100", 1, knn=0.795)
    other = document(f"{RESNET}-deterministic-100", 2, knn=0.1)  # of another seed: no pair
    found = verdicts.comparisons(read(tmp_path, ours, twin, other))[0].differences
    assert found["kNN top-1 %"].word == "no difference beyond the interval (one seed)"
    assert found["kNN top-1 %"].seeds == (1,)
    assert found["linear NLL"].word == "no interval (one seed)"


def test_without_a_pair_the_claim_is_not_run(tmp_path):
    save(tmp_path, document(f"{RESNET}-prosmin-100", 0), document(f"{RESNET}-deterministic-100", 1))
    page = text(tmp_path)
    assert "**Verdict: not run.**" in section(page, "## Claim: the probabilistic part helps")
    assert "- Does the probabilistic part make better features (kNN)? not run." in page


LAM = f"{RESNET}-lam-{{}}"


@pytest.mark.parametrize(
    ("fallen", "word"),
    [
        ((), "not contradicted"),
        (("0.40",), "does not hold where the score has no minimum, not contradicted where it has one"),
        (("0.40", "0.42"), "does not hold, not even where the score has a minimum"),
        (("0.50",), "does not hold, not even where the score is proper"),
    ],
)
def test_the_collapse_verdict_names_where_it_fell(tmp_path, fallen, word):
    runs = read(
        tmp_path, *(document(LAM.format(lam), knn=0.2 if lam in fallen else 0.6) for lam in ("0.40", "0.42", "0.50"))
    )
    assert collapses.collapse_word(runs) == word


def test_collapse_is_seen_in_health_or_in_knn(tmp_path):
    shrunk = document(LAM.format("0.45"), knn=0.6, health="shrinking: feature rank 4.0, 40.0 at the start; lower")
    untrained = document(LAM.format("0.50"), knn=0.3)
    fine, twin = document(LAM.format("0.55"), knn=0.31), document(f"{RESNET}-deterministic-100", knn=0.1)
    runs = read(tmp_path, shrunk, untrained, fine, twin)
    fallen = {name for name, seeds in runs.items() if collapses.has_collapsed(seeds[0])}
    assert fallen == {shrunk["name"], untrained["name"], twin["name"]}
    lines = "\n".join(collapses.collapse(runs, results_runs.planned("lam")))
    # The twin forecasts no scale.
    assert re.findall(r"\| (proper .*|not proper.*) \|", lines) == [
        "proper score | without | today's | 1 | 1",
        "not proper, but with a minimum | without | today's | 2 | 1",
    ]
    assert "5 of 8 runs along `loss.lam` are missing" in lines


def test_collapse_tells_earlier_code_and_identification_apart(tmp_path):
    old, now = document(f"{RESNET}-prosmin-100-first", knn=0.2), document(f"{RESNET}-prosmin-100", knn=0.8)
    del old["configuration"]["loss"]["identification"]
    runs = read(tmp_path, old, now, document(LAM.format("0.50"), knn=0.6))
    proper = "does not hold, not even where the score is proper"
    assert collapses.collapse_word(runs) == (
        f"{proper}, in a run of earlier code; with the code of today: not contradicted"
    )
    lines = collapses.collapse(runs, [])
    assert [line for line in lines if line.startswith("| proper")] == [
        "| proper score | without | today's | 1 | 0 |",
        "| proper score | with | today's | 1 | 0 |",
        "| proper score | without | earlier | 1 | 1 |",
    ]
    assert [line.endswith("earlier code, which no longer exists") for line in lines if line.startswith("- ")] == [True]
    both = read(tmp_path, document(LAM.format("0.50"), knn=0.2))
    assert collapses.collapse_word(both) == proper


@pytest.mark.parametrize(
    ("scale", "start", "words"),
    [
        (
            7.421,
            0.03,
            "the scale ran to its bound; the target's spread did not vanish (0.030 at first, 0.060 in the end)",
        ),
        (7.421, 0.09, "the scale ran to its bound"),
        (7.39, 0.03, "kNN 20.0 %"),
    ],
)
def test_a_scale_at_its_bound_is_called_so(tmp_path, scale, start, words):
    made = document(LAM.format("0.35"), knn=0.2, scale=scale)  # the bound is 0.05 e^5 = 7.4207
    made["health"]["path"].insert(0, {"step": 1.0, "target_std": start})
    runs = read(tmp_path, made)
    assert collapses.collapse(runs, [])[-1].endswith(words)
    cell = cells(section(text(tmp_path), "### lam"), "0.35")["mean scale"]
    assert cell == (f"{scale:.4f} at its bound" if scale > 7.4 else f"{scale:.4f}")


def test_lam_runs_say_what_else_they_set(tmp_path):
    save(tmp_path, *(document(LAM.format(lam), knn=knn) for lam, knn in (("0.45", 0.66), ("0.50", 0.62))))
    part = section(text(tmp_path), "### lam")
    assert (
        "All of these runs set, beside `loss.lam`: `training.epochs` 25, `loss.force` true, `loss.identification` 0, "
        "`heads.last` learned, `heads.bottleneck_batchnorm` false.\n"
    ) in part
    assert (
        "kNN is higher at 0.45 (66.0 [65.1, 66.9], told apart) than at the proper 0.5 (62.0 [61.0, 62.9], one seed)."
        in part
    )
    assert "nothing is chosen by it" in part
    save(tmp_path, document(LAM.format("0.45"), knn=0.61), document(f"{RESNET}-prosmin-100"))
    part = section(text(tmp_path), "### lam")
    assert "kNN is higher" not in part
    line = next(line for line in part.splitlines() if "not the tuned recipe" in line)
    apart = line.partition("it differs in ")[2]
    assert set(apart.rstrip(".").split(", ")) == {
        "`heads.last`", "`heads.bottleneck_batchnorm`", "`loss.identification`", "`training.epochs`",
    }  # fmt: skip


def test_the_figure_holds_the_scale_against_its_own_run(folder, monkeypatch):
    drawn = {}
    monkeypatch.setattr(figures, "_svg", lambda figure: drawn.setdefault("figure", figure))
    runs = results_runs.read_runs(folder)
    points = {lam: runs[LAM.format(f"{lam:.2f}")] for lam in (0.45, 0.5, 0.6)}
    points[0.6][0].document["results"]["uncertainty"]["settings"]["calibration"]["constant_scale"] = 0.02
    figures.draw_lam(points)
    measured, theory = (
        next(
            line
            for line in drawn["figure"].axes[2].lines
            if line.get_linestyle() == style and len(line.get_xdata()) == 3
        )
        for style in ("-", ":")
    )
    # 0.09 / 0.04, 0.05 / 0.04 and 0.03 / 0.02, over the second
    assert list(measured.get_ydata()) == pytest.approx([1.8, 1.0, 1.2])
    assert list(theory.get_ydata()) == pytest.approx([1.72, 1.0, 0.53], abs=0.01)


def test_nothing_run_is_no_verdict():
    assert collapses.collapse_word({}) == "not run"


def test_the_threshold_is_the_theorys(folder):
    runs = results_runs.read_runs(folder)
    assert collapses.threshold(runs[LAM.format("0.50")][0]) == pytest.approx(2**0.5 - 1)
    assert collapses.standing(runs[LAM.format("0.40")][0]) == collapses.WITHOUT


def test_the_sentence_on_strangers_names_the_carrier(page):
    line = next(
        line
        for line in section(page, "## Out of distribution: every label-free score").splitlines()
        if line[:2] == "- "
    )
    assert "near (CIFAR-100): `mahalanobis` carries it with 85.0" in line
    assert "reaches 70.0 [69.3, 70.7], better than chance, and it is not what carries it" in line
    assert "reaches 45.0 [44.2, 45.8], worse than chance" in line


@pytest.mark.parametrize(
    ("scale", "chance", "best"),
    [
        (0.90, "better than chance", "`mean_log_scale` carries it with 90.0 [89.6, 90.4], before `mahalanobis` (85.0"),
        (0.851, "better than chance", "`mean_log_scale` is best with 85.1 [84.6, 85.6], not told apart from `mahala"),
        (0.849, "better than chance", "cannot be told from the best"),
        (0.505, "no better than chance", "it is not what carries it"),
    ],
)
def test_the_learned_scale_is_held_against_chance_and_the_best(tmp_path, scale, chance, best):
    scores = {"near_auroc_mahalanobis": 0.85, "near_auroc_mean_log_scale": scale}
    line = verdicts.strangers(read(tmp_path, document(f"{RESNET}-prosmin-100", **scores)))[0].partition("; far")[0]
    assert chance in line
    assert best in line


def test_methods_without_a_scale_have_none_of_its_scores(page):
    row = [
        line
        for line in section(page, "## Out of distribution: every label-free score").splitlines()
        if "| DINO |" in line
    ]
    assert row[0].count("no scale") == 4
    assert "70.0** / **70.0" in row[0]


def test_switches_say_in_what_they_differ(page):
    row = cells(section(page, "### Single fields"), f"`{RESNET}-norm-coordinate`")
    assert row["differs in"] == "`loss.norm` coordinate for euclidean"
    assert row["kNN top-1 %"] == "55.0 [54.0, 56.0]"


def test_every_file_is_traceable_and_none_is_dropped(folder, page):
    table = section(page, "## Where every number comes from")
    for path in folder.glob("*-s?.json"):
        row = cells(table, f"`{path.name}`")
        saved = json.loads(path.read_text())
        assert (row["configuration"], row["seed"]) == (f"`{saved['fingerprint']}`", str(saved["seed"]))
        assert row["command"] == f"`{saved['command']}`"
        assert row["hardware"] == "NVIDIA H200, torch 2.11.0"
    assert "`a-run-of-its-own`" in section(page, "## Other runs")
    assert cells(section(page, "## What was tuned"), "`tuning-cifar10-25.jsonl`")["best kNN %, held out"] == "70.0"


def test_built_twice_it_is_the_same_bytes(folder):
    first = results_page.build(folder)
    assert set(first) == {"RESULTS.md", *(f"docs/figures/results-{name}.svg" for name in ("twin", "lam", "samples"))}
    with mpl.rc_context({"font.size": 30.0, "axes.facecolor": "red"}):  # whatever the machine's settings are
        assert results_page.build(folder) == first
    shown = re.findall(r"\]\((docs/figures/[^)]+)\)", first["RESULTS.md"].decode())
    assert set(shown) == set(first) - {"RESULTS.md"}
    assert all(b"<dc:date>" not in content for content in first.values())


def test_a_figure_shows_its_numbers(folder, tmp_path):
    other = document(f"{RESNET}-samples-4", knn=0.61)
    for path in folder.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before, after = results_page.build(folder), results_page.build(save(tmp_path, other))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"RESULTS.md", "docs/figures/results-samples.svg"}


def test_writing_takes_old_figures_away(tmp_path):
    figures = tmp_path / "docs/figures"
    figures.mkdir(parents=True)
    (figures / "results-lam.svg").write_text("old")
    (figures / "other.svg").write_text("not ours")
    results_page.write({"RESULTS.md": b"text\n", "docs/figures/results-twin.svg": b"<svg/>"}, tmp_path)
    assert sorted(path.name for path in figures.iterdir()) == ["other.svg", "results-twin.svg"]
    assert (tmp_path / "RESULTS.md").read_text("utf-8") == "text\n"


def test_an_empty_folder_makes_a_page(tmp_path):
    built = results_page.build(tmp_path)
    assert set(built) == {"RESULTS.md"}
    assert "No files yet." in built["RESULTS.md"].decode()


def misnamed(each):
    each["seed"] = 5


def on_a_part_of_test(each):
    each["results"]["knn"]["metrics"]["top1"] = 190 / 600


def of_another_recipe(each):
    each["configuration"]["optimizer"]["lr"] = 1.0


def cut_short(each):
    del each["health"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (misnamed, "named NAME-sSEED.json after its run"),
        (on_a_part_of_test, "no share of 10000 pictures"),
        (of_another_recipe, "different configurations .optimizer.lr: 0.001 and 1.0"),
        (cut_short, "has no health"),
    ],
)
def test_a_file_that_cannot_be_is_refused(tmp_path, spoil, message):
    good = document(f"{RESNET}-prosmin-100", 0)
    bad = copy.deepcopy(good) | {"seed": 1}
    path = tmp_path / f"{good['name']}-s1.json"
    spoil(bad)
    save(tmp_path, good)
    path.write_text(json.dumps(bad))
    with pytest.raises(ProsminError, match=message):
        results_runs.read_runs(tmp_path)


def test_half_a_file_is_refused(tmp_path):
    (tmp_path / "run-s0.json").write_text('{"name": ')
    with pytest.raises(ProsminError, match="is not JSON"):
        results_runs.read_runs(tmp_path)


def test_the_committed_page_is_what_the_committed_files_give():
    built = results_page.build()
    assert built.pop("RESULTS.md").decode() == (ROOT / "RESULTS.md").read_text("utf-8"), "run make results"
    figures = {f"docs/figures/{path.name}" for path in (ROOT / "docs/figures").glob("results-*.svg")}
    assert figures == set(built), "run make results"
    if f"matplotlib=={mpl.__version__}\n" in (ROOT / "constraints.txt").read_text():  # another draws other bytes
        for name, content in built.items():
            assert content == (ROOT / name).read_bytes(), f"{name}: run make results"


def test_a_file_of_evidence_names_no_folder_and_is_otherwise_as_it_was():
    """Also where the folder's name is a word that occurs elsewhere."""
    found = {"data": {"spec": "parquet:data/cifar10-train.parquet"}, "near": ["parquet:data/x.parquet"], "k": 20}
    told = evidence._sanitised(found, Path("data"))
    assert told == {"data": {"spec": "parquet:cifar10-train.parquet"}, "near": ["parquet:x.parquet"], "k": 20}


def test_a_training_of_the_same_configuration_is_not_repeated_under_another_name(tmp_path):
    plan = evidence.Run("cifar10-vit-dino-100", "cifar10-vit", {"method.name": "dino", "training.epochs": "100"})
    fields = {**plan.fields, "data.spec": "parquet:elsewhere.parquet", "training.seed": "0"}
    tree = configs.to_tree(configs.resolve(recipe=plan.recipe, overrides=fields))
    made = {
        "name": "x",
        "recipe": plan.recipe,
        "configuration": tree,
        "results": {key: {} for key in evidence.PROTOCOLS},
    }
    made |= {"seed": 0, "baselines_of": evidence.OWN, "l2_grid": list(evidence.L2_GRID), "code": 2}
    file = tmp_path / "cifar10-vit-dino-100-first-s0.json"
    for lacking in ({"code": 1}, {"l2_grid": [1.0]}):  # of earlier code, of other probes
        file.write_text(json.dumps(made | lacking))
        assert evidence.same_training(tmp_path, plan, 0) is None
    file.write_text(json.dumps(made))
    found = evidence.same_training(tmp_path, plan, 0)
    assert found["same_training_as"] == found["baselines_of"] == file.name
    assert (found["name"], found["overrides"]) == (plan.name, plan.fields)
    (tmp_path / "cifar10-vit-again-s0.json").write_text(json.dumps(found))
    assert evidence.same_training(tmp_path, plan, 0)["same_training_as"] == file.name
    assert evidence.same_training(tmp_path, plan, 1) is None
    faster = dataclasses.replace(plan, fields=plan.fields | {"optimizer.lr": "1.0e-3"})
    assert evidence.same_training(tmp_path, faster, 0) is None
    assert evidence.same_training(tmp_path, dataclasses.replace(plan, protocols=("knn", "other")), 0) is None


@pytest.mark.parametrize("name", [f"{evidence.VIT}-{method}-100-first" for method in ("prosmin", "dino", "mocov3")])
def test_a_first_run_has_the_configuration_of_its_file_whatever_tuning_changed(name):
    run = next(run for run in evidence.STAGES["first"] if run.name == name)
    told = json.loads((evidence.RESULTS / f"{name}-s0.json").read_text())["configuration"]
    fields = run.fields | {"data.spec": told["data"]["spec"]}
    assert json.loads(json.dumps(configs.to_tree(configs.resolve(recipe=run.recipe, overrides=fields)))) == told


def test_runs_of_code_that_is_gone_are_not_made_again_under_their_names(tmp_path, capsys, monkeypatch):
    words = ["--data", "d", "--runs", "r", "--out", str(tmp_path), "--only", f"{RESNET}-deterministic-100-first"]
    monkeypatch.setattr(sys, "argv", ["evidence.py", *words])
    evidence.main()
    assert "not run: the code" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    gone = [run.name for run in evidence.STAGES["first"] if evidence.is_gone(run)]
    assert gone == [
        *(f"{RESNET}-{method}-100-first" for method in ("prosmin", "deterministic", "dino", "mocov3")),
        *(f"{evidence.VIT}-{method}-100-first" for method in ("dino", "mocov3")),
    ]


def test_a_training_told_twice_counts_once(folder, tmp_path):
    copied = tmp_path / "results"
    shutil.copytree(folder, copied)
    page = results_page.build(copied)["RESULTS.md"].decode()
    name = f"{RESNET}-prosmin-100-first"
    told = json.loads((copied / f"{name}-s0.json").read_text()) | {"same_training_as": f"{name}-s0.json"}
    (copied / "another-s0.json").write_text(json.dumps(told | {"name": "another"}))
    more = results_page.build(copied)["RESULTS.md"].decode()
    for pattern in (r"\d+ trainings\. Hardware: .*", r"\| proper score \|.*"):
        assert re.findall(pattern, page) == re.findall(pattern, more) != []
    assert f"the same training as `{name}-s0.json`" in section(more, "## Where every number comes from")
    assert "`another`" not in section(more, "## Does the forecast hold?")


def test_a_run_of_earlier_code_is_called_so_in_its_row(tmp_path):
    mine, older = document(f"{RESNET}-prosmin-100"), document(f"{RESNET}-dino-100")
    save(tmp_path, mine, older | {"code": 1})
    part = section(text(tmp_path), "### ResNet-18, 100 epochs")
    assert cells(part, "DINO, earlier code")
    assert cells(part, "ProSMIN")
    assert not cells(part, "ProSMIN, earlier code")


def test_the_page_says_first_how_prosmin_stands_against_the_best_other_method():
    def lines(made):
        return verdicts.against_methods({each["name"]: [results_runs.Finished("x", each)] for each in made})

    def rows(**changed):
        named = {"prosmin": {}, "dino": changed, "mocov3": {"knn": 0.1, "nll": 3.0}}
        made = [document(f"{RESNET}-{method}-100", **more) for method, more in named.items()]
        made.append(document(f"{RESNET}-prosmin-200", knn=0.99))  # alone in a more final table
        made.append(document(f"{RESNET}-mocov3-200", knn=0.1))
        head, _, *told = lines(made)
        assert head == "| ProSMIN, and the best other method | ResNet-18, 100 epochs, tuned (one seed) |"
        return dict(line.strip("| ").split(" | ") for line in told)

    mine = document(f"{RESNET}-prosmin-100")["results"]["knn"]["metrics"]["top1"]
    numbers = f"{100 * mine:.1f}, {100 * (mine - 0.1):.1f} (DINO)"
    assert rows(knn=mine - 0.1)["kNN top-1 %"] == f"{numbers}: **ahead**"
    assert rows(knn=mine + 0.05)["kNN top-1 %"].endswith(": behind")
    assert rows(knn=mine - 0.001)["kNN top-1 %"].endswith(": not told apart")
    assert rows(nll=0.7)["linear NLL"] == "0.600, 0.700 (DINO): better, without an interval"
    assert rows(nll=0.5)["linear NLL"] == "0.600, 0.500 (DINO): worse, without an interval"
    told = lines([document(f"{RESNET}-{method}-100") for method in ("prosmin", "mocov3")])
    assert told[-1] == "Not run yet, and perhaps better: DINO (ResNet-18, 100 epochs, tuned)."
    assert lines([document(f"{RESNET}-prosmin-100")]) == ["Not run yet."]


def test_seeds_of_two_codes_are_not_one_run(tmp_path):
    made = [document(f"{RESNET}-dino-100", seed) for seed in (0, 1)]
    save(tmp_path, made[0] | {"code": 1}, made[1])
    with pytest.raises(ProsminError, match=r"different configurations \(code: 1 and 2\)"):
        results_runs.read_runs(tmp_path)


def test_the_untrained_vit_of_mocov3_is_its_own():
    def untrained(method, recipe):
        return evidence._untrained(configs.to_tree(configs.resolve(recipe=recipe, overrides={"method.name": method})))

    assert untrained("dino", evidence.VIT) == untrained("prosmin", evidence.VIT) != untrained("mocov3", evidence.VIT)
    assert untrained("mocov3", RESNET) == untrained("prosmin", RESNET)


def test_baselines_are_those_of_an_earlier_run_with_the_same_untrained_network(tmp_path):
    def config(**fields):
        names = {name.replace("__", "."): value for name, value in fields.items()}
        return configs.resolve(recipe="cifar10-resnet18", overrides=names)

    rows = {name: {"baselines": {"raw pixels": {"top1": 0.4}}} for name in ("knn", "linear")}
    made = {"results": rows, "configuration": configs.to_tree(config()), "baselines_of": evidence.OWN}
    (tmp_path / "old-s0.json").write_text(json.dumps(made))  # of probes with other strengths
    made |= {"l2_grid": list(evidence.L2_GRID)}
    (tmp_path / "x-s0.json").write_text(json.dumps(made))
    (tmp_path / "borrowed-s0.json").write_text(json.dumps(made | {"baselines_of": "x-s0.json"}))
    asked = ("knn", "linear", "uncertainty")
    other = config(method__name="mocov3", training__epochs="25")
    found = evidence.known_baselines(tmp_path, other, asked)
    assert found == ("x-s0.json", {name: row["baselines"] for name, row in rows.items()})
    for unlike in (config(training__seed="1"), config(backbone__name="resnet8_cifar"), config(views__global_size="48")):
        assert evidence.known_baselines(tmp_path, unlike, asked) == ("", {})
    assert evidence.known_baselines(tmp_path, other, (*asked, "lowshot")) == ("", {})


def named(*made):
    return {each["name"]: [results_runs.Finished("x", each)] for each in made}


def test_a_method_is_held_to_the_better_of_its_runs_before_and_after_tuning():
    mine, tuned = document(f"{VIT}-prosmin-100"), document(f"{VIT}-ibot-100", knn=0.70)
    better = document(f"{VIT}-ibot-100-first", knn=0.78, near_auroc=0.9)
    told = verdicts.against_methods(named(mine, tuned, better))
    rows = dict(line.strip("| ").split(" | ") for line in told if line.startswith("| "))
    assert rows["kNN top-1 %"] == "80.0, 78.0 (iBOT, before tuning): **ahead**"
    assert rows["near OOD (CIFAR-100) AUROC %"] == "70.0, 90.0 (iBOT, before tuning): behind"
    assert rows["far OOD (SVHN) AUROC %"] == "70.0, 70.0 (iBOT): not told apart"
    assert told[-1] == (
        "- Worse after tuning: iBOT, ViT: kNN top-1 % 70.0, 78.0 before; linear top-1 % 72.0, 80.0 before; "
        "near OOD (CIFAR-100) AUROC % 70.0, 90.0 before."
    )
    helped = document(f"{VIT}-ibot-100-first", knn=0.60)
    assert not [line for line in verdicts.against_methods(named(mine, tuned, helped)) if "Worse" in line]


def test_a_run_of_earlier_code_does_not_compete_from_before_tuning():
    mine, tuned = document(f"{VIT}-prosmin-100"), document(f"{VIT}-dino-100", knn=0.70)
    older = document(f"{VIT}-dino-100-first", knn=0.95) | {"code": 1}
    told = "\n".join(verdicts.against_methods(named(mine, tuned, older)))
    assert "95.0" not in told
    assert "Worse" not in told


@pytest.mark.parametrize(
    ("one", "two", "apart"),
    [
        ((0.5, 0.03), (0.6, 0.04), True),  # the difference has an interval of 0.05 to each side
        ((0.5, 0.06), (0.6, 0.08), False),
        ((0.5, 0.06), (0.6, 0.06), True),  # the two intervals meet, that of the difference does not reach 0
        ((0.5, None), (0.6, 0.2), False),  # within the only interval there is
        ((0.5, None), (0.6, 0.04), None),
        ((0.5, None), (0.6, None), None),
    ],
)
def test_two_numbers_are_told_apart_by_their_difference(one, two, apart):
    def number(mean, half):
        return numbers.Number((0,), (mean,), None if half is None else (mean - half, mean + half))

    assert verdicts.told_apart(number(*one), number(*two)) is apart
    assert verdicts.told_apart(number(*two), number(*one)) is apart


def test_the_scale_is_held_against_the_best_order_of_its_twin_and_of_others(tmp_path):
    ours, twin, dino = (document(f"{RESNET}-{method}-100") for method in ("prosmin", "deterministic", "dino"))
    ours["results"]["uncertainty"]["metrics"]["r_auroc"] = 0.76
    twin["results"]["uncertainty"]["sets"]["test"]["low_feature_norm"]["r_auroc"] = 0.68
    dino["results"]["uncertainty"]["sets"]["test"]["low_feature_norm"]["r_auroc"] = 0.74
    claim = section(text(save(tmp_path, ours, twin, dino)), "## Claim: the probabilistic part helps")
    assert any(cell.startswith("+8.0 [") for cell in cells(claim, "R-AUROC %, the twin's by its best order").values())
    assert "Of other encoders the best is `short feature` of DINO, 74.0 [" in claim


def test_runs_that_wait_have_a_reason_and_a_cost(tmp_path):
    made = document(f"{RESNET}-prosmin-100") | {"training_seconds": 300.0}
    told = section(text(save(tmp_path, made)), "## What was run")
    assert "the runs of 200 epochs was not made for want of time on a GPU. The runs" in told  # the others' seconds lack
    assert (
        "along other fields was not made for want of time on a GPU, some 22 minutes of training" in told
    )  # 18 / 4 * 5
    for method, seconds in (("mocov3", 180.0), ("dino", 300.0), ("deterministic", 300.0)):
        save(tmp_path, document(f"{RESNET}-{method}-100") | {"training_seconds": seconds})
    told = section(text(tmp_path), "## What was run")
    assert "for want of time on a GPU, some 36 minutes of training by the seconds" in told  # 2 * (5 + 3 + 5 + 5)
    assert "`--stage axes`" in told
