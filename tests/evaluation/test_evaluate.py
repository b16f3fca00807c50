"""`evaluate`: its results, suites and options; nothing is chosen on test."""

import dataclasses
import json
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from evaluation_images import every_twelfth, notes
from prosmin import config as configs
from prosmin.cli import main
from prosmin.data.image_sets import load_pictures
from prosmin.encoder import Encoder, load, set_statistics, untrained
from prosmin.errors import ProsminError, UsageError
from prosmin.evaluation import run as evaluation
from prosmin.evaluation.context import TRAINED, Context
from prosmin.evaluation.metrics import calibration
from prosmin.evaluation.options import Options
from prosmin.evaluation.protocol import Result
from prosmin.evaluation.protocols import PROTOCOLS, protocols_of
from prosmin.evaluation.run import evaluate
from prosmin.evaluation.table import print_table
from prosmin.training.pretrain import pretrain
from tiny_run import TINY

PAPER = ["knn", "linear", "linear-paper", "lowshot", "semi", "transfer", "ood", "uncertainty", "corruption", "pictures"]
MEASURED = ["knn", "linear", "ood", "uncertainty"]


@pytest.fixture(scope="module")
def results(run):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "open_pictures", every_twelfth)
        return evaluate(run, protocols=MEASURED)


def read(run, name):
    return json.loads((run / f"results/{name}.json").read_text())


class TestResults:
    def test_every_protocol_writes_its_file(self, run, results):
        for name in MEASURED:
            row = read(run, name)
            assert row == json.loads(json.dumps(results[name]))
            assert row["protocol"] == name
            assert row["data"] == {"train": "photos@train", "test": "photos@test", "photos@ood": "photos@ood"}
            assert row["checkpoint"]["step"] == 6
            assert row["command"].startswith("prosmin evaluate")
        for name in ("raw pixels", "untrained", "untrained, BatchNorm set"):
            assert 0 < results["knn"]["baselines"][name]["top1"] < 1
        for row in (results["linear"]["metrics"], *results["linear"]["baselines"].values()):
            for name in ("nll", "ece", "adaptive_ece", "classwise_calibration_error", "brier"):
                assert math.isfinite(row[name])
                assert math.isfinite(row[f"{name}_calibrated"])
        assert {"coverage_95", "pit_distance", "energy_skill"} < results["uncertainty"]["metrics"].keys()
        for protocol in ("knn", "linear"):
            images, metrics = np.load(run / f"results/{protocol}.npz"), results[protocol]["metrics"]
            assert images["correct"].mean() == pytest.approx(metrics["top1"])
            assert images["nll"].mean() == pytest.approx(metrics["nll"])
        scores = np.load(run / "results/ood.npz")
        assert len(scores["in/knn_distance"]) == 70
        assert len(scores["out/photos@ood/mean_log_scale"]) == 100

    def test_existing_results_are_reused_unless_the_images_differ(self, run, results, fake):
        assert evaluate(run, protocols=MEASURED)["knn"] == results["knn"]
        assert evaluate(run, protocols="knn") == {"knn": results["knn"]}  # one name is a list of one
        assert fake == []
        evaluate(run, protocols=["knn"], data="photos@train", test="photos@train", out=run.parent / "other")
        assert fake == ["knn"]

    def test_a_result_that_lacks_an_option_had_its_default(self, run, results, monkeypatch):
        row = read(run, "knn")
        del row["options"]["baselines"]
        (run / "results/knn.json").write_text(json.dumps(row))
        monkeypatch.setattr(evaluation, "open_pictures", lambda spec, **_: pytest.fail("measured again"))
        assert evaluate(run, protocols=["knn"])["knn"]["metrics"] == row["metrics"]

    def test_features_are_embedded_once_for_all_protocols(self, run, results, monkeypatch):
        monkeypatch.setattr(evaluation, "open_pictures", every_twelfth)
        monkeypatch.setattr(Encoder, "summarise", lambda self, batch: pytest.fail("embedded again"))
        again = evaluate(run, protocols=["knn", "linear"], again=True)
        assert again["knn"]["metrics"] == results["knn"]["metrics"]
        assert again["linear"]["metrics"] == results["linear"]["metrics"]

    def test_without_baselines_the_metrics_of_the_encoder_are_the_same(self, run, results, tmp_path, capsys):
        options = Options(baselines="none")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(evaluation, "open_pictures", every_twelfth)
            alone = evaluate(run, protocols=["knn", "linear"], options=options, out=tmp_path / "alone")
        for name, row in alone.items():
            assert results[name]["baselines"]
            assert row["baselines"] == {}
            assert row["metrics"] == results[name]["metrics"]
        with pytest.MonkeyPatch.context() as patch:  # a result with baselines is reused
            patch.setattr(evaluation, "open_pictures", lambda spec, **_: pytest.fail("measured again"))
            assert evaluate(run, protocols=["knn"], options=options)["knn"]["baselines"]
        print_table(alone)
        assert "untrained" not in capsys.readouterr().out
        with pytest.raises(UsageError, match="--baselines is 'some'"):
            Options(baselines="some")

    def test_numbers_that_are_not_finite_are_null(self, copy, monkeypatch, fake):
        result = Result(metrics={"a": math.nan}, settings={"b": [1.0, math.inf]}, sets={"s": {"d": {"c": math.nan}}})
        monkeypatch.setitem(PROTOCOLS, "knn", dataclasses.replace(PROTOCOLS["knn"], run=lambda context: result))
        evaluate(copy, protocols=["knn"])
        row = json.loads((copy / "results/knn.json").read_text(), parse_constant=pytest.fail)
        assert (row["metrics"], row["settings"]) == ({"a": None}, {"b": [1.0, None]})
        assert row["sets"] == {"s": {"d": {"c": None}}}

    def test_features_that_cannot_be_cached_stop_nothing(self, copy, monkeypatch, capsys):
        monkeypatch.setattr(evaluation, "open_pictures", every_twelfth)
        monkeypatch.setattr(Context, "subjects", (TRAINED,))
        shutil.rmtree(copy / "cache", ignore_errors=True)
        (copy / "cache").write_text("a file where the folder should be")
        assert "top1" in evaluate(copy, protocols=["knn"])["knn"]["metrics"]
        assert (copy / "results" / "knn.json").exists()
        assert len([line for line in notes(capsys) if line.startswith("warning: features")]) == 1


