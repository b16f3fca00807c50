"""Where results are kept, which are reused or replaced, and the table that is printed."""

import json

import pytest
import timm
import torch
from PIL import Image

from coloured import coloured
from evaluation_images import notes, save_images
from prosmin.cli import main
from prosmin.data.image_sets import load_pictures
from prosmin.encoder import known, load
from prosmin.errors import ProsminError, UsageError
from prosmin.evaluation import run as evaluation
from prosmin.evaluation.options import Options
from prosmin.evaluation.results import Job
from prosmin.evaluation.run import evaluate
from prosmin.evaluation.sets import named_sets
from prosmin.evaluation.table import print_table
from prosmin.report import write_report


class TestOtherImages:
    def test_what_is_replaced_is_printed(self, copy, fake, capsys):
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
        assert notes(capsys)[0].startswith("replacing the results of transfer on photos;")

    def test_out_keeps_both(self, copy, fake, tmp_path, capsys):
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
        assert "with resnet8_cifar, trained on photos" in text
        assert "Loss" in text  # the log of the run
        (copy / "metrics.jsonl").unlink()
        assert "Not trained here" in write_report([out], out / "report.html").read_text()
        with pytest.raises(UsageError, match=f"the results of {copy}"):
            evaluate("timm:resnet18", protocols=["knn"], out=out)
        copy.rename(tmp_path / "moved")
        with pytest.raises(ProsminError, match=f"the results of {copy}, "):
            evaluate(out, protocols=["knn"])


class TestFolders:
    def test_the_file_of_an_encoder_stands_for_its_folder(self, copy, fake):
        assert main(["evaluate", str(copy / "encoder.safetensors"), "--protocols", "knn"]) == 0
        row = json.loads((copy / "results" / "knn.json").read_text())
        assert row["command"].startswith(f"prosmin evaluate {copy} --protocols knn")
        assert evaluate(copy, protocols=["knn"])["knn"] == row
        assert fake == ["knn"]
        with pytest.raises(ProsminError, match=r"config\.yaml"):
            evaluate(copy / "config.yaml", protocols=["knn"])

    def test_an_encoder_of_timm_has_a_folder(self, tmp_path, fake):
        torch.save(timm.create_model("test_vit", num_classes=0).state_dict(), tmp_path / "w.pth")
        name = f"timm:test_vit@{tmp_path}/w.pth"
        row = evaluate(name, protocols=["knn"], data="photos", out=tmp_path / "out")["knn"]
        assert row["command"].startswith(f"prosmin evaluate {name} --protocols knn")
        assert row["command"].endswith(f"--out {tmp_path}/out")
        assert evaluate(tmp_path / "out", protocols=["knn"], data="photos")["knn"] == row
        assert len(fake) == 1

    def test_a_folder_that_cannot_be_written_is_an_error_before_images_are_read(self, copy, fake, monkeypatch, capsys):
        (copy / "results").write_text("a file where the folder should be")
        monkeypatch.setattr(evaluation, "open_pictures", lambda *_, **__: pytest.fail("read too early"))
        assert main(["evaluate", str(copy), "--protocols", "knn"]) == 1
        message = capsys.readouterr().err
        assert f"{copy}/results" in message
        assert "--out DIR" in message
        assert fake == []


