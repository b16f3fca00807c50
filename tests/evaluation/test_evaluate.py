"""`prosmin evaluate`: what it writes, what it does not repeat, what it never looks at."""

import dataclasses
import json
import math
import shutil

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from prosmin import config as configs
from prosmin.cli import main
from prosmin.data.image_sets import load_pictures
from prosmin.encoder import Encoder, load, set_statistics, untrained
from prosmin.errors import ProsminError, UsageError
from prosmin.evaluation import run as suite
from prosmin.evaluation.context import TRAINED, Context
from prosmin.evaluation.metrics import calibration
from prosmin.evaluation.options import Options, check_read, flag, read_options
from prosmin.evaluation.protocol import Result
from prosmin.evaluation.protocols import PROTOCOLS, protocols_of
from prosmin.evaluation.results import Job
from prosmin.evaluation.run import evaluate
from prosmin.evaluation.table import print_table
from prosmin.report import write_report
from prosmin.training.pretrain import pretrain
from tiny_run import TINY

PAPER = ["knn", "linear", "linear-paper", "lowshot", "semi", "transfer", "ood", "uncertainty", "corruption", "pictures"]
QUICK = ["knn", "linear", "ood", "uncertainty"]
GIVEN = {
    "baselines": ("none", "none"),
    "near": (("folder:a", "folder:b"), "folder:a,folder:b"),
    "corrupted": ("folder:a", "folder:a"),
    "corruptions": (("fog",), "fog"),
    "severities": ((1, 5), "1,5"),
    "corruption_parameters": ("imagenet-c", "imagenet-c"),
    "corruption_generator": ("imagecorruptions", "imagecorruptions"),
    "transfer": (("photos",), "photos"),
    "label_lists": (("a.txt",), "a.txt"),
    "draws": (5, "5"),
    "linear_epochs": (2, "2"),
    "finetune_epochs": (2, "2"),
}
"""A value of each option that is not its default, and the same on the command line."""


def notes(capsys):
    """What was printed on stderr beside the progress of the protocols."""
    return [line for line in capsys.readouterr().err.splitlines() if not line.startswith("[")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite") / "run"
    return pretrain(configs.resolve(recipe="demo", overrides=TINY), folder)


def every_twelfth(spec, **_):
    """A twelfth of a set, so that the protocols take seconds; of train, test and OOD all classes remain."""
    pictures = load_pictures(spec)
    return pictures.subset(torch.arange(0, len(pictures), 12))


@pytest.fixture(scope="module")
def results(run):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite, "open_pictures", every_twelfth)
        return evaluate(run, protocols=QUICK)


@pytest.fixture
def fake(monkeypatch):
    """Protocols that measure nothing but say that they ran."""
    ran = []

    def protocol(name):
        def measure(context):
            ran.append(name)
            return Result(metrics={"top1": 0.5}, settings={})

        return measure

    monkeypatch.setattr(suite, "open_pictures", every_twelfth)
    for name, record in list(PROTOCOLS.items()):
        monkeypatch.setitem(PROTOCOLS, name, dataclasses.replace(record, run=protocol(name)))
    return ran


@pytest.fixture
def copy(run, tmp_path):
    """The run without results."""
    folder = tmp_path / "run"
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("results", "checkpoints"))
    return folder


class TestResults:
    def test_every_protocol_leaves_its_file(self, run, results):
        for name in QUICK:
            row = json.loads((run / f"results/{name}.json").read_text())
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
        scores = np.load(run / "results/ood.npz")
        assert len(scores["in/knn_distance"]) == 70
        assert len(scores["out/photos@ood/mean_log_scale"]) == 100

    def test_what_is_there_is_not_repeated_and_what_changed_is(self, run, results, fake):
        assert evaluate(run, protocols=QUICK)["knn"] == results["knn"]
        assert evaluate(run, protocols="knn") == {"knn": results["knn"]}  # one name is a list of one
        assert fake == []
        evaluate(run, protocols=["knn"], data="photos@train", test="photos@train")
        assert fake == ["knn"]

    def test_another_protocol_does_not_embed_the_pictures_again(self, run, results, monkeypatch):
        """Of all the features that kNN needs none is computed a second time."""
        monkeypatch.setattr(suite, "open_pictures", every_twelfth)
        monkeypatch.setattr(Encoder, "summarise", lambda self, batch: pytest.fail("embedded again"))
        again = evaluate(run, protocols=["knn", "linear"], again=True)
        assert again["knn"]["metrics"] == results["knn"]["metrics"]
        assert again["linear"]["metrics"] == results["linear"]["metrics"]

    def test_numbers_that_are_not_finite_are_null(self, copy, monkeypatch, fake):
        result = Result(metrics={"a": math.nan}, settings={"b": [1.0, math.inf]}, sets={"s": {"d": {"c": math.nan}}})
        monkeypatch.setitem(PROTOCOLS, "knn", dataclasses.replace(PROTOCOLS["knn"], run=lambda context: result))
        evaluate(copy, protocols=["knn"])
        row = json.loads((copy / "results/knn.json").read_text(), parse_constant=pytest.fail)
        assert row["metrics"] == {"a": None}
        assert row["settings"] == {"b": [1.0, None]}
        assert row["sets"] == {"s": {"d": {"c": None}}}


