"""Requests that `evaluate` refuses, and what it prints about the images."""

import dataclasses

import pytest
import timm
import torch

from evaluation_images import every_twelfth, notes, save_images
from prosmin.cli import main
from prosmin.data.image_sets import load_pictures
from prosmin.encoder import load
from prosmin.errors import ProsminError, UsageError
from prosmin.evaluation import run as evaluation
from prosmin.evaluation.options import Options, check_read, flag, read_options
from prosmin.evaluation.protocols import protocols_of
from prosmin.evaluation.run import evaluate
from prosmin.training.pretrain import pretrain

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


def refused(copy, fake, match, **request):
    """The error comes before any protocol runs, and no file is written."""
    before = sorted(copy.rglob("*"))
    with pytest.raises(ProsminError, match=match):
        evaluate(copy, **request)
    assert fake == []
    assert sorted(copy.rglob("*")) == before


def change(monkeypatch, spec, changed):
    """Change one of the sets."""

    def load(name, **_):
        pictures = every_twelfth(name)
        return changed(pictures) if name == spec else pictures

    monkeypatch.setattr(evaluation, "open_pictures", load)


class TestNames:
    @pytest.mark.parametrize(
        ("request_", "match"),
        [
            ({"protocols": ["knnn"]}, r"'knnn'.*: knn, linear"),
            ({"suite": "papers"}, r"'papers'.*: paper"),
            ({"suite": "paper", "protocols": ["knn"]}, "--suite and --protocols"),
            ({"protocols": ["transfer"]}, r"transfer .*--transfer SPEC"),
            ({"protocols": ["knn"], "ood": ["photos@ood"]}, r"\(knn\).*--ood photos@ood.*: ood, uncertainty"),
            ({"protocols": ["knn"], "max_bad": 2.0}, r"max_bad.*2"),
        ],
    )
    def test_wrong_requests(self, copy, fake, request_, match):
        refused(copy, fake, match, **request_)

    def test_wrong_values_of_options(self):
        with pytest.raises(UsageError, match="--draws is 0"):
            Options(draws=0)
        with pytest.raises(UsageError, match="--linear-epochs is 'many'"):
            read_options({"linear_epochs": "many"})

    def test_a_run_without_an_encoder(self, tmp_path):
        (tmp_path / "unfinished").mkdir()
        with pytest.raises(ProsminError, match=r"encoder\.json"):
            evaluate(tmp_path / "unfinished")

    def test_an_encoder_instead_of_its_folder(self, run):
        with pytest.raises(UsageError, match="got Encoder"):
            evaluate(load(run), protocols=["knn"])

    @pytest.mark.parametrize("split", ["tset", "valid"])
    def test_a_split_that_does_not_exist(self, copy, fake, tmp_path, split):
        for part in ("train", "test"):
            save_images(tmp_path / "set" / part / "a", 2)
        refused(copy, fake, f"'{split}'.*test, train", protocols=["knn"], data=f"folder:{tmp_path}/set@{split}")

    @pytest.mark.parametrize("protocols", [None, ["knn"], ["knn", "transfer"]])
    def test_an_encoder_of_timm_needs_images(self, tmp_path, protocols):
        with pytest.raises(UsageError, match=r"timm:resnet18 .*--data SPEC"):
            evaluate("timm:resnet18", protocols=protocols, out=tmp_path / "results")
        assert not (tmp_path / "results").exists()

    def test_a_saved_encoder_of_timm_needs_images(self, tmp_path):
        torch.save(timm.create_model("test_vit", num_classes=0).state_dict(), tmp_path / "w.pth")
        folder = load(f"timm:test_vit@{tmp_path}/w.pth").save(tmp_path / "saved")
        with pytest.raises(UsageError, match=r"saved .*--data SPEC"):
            evaluate(folder, protocols=["knn"])


class TestOptionsThatAreNotRead:
    @pytest.mark.parametrize("field", dataclasses.fields(Options), ids=lambda field: field.name)
    def test_each_is_named_with_the_protocols_that_read_it(self, field):
        value, text = GIVEN[field.name]
        readers = field.metadata["read_by"]
        options = Options(**{field.name: value})
        with pytest.raises(UsageError) as caught:
            check_read(options, ["uncertainty", "pictures"], {})
        assert f"{flag(field.name)} {text} (read by {', '.join(readers)})" in str(caught.value)
        assert f"--protocols uncertainty,pictures,{readers[0]}" in str(caught.value)
        for name in readers:
            check_read(options, ["uncertainty", name], {})
        check_read(Options(**{field.name: field.default}), ["knn"], {})  # the default counts as not given

    def test_all_are_named_at_once(self, copy, fake, capsys):
        words = ["--transfer", "folder:/nonexistent", "--label-lists", "/nofile", "--corrupted", "folder:/nope"]
        assert main(["evaluate", str(copy), "--protocols", "knn", *words]) == 2
        message = capsys.readouterr().err
        for part in ("--corrupted folder:/nope", "--transfer folder:/nonexistent", "--label-lists /nofile"):
            assert f"{part} (read by " in message
        assert "--protocols knn,corruption,transfer,lowshot." in message
        assert fake == []

    def test_an_option_of_a_protocol_that_lacks_its_images(self, copy, fake):
        """A suite leaves that protocol out; an option for it is an error."""
        for request in ({"suite": "paper"}, {}):
            match = r"--near folder:x \(read by ood, which needs .*--ood "
            refused(copy, fake, match, ood=[], options=Options(near=("folder:x",)), **request)

    def test_the_options_of_all_protocols_of_a_suite_are_read(self, copy, fake):
        options = Options(draws=2, linear_epochs=1, finetune_epochs=1, severities=(1,), transfer=("photos",))
        assert list(evaluate(copy, suite="paper", options=options)) == protocols_of("paper")