def test_shuffled_test_labels_change_no_choice_and_no_prediction(copy):
    """The measured probabilities, the settings and the label-free scores are the same bit by bit."""
    options = Options(draws=1, linear_epochs=1, finetune_epochs=1)
    names = ["linear", "linear-paper", "lowshot", "semi", "ood"]

    def shuffled(spec, **_):
        pictures = every_twelfth(spec)
        if spec != "photos@test":
            return pictures
        order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(0))
        return dataclasses.replace(pictures, labels=pictures.labels[order])

    def measured(load):
        seen, measure = [], calibration.classification_metrics

        def record(probabilities, labels, **settings):
            seen.append(probabilities)
            return measure(probabilities, labels, **settings)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(evaluation, "open_pictures", load)
            patch.setattr(Context, "subjects", (TRAINED,))  # the baselines are measured by the same code
            patch.setattr(calibration, "classification_metrics", record)
            return evaluate(copy, protocols=names, options=options, again=True), seen

    honest, probabilities = measured(every_twelfth)
    blind, probabilities_blind = measured(shuffled)
    assert len(probabilities) == 8  # linear, linear-paper, lowshot and semi, before and after temperature scaling
    assert all(torch.equal(a, b) for a, b in zip(probabilities, probabilities_blind, strict=True))
    for name in names:
        assert blind[name]["settings"] == honest[name]["settings"]
    assert blind["linear"]["metrics"]["temperature"] == honest["linear"]["metrics"]["temperature"]
    assert blind["ood"]["sets"] == honest["ood"]["sets"]
    for name, metric in (("linear", "top1"), ("lowshot", "top1_10pct")):
        assert blind[name]["metrics"][metric] < 0.2 < honest[name]["metrics"][metric]