class TestNothingIsChosenOnTest:
    def test_shuffled_test_labels_move_no_choice_and_no_answer(self, copy, monkeypatch):
        """The probabilities that are judged, the settings and the label-free scores are the same bit by bit."""
        options = Options(draws=1, linear_epochs=1, finetune_epochs=1)
        wanted = ["linear", "linear-paper", "lowshot", "semi", "ood"]

        def shuffled(spec, **_):
            pictures = every_twelfth(spec)
            if spec != "photos@test":
                return pictures
            order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(0))
            return dataclasses.replace(pictures, labels=pictures.labels[order])

        def measured(load):
            judged, measure = [], calibration.classification_metrics

            def record(probabilities, labels, **settings):
                judged.append(probabilities)
                return measure(probabilities, labels, **settings)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(suite, "open_pictures", load)
                patch.setattr(Context, "subjects", (TRAINED,))  # the baselines are judged by the same code
                patch.setattr(calibration, "classification_metrics", record)
                return evaluate(copy, protocols=wanted, options=options, again=True), judged

        honest, judged = measured(every_twelfth)
        blind, judged_blind = measured(shuffled)
        assert len(judged) == 8  # linear, linear-paper, lowshot and semi, before and after the temperature
        assert all(torch.equal(a, b) for a, b in zip(judged, judged_blind, strict=True))
        for name in wanted:
            assert blind[name]["settings"] == honest[name]["settings"]
        temperatures = [
            {k: v for k, v in r["linear"]["metrics"].items() if k == "temperature"} for r in (honest, blind)
        ]
        assert temperatures[0] == temperatures[1] != {}
        assert blind["ood"]["sets"] == honest["ood"]["sets"]
        for name, metric in (("linear", "top1"), ("lowshot", "top1_10pct")):
            assert blind[name]["metrics"][metric] < 0.2 < honest[name]["metrics"][metric]


