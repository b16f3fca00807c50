"""A folder of images without labels or splits, from training to the report: the first thing a new user has."""

import contextlib
import io
import json
import shutil

import numpy as np
import pytest
import skimage.data
import torch
from PIL import Image

from fake_run import fake_run
from prosmin import config as configs
from prosmin.cli import main
from prosmin.errors import ProsminError
from prosmin.evaluation import run as suite
from prosmin.evaluation.sets import data_arguments, named_sets, tenth_by_name
from prosmin.report.commands import evaluate_command, labels_missing, unlabelled
from prosmin.report.runs import read_run
from prosmin.training.pretrain import pretrain
from tiny_run import TINY

JUDGED = {"recall_at_1", "r_auroc", "aurc", "aurc_optimal", "aurc_random"}


def save_patches(folder, photograph, count, *, classes=0):
    """Patches of a photograph as files, flat or in one folder a class."""
    rng = np.random.default_rng(0)
    for i in range(count):
        y, x = (int(rng.integers(0, side - 40)) for side in photograph.shape[:2])
        path = folder / (f"class {i % classes}" if classes else "") / f"{i:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photograph[y : y + 40, x : x + 40]).save(path)
    return f"folder:{folder}"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A run of two steps on 40 unlabelled images, and 12 strange ones."""
    root = tmp_path_factory.mktemp("unlabelled")
    spec = save_patches(root / "mine", skimage.data.astronaut(), 40)
    save_patches(root / "strange", skimage.data.coffee(), 12)
    changes = {"data.spec": spec, "training.batch_size": "16", "heads.dim": "16", "training.max_steps": "2"}
    pretrain(configs.resolve(recipe="demo", overrides=TINY | changes), root / "run")
    return root


@pytest.fixture(scope="module")
def said(root):
    """What the plain command says; its results are in the run."""
    with contextlib.redirect_stderr(io.StringIO()) as words:
        assert main(["evaluate", str(root / "run")]) == 0
    return words.getvalue()


@pytest.fixture
def copy(root, tmp_path):
    """The run without results."""
    folder = tmp_path / "run"
    shutil.copytree(root / "run", folder, ignore=shutil.ignore_patterns("results", "checkpoints", "cache"))
    return folder


def result(run, name):
    return json.loads((run / "results" / f"{name}.json").read_text())


class TestEvaluate:
    def test_what_needs_no_labels_is_made_and_the_rest_is_left_out_in_a_sentence(self, root, said):
        assert sorted(path.stem for path in (root / "run/results").glob("*.json")) == ["pictures", "uncertainty"]
        tenth, left_out, *progress = said.splitlines()
        assert [line.split()[1].rstrip(":") for line in progress] == [
            "uncertainty",
            "uncertainty",
            "pictures",
            "pictures",
        ]
        assert tenth.startswith(f"folder:{root}/mine has no test split: a tenth of it (10 to 2000 images")
        assert "the encoder was trained on these images" in tenth
        assert "knn, linear, corruption: it needs labelled train and test images" in left_out
        assert "ood: needs out-of-distribution images: --ood SPEC" in left_out

    def test_results_say_what_their_test_is(self, root, said):
        for name in ("pictures", "uncertainty"):
            row = result(root / "run", name)
            assert row["data"] == {"train": f"folder:{root}/mine", "test": f"a tenth of folder:{root}/mine"}
            assert row["command"].endswith(f"--protocols {name} --data folder:{root}/mine")
            assert row["settings"]["test_pictures"] == said.splitlines()[0].rstrip(".")
            assert row["settings"]["without_labels"].endswith("/mine has no labels")
        metrics = result(root / "run", "uncertainty")["metrics"]
        assert metrics.keys().isdisjoint(JUDGED)
        assert {"coverage_90", "pit_distance", "energy_skill", "spearman_blur", "spearman_sharpness"} < metrics.keys()
        assert np.load(root / "run/results/pictures.npz")["evaluated"] == 10

    def test_it_is_not_measured_twice(self, root, said):
        path = root / "run/results/uncertainty.json"
        before = path.stat().st_mtime_ns
        assert main(["evaluate", str(root / "run"), "--protocols", "uncertainty"]) == 0
        assert path.stat().st_mtime_ns == before

    def test_a_named_protocol_that_needs_labels_is_refused_with_what_to_do(self, copy, capsys):
        assert main(["evaluate", str(copy), "--protocols", "pictures,linear"]) == 1
        words = capsys.readouterr().err
        assert "The protocol linear cannot be measured" in words
        assert "--data SPEC, and --test SPEC" in words
        assert not (copy / "results").exists()

    def test_strange_pictures(self, root, copy, capsys):
        assert main(["evaluate", str(copy), "--protocols", "ood", "--ood", f"folder:{root}/strange"]) == 0
        assert "OOD AUROC" in capsys.readouterr().out
        assert len(np.load(copy / "results/ood.npz")["in/knn_distance"]) == 10

    def test_class_folders_without_a_test_split_are_no_test_either(self, copy, tmp_path, capsys):
        spec = save_patches(tmp_path / "dates", skimage.data.astronaut(), 24, classes=24)
        assert main(["evaluate", str(copy), "--protocols", "uncertainty", "--data", spec]) == 0
        assert "was trained on" not in capsys.readouterr().err
        assert result(copy, "uncertainty")["metrics"].keys().isdisjoint(JUDGED)
        assert main(["evaluate", str(copy), "--protocols", "knn", "--data", spec]) == 1
        assert f"{spec} has no test split" in capsys.readouterr().err


class TestTenth:
    def test_its_size_is_bounded(self):
        sizes = {20: 10, 99: 10, 200: 20, 19_990: 1999, 30_000: 2000}
        for pictures, size in sizes.items():
            assert tenth_by_name([str(i) for i in range(pictures)], spec="x").sum() == size
        with pytest.raises(ProsminError, match=r"19 images.*20 or more"):
            tenth_by_name([str(i) for i in range(19)], spec="x")

    def test_names_decide_not_places(self):
        keys = [f"{i}.jpg" for i in range(300)]
        order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
        chosen = tenth_by_name(keys, spec="x")
        assert torch.equal(tenth_by_name([keys[i] for i in order], spec="x"), chosen[order])
        more = tenth_by_name([*keys, *(f"new {i}.jpg" for i in range(30))], spec="x")[:300]
        assert (more & chosen).sum() >= 25  # 30 of 300 before; about a tenth of them gives way to new ones

    def test_train_is_the_rest(self, root):
        own = f"folder:{root}/mine"
        sets = suite._load(named_sets(own, None, None, learned_from=own), max_bad=0.01, own=True)
        train, test = (set(sets[part].keys) for part in ("train", "test"))
        assert (len(train), len(test), len(train | test)) == (30, 10, 40)

    def test_a_place_may_be_written_otherwise(self, root, monkeypatch):
        monkeypatch.chdir(root)
        own = f"folder:{root}/mine"
        for spec in ("folder:mine", "folder:./mine/", own):
            assert named_sets(spec, None, None, learned_from=own).learned
            assert named_sets(own, spec, None, learned_from=own).note.startswith("--data and --test both name")
        assert "the encoder was trained" in named_sets(own, None, None, learned_from=own).note
        assert "forecast heads were trained" in named_sets(own, None, None, learned_from=own, heads_only=True).note
        assert not named_sets("folder:strange", None, None, learned_from=own).learned
        assert named_sets(own, "folder:strange", None, learned_from=own).note is None

    @pytest.mark.parametrize(
        ("card", "heads_only"),
        [
            ({"config": {"data": {"spec": "photos"}}}, False),
            ({"config": {"data": {"spec": "photos"}}, "calibration": {"data": "photos"}}, False),
            ({"config": {"data": {"spec": "photos"}}, "calibration": {"data": "folder:mine"}}, True),
            ({"calibration": {"data": "folder:mine"}}, True),
        ],
    )
    def test_a_calibrated_encoder_has_learned_with_its_heads_only(self, card, heads_only):
        assert suite._only_heads_learned(card) is heads_only

    def test_splits_come_first(self, tmp_path):
        for split in ("train", "test"):
            save_patches(tmp_path / "split" / split, skimage.data.coffee(), 2)
        spec = f"folder:{tmp_path}/split"
        found = named_sets(spec, None, None, learned_from=spec)
        assert (found.own_tenth, found.note) == (False, None)
        assert found.data == {"train": f"{spec}@train", "test": f"{spec}@test"}
        assert data_arguments(found.data) == ["--data", f"{spec}@train", "--test", f"{spec}@test"]


class TestReport:
    def page(self, run, folder):
        assert main(["report", str(run), "--out", str(folder / "page.html")]) == 0
        return (folder / "page.html").read_text()

    def test_galleries_map_and_forecasts_are_there_and_empty_sections_are_not(self, root, said, tmp_path):
        page = self.page(root / "run", tmp_path)
        for part in (
            "Lowest uncertainty",
            "Highest uncertainty",
            "t-SNE of the features",
            "Coverage of the predictions",
            "under blur",
        ):
            assert f"<h3>{part}" in page or f"{part}</h3>" in page, part
        for section in ("calibration", "corruption", "paper"):
            assert f'<section id="{section}"' not in page
        assert page.count("Needs labels: kNN, linear probe and its calibration, R-AUROC") == 1
        assert "not an unseen test" in page.partition("</header>")[0]
        assert "Risk against coverage" not in page

    def test_its_commands_work(self, root, said):
        run = read_run(root / "run", "run")
        assert unlabelled(run)
        command = evaluate_command(run, "ood")
        assert command.endswith(f"--protocols ood --data folder:{root}/mine --ood folder:STRANGE")
        words = command.replace("folder:STRANGE", f"folder:{root}/strange").split()
        assert main([*words[1:], "--again"]) == 0
        (root / "run/results/ood.json").unlink()
        assert labels_missing([run])[0].command == f"prosmin evaluate {root}/run --data folder:LABELLED"

    def test_before_any_evaluation_nothing_is_named_that_may_need_labels(self, copy):
        run = read_run(copy, "run")
        assert not unlabelled(run)
        assert evaluate_command(run, "linear") == f"prosmin evaluate {copy}"
        assert evaluate_command(run, "pictures") == f"prosmin evaluate {copy} --protocols pictures"

    def test_labelled_runs_are_asked_for_on_their_pictures(self, tmp_path):
        run = read_run(fake_run(tmp_path / "run"), "run")
        assert not unlabelled(run)
        on = "--data photos@train --test photos@test"
        assert evaluate_command(run, "linear") == f"prosmin evaluate {tmp_path}/run --protocols linear {on}"

    def test_what_needs_labels_is_asked_for_on_labelled_pictures(self, tmp_path):
        folder = fake_run(tmp_path / "run")
        path = folder / "results/corruption.json"  # the first of the results by name
        blind = {"settings": {"without_labels": "x has no labels"}, "data": {"train": "x", "test": "a tenth of x"}}
        path.write_text(json.dumps(json.loads(path.read_text()) | blind))
        run = read_run(folder, "run")
        assert evaluate_command(run, "linear").endswith("--data photos@train --test photos@test")
        assert evaluate_command(run, "pictures").endswith("--protocols pictures --data x")

    def test_beside_a_labelled_run(self, root, said, tmp_path):
        fake_run(tmp_path / "other")
        assert main(["report", str(root / "run"), str(tmp_path / "other"), "--out", str(tmp_path / "page.html")]) == 0
        page = (tmp_path / "page.html").read_text()
        assert page.count("Needs labels (run): kNN") == 1
        assert "(run): Linear probe" not in page
        assert "Risk against coverage" in page