class TestImages:
    def test_without_labels(self, copy, fake, monkeypatch, capsys):
        change(monkeypatch, "photos@test", lambda p: dataclasses.replace(p, labels=None, classes=()))
        refused(copy, fake, "photos@test has no labels", protocols=["ood", "knn"])
        assert list(evaluate(copy)) == ["ood", "uncertainty", "pictures"]
        (line,) = notes(capsys)
        assert line.startswith("left out: knn, linear, corruption: ")
        assert line.count("photos@test has no labels") == 1
        assert "--data SPEC" in line

    def test_train_as_test(self, copy, fake, capsys):
        row = evaluate(copy, protocols=["knn"], data="photos@train", test="photos@train")["knn"]
        start = "--data and --test both name photos@train"
        assert notes(capsys)[0].startswith(start)
        assert row["settings"]["test_pictures"].startswith(start)
        assert "test_pictures" not in evaluate(copy, protocols=["knn"])["knn"]["settings"]
        assert "both name" not in capsys.readouterr().err

    def test_splits_with_different_classes(self, copy, fake, monkeypatch):
        change(monkeypatch, "photos@test", lambda p: dataclasses.replace(p, classes=("x", *p.classes[1:])))
        refused(copy, fake, "classes, such as astronaut, x", suite="paper")

    def test_an_ood_set_of_one_image(self, copy, fake, monkeypatch):
        change(monkeypatch, "photos@ood", lambda p: p.subset(torch.arange(1)))
        refused(copy, fake, "photos@ood has one image", suite="paper")

    def test_fewer_labels_than_classes(self, copy, fake, monkeypatch, capsys):
        change(monkeypatch, "photos@train", lambda p: p.subset(torch.arange(0, len(p), 8)))
        refused(copy, fake, r"35 labels.*14 classes", protocols=["knn", "lowshot"])
        assert "semi" not in evaluate(copy, suite="paper")
        assert "lowshot, semi: photos@train has too few labels" in capsys.readouterr().err

    def test_wrong_files_and_sets_of_options(self, copy, fake, tmp_path):
        lists = Options(label_lists=(str(tmp_path / "missing.txt"),))
        refused(copy, fake, r"missing\.txt", suite="paper", options=lists)
        refused(copy, fake, "nowhere", suite="paper", options=Options(transfer=("nowhere",)))

    def test_images_of_the_run_that_are_not_found_from_another_folder(self, tmp_path, tiny, monkeypatch):
        monkeypatch.chdir(tmp_path)
        save_images(tmp_path / "set", 12)
        changes = {
            "data__spec": "folder:set",
            "training__batch_size": "8",
            "heads__dim": "8",
            "training__max_steps": "1",
        }
        run = pretrain(tiny(**changes), tmp_path / "run")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        with pytest.raises(UsageError, match=r"set.*--data SPEC"):
            evaluate(run, protocols=["uncertainty"])

    def test_too_few_images_to_hold_some_out(self, copy, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr(evaluation, "open_pictures", lambda spec, **_: load_pictures(spec))
        save_images(tmp_path / "few", 5)
        few = f"folder:{tmp_path}/few"
        with pytest.raises(ProsminError, match=r"\b5 .*\b10\b"):
            evaluate(copy, protocols=["uncertainty"], data=few, test=few)
        for i in range(12):  # one image per class
            for split in ("train", "test"):
                save_images(tmp_path / "set" / split / f"{i:02d}", 1)
        found = evaluate(copy, data=f"folder:{tmp_path}/set")
        assert "knn" in found
        assert not {"linear", "uncertainty", "corruption"} & found.keys()
        assert "12 images of 12 classes" in capsys.readouterr().err
        with pytest.raises(ProsminError, match=r"linear .*12 images of 12 classes"):
            evaluate(copy, protocols=["linear"], data=f"folder:{tmp_path}/set")

    def test_unreadable_images_and_the_place_of_the_results_are_printed(
        self, copy, fake, tmp_path, monkeypatch, capsys
    ):
        monkeypatch.setattr(evaluation, "open_pictures", lambda spec, **_: load_pictures(spec, max_bad=0.1))
        save_images(tmp_path / "few", 30)
        (tmp_path / "few/11.png").write_bytes(b"broken")
        assert main(["evaluate", str(copy), "--protocols", "uncertainty", "--data", f"folder:{tmp_path}/few"]) == 0
        printed = capsys.readouterr()
        assert printed.err.count("\n  11.png: ") == 1
        assert f"left out of folder:{tmp_path}/few" in printed.err
        assert printed.out.endswith(f"results: {copy}/results; one page of them: prosmin report {copy}\n")