class TestChangedFiles:
    def test_results_of_changed_files_are_measured_again(self, copy, tmp_path, fake, monkeypatch, capsys):
        monkeypatch.setattr(evaluation, "open_pictures", lambda spec, **_: load_pictures(spec))
        for folder, count in (("train/a", 12), ("train/b", 12), ("test/a", 6), ("test/b", 6)):
            save_images(tmp_path / "mine" / folder, count)
        save_images(tmp_path / "ood", 4)
        sets = {"data": f"folder:{tmp_path}/mine@train", "ood": f"folder:{tmp_path}/ood"}

        def measured():
            fake.clear()
            evaluate(copy, protocols=["knn", "ood"], **sets)
            return list(fake)

        assert measured() == ["knn", "ood"]
        assert "measured before" not in capsys.readouterr().err
        assert measured() == []
        assert "measured before: knn, ood; --again" in capsys.readouterr().err
        Image.new("RGB", (300, 200)).save(tmp_path / "ood" / "02.png")
        assert measured() == ["ood"]
        assert f"measuring again: the files of folder:{tmp_path}/ood " in capsys.readouterr().err
        assert measured() == []
        (tmp_path / "mine/train/a/03.png").rename(tmp_path / "mine/train/b/13.png")  # another label
        assert measured() == ["knn", "ood"]
        (tmp_path / "ood").rename(tmp_path / "moved")
        assert measured() == []  # the results of images that are gone are kept

    def test_files_that_options_name(self, tmp_path):
        """The test split of a set of --transfer, a list of labels, stored corruptions."""
        for part in ("train/a", "train/b", "test/a", "test/b"):
            save_images(tmp_path / "set" / part, 3)
        (tmp_path / "list.txt").write_text("a/1.png\nb/1.png\n")
        (tmp_path / "stored").mkdir()
        (tmp_path / "stored/fog.npy").write_bytes(bytes(8))
        options = Options(
            transfer=(f"folder:{tmp_path}/set",),
            label_lists=(f"{tmp_path}/list.txt",),
            corrupted=f"folder:{tmp_path}/stored",
        )
        named = named_sets("photos", None, None, learned_from="photos")
        job = Job(run="", folder=tmp_path, encoder=None, named=named, options=options)
        before = job.marks()
        assert len(before) == 3
        (tmp_path / "set/test/a/00.png").write_bytes(b"another")
        (tmp_path / "list.txt").write_text("a/1.png\nb/2.png\n")
        (tmp_path / "stored/fog.npy").write_bytes(bytes(9))
        after = job.marks()
        assert before.keys() == after.keys()
        assert all(before[name] != after[name] for name in before)
        for name in ("transfer", "lowshot", "corruption"):
            assert len(job.reads(name) & before.keys()) == 1


class TestUncertainty:
    def test_a_result_of_another_uncertainty_is_measured_again(self, copy, fake, monkeypatch):
        def measured():
            fake.clear()
            evaluate(copy, protocols=["knn", "uncertainty", "pictures"])
            return list(fake)

        assert measured() == ["knn", "uncertainty", "pictures"]
        assert measured() == []
        settings = json.loads((copy / "results/uncertainty.json").read_text())["settings"]
        assert known.UNCERTAINTY in settings["uncertainty_definition"]
        monkeypatch.setattr(known, "UNCERTAINTY", "by another formula")
        assert measured() == ["uncertainty", "pictures"]
        assert measured() == []
        load(copy).fit_reference(coloured(12).images).save(copy)  # other known images, the same weights
        assert measured() == ["uncertainty", "pictures"]
        path = copy / "results/pictures.json"
        row = json.loads(path.read_text())
        del row["settings"]["uncertainty_definition"]  # as before there was one
        path.write_text(json.dumps(row))
        assert measured() == ["pictures"]

    def test_of_the_forecast_alone_it_is_reused(self, copy, fake):
        (copy / "background.safetensors").unlink()
        for _ in range(2):
            evaluate(copy, protocols=["uncertainty"])
        assert fake == ["uncertainty"]


class TestTable:
    def test_the_uncertainty_is_shown_if_there_is_nothing_else(self, capsys):
        print_table({"uncertainty": {"metrics": {"recall_at_1": 0.32, "r_auroc": 0.427}, "settings": {}}})
        printed = capsys.readouterr().out
        assert all(word in printed for word in ("R@1 %", "32.0", "R-AUROC %", "42.7"))
        print_table({"pictures": {"metrics": {}, "settings": {}}})
        assert "measured: pictures" in capsys.readouterr().out

    @pytest.mark.parametrize("spec", ["folder:/[old] pets", "folder:/[/old]", "hf:cat:small", "folder:C:\\[old]"])
    def test_a_spec_is_shown_as_it_is(self, spec, capsys):
        row = {"top1": 0.5, "nll": 0.1, "ece": 0.1, "ece_calibrated": 0.1}
        settings = {spec: {"labels": 9, "lr": 5e-4, "epochs": 2}}
        print_table({"transfer": {"metrics": row, "sets": {spec: {"fine-tuned": row}}, "settings": settings}})
        assert f"\n{spec} " in capsys.readouterr().out

    def test_accuracies_with_few_labels_are_headed_by_the_share_of_labels(self, capsys):
        print_table({"lowshot": {"metrics": {"top1_1pct": 0.25, "top1_1pct_sd": 0.01, "top1_10pct": 0.5}}})
        heading, row = capsys.readouterr().out.splitlines()
        assert heading.split() == ["low-shot", "1", "%", "low-shot", "10", "%"]
        assert "25.0 ± 1.0" in row