class TestSuites:
    def test_the_tasks_of_the_paper_in_one_command(self, copy, fake, capsys):
        assert protocols_of("paper") == PAPER
        found = evaluate(copy, suite="paper")
        without_transfer = [name for name in PAPER if name != "transfer"]
        assert list(found) == without_transfer
        (line,) = notes(capsys)
        assert line.startswith("left out: transfer: ")
        assert "--transfer SPEC" in line
        fake.clear()
        found = evaluate(copy, suite="paper", options=Options(transfer=("photos",)))
        assert fake == ["transfer"]
        assert list(found) == PAPER
        assert capsys.readouterr().err.splitlines()[0].startswith(f"measured before: {', '.join(without_transfer)}; ")

    def test_by_default_the_quick_protocols_run(self, copy, fake, capsys):
        assert list(evaluate(copy)) == protocols_of(None)
        starts = [line.split()[1] for line in capsys.readouterr().err.splitlines() if line.endswith("...")]
        assert starts == protocols_of(None)
        assert read(copy, "corruption")["options"]["severities"] == [1, 3, 5]
        evaluate(copy, suite="paper")
        full = read(copy, "corruption")
        assert full["options"]["severities"] == [1, 2, 3, 4, 5]
        fake.clear()
        assert evaluate(copy)["corruption"] == full  # the full result is not replaced by a quick one
        assert fake == []

    def test_a_given_option_replaces_the_quick_one(self, copy, fake, capsys):
        assert main(["evaluate", str(copy), "--severities", "1,2,3,4,5"]) == 0
        options = read(copy, "corruption")["options"]
        assert options["severities"] == [1, 2, 3, 4, 5]
        assert len(options["corruptions"]) == 4  # not given

    def test_other_ood_images_concern_only_the_protocols_that_read_them(self, copy, fake):
        evaluate(copy, protocols=["knn", "ood"])
        fake.clear()
        evaluate(copy, protocols=["knn", "ood"], ood="photos@test")
        assert fake == ["ood"]

    def test_a_list_given_twice_is_one_list(self, copy, fake, capsys):
        twice = ["--protocols", "knn", "--protocols", "ood", "--ood", "photos@ood", "--ood", "photos"]
        assert main(["evaluate", str(copy), *twice]) == 0
        assert fake == ["knn", "ood"]
        assert {"photos@ood", "photos"} < read(copy, "ood")["data"].keys()

    def test_options_concern_only_the_protocols_that_read_them(self, copy, fake):
        names = ["knn", "lowshot", "semi"]
        evaluate(copy, protocols=names)
        fake.clear()
        found = evaluate(copy, protocols=names, options=Options(finetune_epochs=2))
        assert fake == ["semi"]
        assert found["semi"]["command"].endswith("--finetune-epochs 2")
        assert "--finetune-epochs" not in found["lowshot"]["command"]
        fake.clear()
        evaluate(copy, protocols=names, options=Options(draws=5, finetune_epochs=2))
        assert fake == ["lowshot", "semi"]

    def test_the_command_passes_the_options_on(self, copy, fake, capsys):
        command = ["evaluate", str(copy), "--suite", "paper", "--severities", "3,5", "--transfer", "photos"]
        lists = ["--label-lists", "nowhere.txt"]
        assert main([*command, "--draws", "2", *lists]) == 2
        assert "--draws is 2, but --label-lists" in capsys.readouterr().err
        assert main([*command, *lists]) == 1
        assert "nowhere.txt" in capsys.readouterr().err
        assert main([*command, "--draws", "2"]) == 0
        assert fake == PAPER
        options = {name: read(copy, name)["options"] for name in PAPER}
        assert options["lowshot"] == {"baselines": "all", "label_lists": [], "draws": 2}
        assert options["corruption"]["severities"] == [3, 5]
        assert options["transfer"]["transfer"] == ["photos"]
        assert options["uncertainty"] == {}

    def test_a_share_of_labels_that_is_left_out_is_printed(self, copy, monkeypatch, capsys):
        monkeypatch.setattr(evaluation, "open_pictures", every_twelfth)
        found = evaluate(copy, protocols=["lowshot"], options=Options(baselines="none", draws=1))
        assert "top1_1pct" not in found["lowshot"]["metrics"]
        assert [line for line in notes(capsys) if line.startswith("lowshot: left out 1pct: ")]


def test_batchnorm_statistics_are_set_and_weights_are_not(tiny):
    pictures = every_twelfth("photos@train")
    fresh, calibrated = untrained(tiny()), set_statistics(untrained(tiny()), pictures)
    for (name, a), b in zip(fresh.method.named_parameters(), calibrated.method.parameters(), strict=True):
        assert torch.equal(a, b), name
    features = calibrated(pictures).features
    assert not torch.equal(fresh(pictures).features, features)
    assert torch.equal(calibrated(pictures).features, features)  # evaluation does not change them


def test_uncertainty_of_a_forecast_without_a_scale_is_the_variance_between_views(tiny, tmp_path):
    """Of the views of a first image, for every image."""
    run = pretrain(tiny(heads__scale="zero", training__max_steps="1"), tmp_path / "twin")
    encoder = load(run, device="cpu")
    pictures = load_pictures("photos@test").subset(torch.arange(8))
    alone = [torch.cat([view.mean for view in encoder.views(pictures.subset(torch.tensor([i])))]) for i in range(8)]
    expected = torch.stack([views.var(0).mean() for views in alone])
    torch.testing.assert_close(encoder.forecast_uncertainty(pictures), expected, rtol=0.01, atol=0)  # tiny variances


def test_the_share_of_unreadable_images_is_that_of_the_run_or_given(tmp_path, capsys):
    images = load_pictures("photos@train").images
    for i in range(60):
        path = tmp_path / "mine" / ("train" if i < 40 else "test") / "ab"[i % 2] / f"{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[i].permute(1, 2, 0).numpy()).save(path)
        if i in (3, 14, 55):
            path.write_bytes(b"no image")
    fields = TINY | {
        "data.spec": f"folder:{tmp_path}/mine@train",
        "training.batch_size": "8",
        "heads.dim": "8",
        "training.seed": "5",
    }
    run = pretrain(configs.resolve(recipe="demo", overrides=fields | {"data.max_bad": "0.1"}), tmp_path / "run")
    with pytest.raises(ProsminError, match=r"14\.png"):
        evaluate(run, protocols=["knn"], max_bad=0.01)
    for words, status in (("0.01", 1), ("2", 2), ("0.1", 0)):
        assert main(["evaluate", str(run), "--protocols", "knn", "--max-bad", words]) == status
    found = evaluate(run, protocols=["knn"], again=True)
    assert found["knn"]["seed"] == 0  # of the evaluation, not of the training
    assert (found["knn"]["metrics"]["top1"] * 19).is_integer()