class TestSuites:
    def test_the_paper_s_tasks_in_one_command(self, copy, fake, capsys):
        found = evaluate(copy, suite="paper")
        assert list(found) == [name for name in PAPER if name != "transfer"]
        (line,) = notes(capsys)
        assert line.startswith("left out: transfer: ")
        assert "--transfer SPEC" in line
        fake.clear()
        found = evaluate(copy, suite="paper", options=Options(transfer=("photos",)))
        assert fake == ["transfer"]
        assert list(found) == PAPER
        before = ", ".join(name for name in PAPER if name != "transfer")
        (line,) = notes(capsys)
        assert line.startswith(f"measured before: {before}; --again")

    def test_without_a_name_the_quick_ones_are_run(self, copy, fake):
        assert list(evaluate(copy)) == protocols_of(None)
        corruption = json.loads((copy / "results/corruption.json").read_text())
        assert corruption["options"]["severities"] == [1, 3, 5]
        fake.clear()
        evaluate(copy, suite="paper")
        full = json.loads((copy / "results/corruption.json").read_text())
        assert full["options"]["severities"] == [1, 2, 3, 4, 5]
        fake.clear()
        assert evaluate(copy)["corruption"] == full  # the full result is not replaced by a quick one
        assert fake == []

    def test_who_names_all_severities_has_them_all(self, copy, fake, capsys):
        assert main(["evaluate", str(copy), "--severities", "1,2,3,4,5"]) == 0
        row = json.loads((copy / "results/corruption.json").read_text())
        assert row["options"]["severities"] == [1, 2, 3, 4, 5]
        assert len(row["options"]["corruptions"]) == 4  # these were not named

    def test_other_strange_pictures_are_no_reason_to_repeat_what_does_not_read_them(self, copy, fake):
        evaluate(copy, protocols=["knn", "ood"])
        fake.clear()
        evaluate(copy, protocols=["knn", "ood"], ood="photos@test")
        assert fake == ["ood"]

    def test_a_list_given_twice_is_one_list(self, copy, fake, capsys):
        twice = ["--protocols", "knn", "--protocols", "ood", "--ood", "photos@ood", "--ood", "photos"]
        assert main(["evaluate", str(copy), *twice]) == 0
        assert fake == ["knn", "ood"]
        assert {"photos@ood", "photos"} < json.loads((copy / "results/ood.json").read_text())["data"].keys()

    def test_options_are_part_of_a_result_for_the_protocols_that_read_them(self, copy, fake):
        evaluate(copy, protocols=["knn", "lowshot", "semi"])
        fake.clear()
        found = evaluate(copy, protocols=["knn", "lowshot", "semi"], options=Options(finetune_epochs=2))
        assert fake == ["semi"]
        assert found["semi"]["command"].endswith("--finetune-epochs 2")
        assert "--finetune-epochs" not in found["lowshot"]["command"]
        fake.clear()
        evaluate(copy, protocols=["knn", "lowshot", "semi"], options=Options(draws=5, finetune_epochs=2))
        assert fake == ["lowshot", "semi"]

    def test_the_command_passes_the_options_on(self, copy, fake, monkeypatch, capsys):
        command = [
            "evaluate",
            str(copy),
            "--suite",
            "paper",
            "--draws",
            "2",
            "--severities",
            "3,5",
            "--transfer",
            "photos",
        ]
        assert main([*command, "--label-lists", "nowhere.txt"]) == 2
        assert "--draws is 2, but the files of --label-lists take the place of" in capsys.readouterr().err
        assert main([word for word in command if word not in ("--draws", "2")] + ["--label-lists", "nowhere.txt"]) == 1
        assert "The label list nowhere.txt cannot be read" in capsys.readouterr().err
        assert main(command) == 0
        assert fake == PAPER
        read = {name: json.loads((copy / f"results/{name}.json").read_text())["options"] for name in PAPER}
        assert read["lowshot"] == {"baselines": "all", "label_lists": [], "draws": 2}
        assert read["corruption"]["severities"] == [3, 5]
        assert read["transfer"]["transfer"] == ["photos"]
        assert read["uncertainty"] == {}

    def test_the_file_of_an_encoder_means_its_folder(self, copy, fake):
        assert main(["evaluate", str(copy / "encoder.safetensors"), "--protocols", "knn"]) == 0
        row = json.loads((copy / "results" / "knn.json").read_text())
        assert row["command"].startswith(f"prosmin evaluate {copy} --protocols knn")
        assert evaluate(copy, protocols=["knn"])["knn"] == row
        assert fake == ["knn"]
        with pytest.raises(ProsminError, match=r"config\.yaml is not a run folder"):
            evaluate(copy / "config.yaml", protocols=["knn"])

    def test_an_encoder_of_others_has_its_folder(self, tmp_path, fake):
        model = timm.create_model("test_vit", num_classes=0)
        torch.save(model.state_dict(), tmp_path / "w.pth")
        name = f"timm:test_vit@{tmp_path}/w.pth"
        row = evaluate(name, protocols=["knn"], data="photos", out=tmp_path / "out")["knn"]
        assert row["command"].startswith(f"prosmin evaluate {name} --protocols knn")
        assert row["command"].endswith(f"--out {tmp_path}/out")
        assert evaluate(tmp_path / "out", protocols=["knn"], data="photos")["knn"] == row
        assert len(fake) == 1


class TestOtherPictures:
    """One file a protocol: what was measured on other images is not replaced without a word, and can be kept."""

    def test_what_is_replaced_is_said(self, copy, fake, capsys):
        evaluate(copy, protocols=["knn", "linear", "ood", "pictures"])
        evaluate(copy, protocols=["knn"], again=True)
        evaluate(copy, protocols=["pictures"], ood=["photos@ood", "photos@test"])  # nothing is lost
        assert notes(capsys) == []
        evaluate(copy, protocols=["ood"], ood=["photos@test"])
        (line,) = notes(capsys)
        assert line.startswith("replacing the results of ood on photos@train, photos@test, photos@ood; --out DIR")
        evaluate(copy, protocols=["knn", "linear", "uncertainty"], data="photos@test", test="photos@train")
        (line,) = notes(capsys)
        assert line.startswith("replacing the results of knn, linear on photos@train, photos@test; --out DIR")

    def test_other_sets_of_transfer(self, copy, fake, capsys):
        evaluate(copy, protocols=["transfer"], options=Options(transfer=("photos",)))
        evaluate(copy, protocols=["transfer"], options=Options(transfer=("photos",)), data="photos@test")
        (line,) = notes(capsys)
        assert line.startswith("measured before: transfer; --again")
        evaluate(copy, protocols=["transfer"], options=Options(transfer=("photos@test",)))
        assert capsys.readouterr().err.startswith("replacing the results of transfer on photos;")

    def test_out_keeps_them_apart(self, copy, fake, tmp_path, capsys):
        out = tmp_path / "apart"
        evaluate(copy, protocols=["knn"])
        before = {path: path.stat().st_mtime_ns for path in sorted(copy.rglob("*"))}
        request = ["--protocols", "knn", "--data", "photos@test", "--test", "photos@train"]
        assert main(["evaluate", str(copy), *request, "--out", str(out)]) == 0
        assert {path: path.stat().st_mtime_ns for path in sorted(copy.rglob("*"))} == before
        row = json.loads((out / "results/knn.json").read_text())
        assert row["command"].startswith(f"prosmin evaluate {copy} --protocols knn")
        assert row["command"].endswith(f"--out {out}")
        assert fake == ["knn", "knn"]
        assert main(["evaluate", str(out), *request]) == 0  # the folder stands for its run
        assert fake == ["knn", "knn"]
        assert "replacing" not in capsys.readouterr().err
        text = write_report([out], out / "report.html").read_text()
        assert "ProSMIN with resnet8_cifar, trained on photos" in text
        assert "Loss" in text  # the log of the run itself
        (copy / "metrics.jsonl").unlink()
        assert "Not trained here" in write_report([out], out / "report.html").read_text()
        with pytest.raises(UsageError, match=f"the results of {copy}"):
            evaluate("timm:resnet18", protocols=["knn"], out=out)
        copy.rename(tmp_path / "moved")
        with pytest.raises(ProsminError, match=f"the results of {copy}, "):
            evaluate(out, protocols=["knn"])


@pytest.mark.parametrize("protocols", [None, ["knn"], ["knn", "transfer"]])
def test_an_encoder_of_others_is_not_judged_on_pictures_that_nobody_named(tmp_path, protocols):
    out = tmp_path / "results"
    with pytest.raises(UsageError, match=r"timm:resnet18 .*--data SPEC"):
        evaluate("timm:resnet18", protocols=protocols, out=out)
    assert not out.exists()


def test_nor_is_one_that_was_saved(tmp_path):
    torch.save(timm.create_model("test_vit", num_classes=0).state_dict(), tmp_path / "w.pth")
    folder = load(f"timm:test_vit@{tmp_path}/w.pth").save(tmp_path / "saved")
    with pytest.raises(UsageError, match=r"saved .*--data SPEC"):
        evaluate(folder, protocols=["knn"])


class TestPlaces:
    def test_results_that_cannot_be_written_are_known_before_the_work(self, copy, fake, monkeypatch, capsys):
        (copy / "results").write_text("a file where the folder should be")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(suite, "open_pictures", lambda *_, **__: pytest.fail("read before the place was looked at"))
            assert main(["evaluate", str(copy), "--protocols", "knn"]) == 1
        assert capsys.readouterr().err == (
            f"prosmin: {copy}/results cannot be written: Not a directory. Choose another folder. "
            "`--out DIR` puts the results elsewhere.\n"
        )
        assert fake == []

    def test_features_that_cannot_be_kept_stop_nothing(self, copy, monkeypatch, capsys):
        monkeypatch.setattr(suite, "open_pictures", every_twelfth)
        monkeypatch.setattr(Context, "subjects", (TRAINED,))
        shutil.rmtree(copy / "cache", ignore_errors=True)
        (copy / "cache").write_text("a file where the folder should be")
        assert "top1" in evaluate(copy, protocols=["knn"])["knn"]["metrics"]
        assert (copy / "results" / "knn.json").exists()
        assert capsys.readouterr().err.count("warning: features are not kept for the next command") == 1


class TestWrongRequests:
    def test_names(self, run, fake, tmp_path):
        with pytest.raises(UsageError, match=r"'knnn'.*: knn, linear"):
            evaluate(run, protocols=["knnn"])
        with pytest.raises(UsageError, match=r"'papers'.*: paper"):
            evaluate(run, suite="papers")
        with pytest.raises(UsageError, match="--suite and --protocols"):
            evaluate(run, suite="paper", protocols=["knn"])
        with pytest.raises(UsageError, match=r"transfer .*--transfer SPEC"):
            evaluate(run, protocols=["transfer"])
        with pytest.raises(UsageError, match="--draws is 0"):
            Options(draws=0)
        with pytest.raises(UsageError, match="--linear-epochs is 'many'"):
            read_options({"linear_epochs": "many"})

    def test_a_run_without_an_encoder(self, tmp_path):
        (tmp_path / "unfinished").mkdir()
        with pytest.raises(ProsminError, match=r"holds no encoder\.json"):
            evaluate(tmp_path / "unfinished")

    def refused(self, copy, fake, match, **request):
        """The sentence comes before any protocol, and nothing is left behind."""
        before = sorted(copy.rglob("*"))
        with pytest.raises(ProsminError, match=match):
            evaluate(copy, **request)
        assert fake == []
        assert sorted(copy.rglob("*")) == before

    def changed(self, monkeypatch, spec, change):
        """One of the sets, changed."""

        def load(wanted, **_):
            pictures = every_twelfth(wanted)
            return change(pictures) if wanted == spec else pictures

        monkeypatch.setattr(suite, "open_pictures", load)

    def test_pictures_without_labels(self, copy, fake, monkeypatch, capsys):
        self.changed(monkeypatch, "photos@test", lambda p: dataclasses.replace(p, labels=None, classes=()))
        self.refused(copy, fake, "photos@test has no labels", protocols=["ood", "knn"])
        assert list(evaluate(copy)) == ["ood", "uncertainty", "pictures"]  # what can do without them
        said = capsys.readouterr().err
        assert "left out: knn, linear, corruption: " in said
        assert said.count("photos@test has no labels") == 1
        assert "--data SPEC" in said

    def test_train_as_test_is_said(self, copy, fake, capsys):
        row = evaluate(copy, protocols=["knn"], data="photos@train", test="photos@train")["knn"]
        said = "--data and --test both name photos@train: what is measured is no test"
        assert capsys.readouterr().err.startswith(said)
        assert row["settings"]["test_pictures"].startswith(said)
        assert "test_pictures" not in evaluate(copy, protocols=["knn"])["knn"]["settings"]
        assert "both name" not in capsys.readouterr().err

    def test_splits_of_other_classes(self, copy, fake, monkeypatch):
        self.changed(monkeypatch, "photos@test", lambda p: dataclasses.replace(p, classes=("x", *p.classes[1:])))
        self.refused(copy, fake, "have other classes, such as astronaut, x", suite="paper")

    def test_an_ood_set_of_one_picture(self, copy, fake, monkeypatch):
        self.changed(monkeypatch, "photos@ood", lambda p: p.subset(torch.arange(1)))
        self.refused(copy, fake, "photos@ood has one image", suite="paper")

    def test_fewer_labels_than_classes(self, copy, fake, monkeypatch, capsys):
        self.changed(monkeypatch, "photos@train", lambda p: p.subset(torch.arange(0, len(p), 8)))
        self.refused(copy, fake, "35 labels is 0, fewer than the 14 classes.*is 4, fewer", protocols=["knn", "lowshot"])
        assert "semi" not in evaluate(copy, suite="paper")
        assert "lowshot, semi: photos@train has too few labels" in capsys.readouterr().err

    def test_wrong_files_and_sets_behind_options(self, copy, fake, tmp_path):
        lists = Options(label_lists=(str(tmp_path / "missing.txt"),))
        self.refused(copy, fake, "missing.txt cannot be read", suite="paper", options=lists)
        self.refused(copy, fake, "names no source", suite="paper", options=Options(transfer=("nowhere",)))

    @pytest.mark.parametrize("field", dataclasses.fields(Options), ids=lambda field: field.name)
    def test_an_option_that_no_chosen_protocol_reads(self, field):
        """It is named with those that read it and with a command that would; beside one of those it is taken."""
        value, text = GIVEN[field.name]
        readers = field.metadata["read_by"]
        options = Options(**{field.name: value})
        with pytest.raises(UsageError) as caught:
            check_read(options, ["uncertainty", "pictures"], {})
        assert f"{flag(field.name)} {text} (read by {', '.join(readers)})" in str(caught.value)
        assert str(caught.value).endswith(f"--protocols uncertainty,pictures,{readers[0]}.")
        for name in readers:
            check_read(options, ["uncertainty", name], {})
        check_read(Options(**{field.name: field.default}), ["knn"], {})  # which is as if not given

    def test_all_options_that_are_not_read_are_named_at_once(self, copy, fake, capsys):
        words = ["--transfer", "folder:/nonexistent", "--label-lists", "/nofile", "--corrupted", "folder:/nope"]
        assert main(["evaluate", str(copy), "--protocols", "knn", *words]) == 2
        assert capsys.readouterr().err == (
            "prosmin: No protocol that is to run (knn) reads --corrupted folder:/nope (read by corruption), --transfer "
            "folder:/nonexistent (read by transfer), --label-lists /nofile (read by lowshot, semi). Leave out what is "
            "not read, or add the protocols that read them: --protocols knn,corruption,transfer,lowshot.\n"
        )
        assert fake == []

    def test_an_option_of_a_protocol_that_lacks_its_pictures(self, copy, fake):
        """A suite leaves that protocol out and names it; an option for it is more than that."""
        near = Options(near=("folder:x",))
        needs = r"--near folder:x \(read by ood, which needs out-of-distribution images: --ood .*or give what is needed"
        for request in ({"suite": "paper"}, {}):
            self.refused(copy, fake, needs, ood=[], options=near, **request)

    def test_the_options_of_a_suite_s_protocols_are_read(self, copy, fake):
        options = Options(draws=2, linear_epochs=1, finetune_epochs=1, severities=(1,), transfer=("photos",))
        assert list(evaluate(copy, suite="paper", options=options)) == PAPER


def test_statistics_are_set_and_weights_are_not(run, tiny):
    pictures = every_twelfth("photos@train")
    fresh, calibrated = untrained(tiny()), set_statistics(untrained(tiny()), pictures)
    for (name, a), b in zip(fresh.method.named_parameters(), calibrated.method.parameters(), strict=True):
        assert torch.equal(a, b), name
    features = calibrated(pictures).features
    assert not torch.equal(fresh(pictures).features, features)
    assert torch.equal(calibrated(pictures).features, features)  # evaluation does not move them


def test_uncertainty_without_a_scale_is_the_variance_between_views(tiny, tmp_path):
    run = pretrain(tiny(heads__scale="zero", training__max_steps="1"), tmp_path / "twin")
    encoder = load(run)
    pictures = load_pictures("photos@test").subset(torch.arange(8))
    views = torch.stack([view.mean for view in encoder.views(pictures)])
    torch.testing.assert_close(encoder.uncertainty(pictures), views.var(0).mean(1))


def test_results_of_files_that_have_changed_are_measured_again(run, tmp_path, fake, monkeypatch, capsys):
    """A folder that was filled anew; one of other images that only some protocols look at; one that is gone."""
    from PIL import Image

    monkeypatch.setattr(suite, "open_pictures", lambda spec, **_: load_pictures(spec))
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    for folder, count in (
        ("mine/train/a", 12),
        ("mine/train/b", 12),
        ("mine/test/a", 6),
        ("mine/test/b", 6),
        ("ood", 4),
    ):
        (tmp_path / folder).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (8 + i, 32), (9 * i, 99, 5)).save(tmp_path / folder / f"{i}.png")
    sets = {"data": f"folder:{tmp_path}/mine@train", "ood": f"folder:{tmp_path}/ood"}

    def measured():
        fake.clear()
        evaluate(copy, protocols=["knn", "ood"], **sets)
        return list(fake)

    assert measured() == ["knn", "ood"]
    assert measured() == []
    Image.new("RGB", (300, 200)).save(tmp_path / "ood" / "2.png")
    capsys.readouterr()
    assert measured() == ["ood"]
    assert f"the files of folder:{tmp_path}/ood have changed" in capsys.readouterr().err
    assert measured() == []
    (tmp_path / "mine/train/a/3.png").rename(tmp_path / "mine/train/b/13.png")  # another label
    assert measured() == ["knn", "ood"]
    (tmp_path / "ood").rename(tmp_path / "moved")
    assert measured() == []  # what was measured is still worth a look


class TestWrongTurns:
    """What people do wrong without noticing."""

    @pytest.fixture
    def labelled(self, tmp_path):
        from PIL import Image

        for part in ("train", "test"):
            for name in ("a", "b"):
                (tmp_path / "set" / part / name).mkdir(parents=True)
                for i in range(12):
                    Image.new("RGB", (32, 32), (9 * i, 99, 5)).save(tmp_path / "set" / part / name / f"{i}.png")
        return tmp_path / "set"

    @pytest.mark.parametrize("split", ["tset", "valid"])
    def test_a_split_that_there_is_not(self, copy, fake, labelled, split):
        with pytest.raises(UsageError, match=f"has no split '{split}'; it has: test, train"):
            evaluate(copy, protocols=["knn"], data=f"folder:{labelled}@{split}")
        assert fake == []

    def test_strangers_that_no_protocol_looks_at(self, copy, fake, labelled):
        with pytest.raises(
            UsageError, match=r"\(knn\) reads --ood photos@ood\. Leave it out, or add one that does: ood,"
        ):
            evaluate(copy, protocols=["knn"], data=f"folder:{labelled}", ood=["photos@ood"])
        assert fake == []

    def test_pictures_of_the_run_as_seen_from_another_folder(self, tmp_path, tiny, labelled, monkeypatch):
        monkeypatch.chdir(tmp_path)
        run = pretrain(
            tiny(data__spec="folder:set", training__batch_size="8", training__max_steps="1"), tmp_path / "run"
        )
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        monkeypatch.chdir(elsewhere)
        with pytest.raises(UsageError, match=r"folder:set.*--data SPEC"):
            evaluate(run, protocols=["uncertainty"])

    def test_files_that_options_name_and_that_have_changed(self, labelled, tmp_path):
        """The test split of a set to transfer to, a list of labels, stored corruptions."""
        (tmp_path / "list.txt").write_text("a/1.png\nb/1.png\n")
        (tmp_path / "stored").mkdir()
        (tmp_path / "stored/fog.npy").write_bytes(bytes(8))
        options = Options(
            transfer=(f"folder:{labelled}",),
            label_lists=(f"{tmp_path}/list.txt",),
            corrupted=f"folder:{tmp_path}/stored",
        )
        named = suite.named_sets("photos", None, None, learned_from="photos")
        job = Job(run="", folder=tmp_path, encoder=None, named=named, options=options)
        before = job.marks()
        assert len(before) == 3
        (labelled / "test/a/0.png").write_bytes(b"another")
        (tmp_path / "list.txt").write_text("a/1.png\nb/2.png\n")
        (tmp_path / "stored/fog.npy").write_bytes(bytes(9))
        after = job.marks()
        assert before.keys() == after.keys()
        assert all(before[name] != after[name] for name in before)
        for name in ("transfer", "lowshot", "corruption"):
            assert len(job.reads(name) & before.keys()) == 1

    def test_an_encoder_instead_of_its_folder(self, run):
        with pytest.raises(UsageError, match=r"got Encoder; save an encoder first"):
            evaluate(load(run), protocols=["knn"])

    def test_too_few_pictures_to_choose_on(self, copy, tmp_path, monkeypatch):
        from PIL import Image

        monkeypatch.setattr(suite, "open_pictures", lambda spec, **_: load_pictures(spec))
        (tmp_path / "few").mkdir()
        for i in range(5):
            Image.new("RGB", (32, 32), (40 * i, 99, 5)).save(tmp_path / "few" / f"{i}.png")
        with pytest.raises(
            ProsminError, match=r"a tenth of the training images; of 5 there is none\. Allowed: 10 or more"
        ):
            evaluate(copy, protocols=["uncertainty"], data=f"folder:{tmp_path}/few", test=f"folder:{tmp_path}/few")

    def test_one_picture_a_class_leaves_none_to_choose_on(self, copy, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr(suite, "open_pictures", lambda spec, **_: load_pictures(spec))
        for i in range(12):
            for split in ("train", "test"):
                (tmp_path / "set" / split / f"{i:02d}").mkdir(parents=True)
                Image.new("RGB", (32, 32), (20 * i, 99, 5)).save(tmp_path / "set" / split / f"{i:02d}/x.png")
        found = evaluate(copy, data=f"folder:{tmp_path}/set")
        assert "knn" in found
        assert not {"linear", "uncertainty", "corruption"} & found.keys()
        assert "12 images of 12 classes" in capsys.readouterr().err
        with pytest.raises(ProsminError, match=r"linear cannot be measured: .* 12 images of 12 classes"):
            evaluate(copy, protocols=["linear"], data=f"folder:{tmp_path}/set")

    def test_what_is_left_out_and_where_results_are_is_said(self, copy, fake, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr(suite, "open_pictures", lambda spec, **_: load_pictures(spec, max_bad=0.1))
        (tmp_path / "few").mkdir()
        for i in range(30):
            Image.new("RGB", (32, 32), (8 * i, 99, 5)).save(tmp_path / "few" / f"{i:02d}.png")
        (tmp_path / "few/11.png").write_bytes(b"broken")
        assert main(["evaluate", str(copy), "--protocols", "uncertainty", "--data", f"folder:{tmp_path}/few"]) == 0
        said = capsys.readouterr()
        told = f"unreadable images left out of folder:{tmp_path}/few: 1\n  11.png: not an image in any known format\n"
        assert said.err.count(told) == 1
        assert said.out.endswith(f"results: {copy}/results; one page of them: prosmin report {copy}\n")

    def test_what_was_measured_before_is_said(self, copy, fake, capsys):
        evaluate(copy, protocols=["knn"])
        assert "measured before" not in capsys.readouterr().err
        evaluate(copy, protocols=["knn"])
        assert "measured before: knn; --again" in capsys.readouterr().err


def test_a_table_shows_the_uncertainty_where_that_is_all(capsys):
    metrics = {"recall_at_1": 0.32, "r_auroc": 0.427}
    print_table({"uncertainty": {"metrics": metrics, "settings": {}}})
    said = capsys.readouterr().out
    assert all(word in said for word in ("R@1 %", "32.0", "R-AUROC %", "42.7"))
    print_table({"pictures": {"metrics": {}, "settings": {}}})
    assert "measured: pictures. `prosmin report`" in capsys.readouterr().out


@pytest.mark.parametrize("spec", ["folder:/data/[old] pets", "folder:/data/[/old]", "hf:cat:small", "folder:C:\\[old]"])
def test_a_table_shows_a_spec_as_it_is(spec, capsys):
    row = {"top1": 0.5, "nll": 0.1, "ece": 0.1, "ece_calibrated": 0.1}
    settings = {spec: {"labels": 9, "lr": 5e-4, "epochs": 2}}
    print_table({"transfer": {"metrics": row, "sets": {spec: {"fine-tuned": row}}, "settings": settings}})
    assert f"\n{spec} " in capsys.readouterr().out


def test_a_run_that_allows_more_unreadable_pictures_is_evaluated_on_its_own(tmp_path):
    images = load_pictures("photos@train").images
    for i in range(60):
        path = tmp_path / "mine" / ("train" if i < 40 else "test") / "ab"[i % 2] / f"{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[i].permute(1, 2, 0).numpy()).save(path)
        if i in (3, 14, 55):
            path.write_bytes(b"no image")
    fields = TINY | {"data.spec": f"folder:{tmp_path}/mine@train", "training.batch_size": "8", "training.seed": "5"}
    run = pretrain(configs.resolve(recipe="demo", overrides=fields | {"data.max_bad": "0.1"}), tmp_path / "run")
    found = evaluate(run, protocols=["knn"])
    assert found["knn"]["seed"] == 0  # of the evaluation's draws, not of the training
    assert (found["knn"]["metrics"]["top1"] * 19).is_integer()


def test_without_baselines_the_encoder_s_own_numbers_are_the_same(run, results, tmp_path, capsys):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite, "open_pictures", every_twelfth)
        alone = evaluate(run, protocols=["knn", "linear"], options=Options(baselines="none"), out=tmp_path / "alone")
    for name, row in alone.items():
        assert results[name]["baselines"]
        assert row["baselines"] == {}
        assert row["metrics"] == results[name]["metrics"]
    with pytest.MonkeyPatch.context() as patch:  # a result with baselines has all that is asked for
        patch.setattr(suite, "open_pictures", lambda spec, **_: pytest.fail("measured again"))
        kept = evaluate(run, protocols=["knn"], options=Options(baselines="none"))
    assert kept["knn"]["baselines"]
    print_table(alone)
    assert "untrained" not in capsys.readouterr().out
    with pytest.raises(UsageError, match="--baselines is 'some'; allowed: all, none"):
        Options(baselines="some")


def test_a_result_of_a_version_without_an_option_had_its_default(run, results, capsys):
    path = run / "results" / "knn.json"
    row = json.loads(path.read_text())
    del row["options"]["baselines"]
    path.write_text(json.dumps(row))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite, "open_pictures", lambda spec, **_: pytest.fail("measured again"))
        assert evaluate(run, protocols=["knn"])["knn"]["metrics"] == row["metrics"]
