"""Cells are trained and measured once; the table."""

import json
import os
import shutil
import signal

import pytest

from prosmin.ablation import outcome as outcomes_module
from prosmin.ablation import run
from prosmin.ablation.cells import make_cells
from prosmin.ablation.grid import combine
from prosmin.ablation.run import ablate
from prosmin.cli import main
from prosmin.data.image_sets import load_pictures
from prosmin.encoder import load
from prosmin.errors import ProsminError, Stopped, UsageError
from prosmin.evaluation.probes.held_out import held_out_knn
from prosmin.training.pretrain import pretrain
from prosmin.training.run_folder import RunFolder
from prosmin.training.step import TrainingStep
from tiny_run import SMALL_GRID


def test_missing_images_and_folders_of_other_runs_are_refused_early(tmp_path, small, monkeypatch):
    monkeypatch.setattr(run, "pretrain", lambda *_: pytest.fail("trained"))
    with pytest.raises(ProsminError, match="missing"):
        ablate(small("training.seed=0,1", data="missing"), tmp_path / "out")
    with pytest.raises(ProsminError, match=r"80 images.*training\.batch_size 999"):
        ablate(small("training.batch_size=16,999"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    grid = small("training.seed=0,1")
    begun = RunFolder(tmp_path / "out" / "training.seed=1")
    begun.open(make_cells(grid)[1].config)
    begun.close()
    with pytest.raises(ProsminError, match=r"optimizer\.lr: 0\.002 -> 0\.5"):
        ablate(small("training.seed=0,1", optimizer__lr="0.5"), tmp_path / "out")


def test_a_folder_with_other_files_is_left_alone(tmp_path, small, monkeypatch):
    monkeypatch.setattr(run, "pretrain", lambda *_: pytest.fail("trained"))
    grid = small("training.seed=0,1")
    single = RunFolder(tmp_path / "single")
    single.open(make_cells(grid)[0].config)
    single.close()
    (tmp_path / "file").write_text("mine")
    for name, message in {
        "single": r"single is the folder of a run",
        "file": r"file is a file",
        ".": r"file, single",
    }.items():
        with pytest.raises(UsageError, match=message):
            ablate(grid, tmp_path / name)
    assert sorted(path.name for path in single.path.iterdir()) == [".lock", "config.yaml"]


# Real cells


@pytest.fixture(scope="module")
def trained(tmp_path_factory, pictures):
    """Two settings times two seeds, and what was printed; the images that were read; DIR."""
    out = tmp_path_factory.mktemp("ablation") / "out"
    over = ["heads.scale=learned,zero", "training.seed=0,1"]
    fields = SMALL_GRID | {"data.spec": f"folder:{pictures / 'labelled'}"}
    grid = combine(grid=None, recipe="demo", over=over, fields=fields)
    return grid, out, ablate(grid, out)


def test_every_cell_is_a_run_and_is_measured_without_test_images(trained):
    _, out, outcomes = trained
    names = [f"heads.scale={s}+training.seed={i}" for s in ("learned", "zero") for i in (0, 1)]
    assert [outcome.cell.name for outcome in outcomes] == names
    assert sorted(path.name for path in out.iterdir()) == sorted([*names, "plot.svg", "table.json", "table.md"])
    for outcome in outcomes:
        folder = out / outcome.cell.name
        training = load_pictures(outcome.cell.config.data.spec)
        assert outcome.metrics["knn_top1"] == held_out_knn(load(folder), training)["knn_top1"]
        last = RunFolder(folder).read_metrics()[-1]
        assert last["step"] == 2
        for name in ("loss", "target_std", "feature_rank", "scale_mean"):
            assert outcome.metrics[name] == last[name]
        assert outcome.verdict.split(":")[0] in ("healthy", "collapsing", "shrinking")
        assert outcome.seconds > 0
        assert json.loads((folder / "ablation.json").read_text())["metrics"] == outcome.metrics
    assert outcomes[2].metrics["scale_mean"] == 0.0


def test_the_table_is_written_for_people_and_programs(trained):
    _, out, outcomes = trained
    table = json.loads((out / "table.json").read_text())
    assert table["swept"] == ["heads.scale", "training.seed"]
    assert [cell["metrics"] for cell in table["cells"]] == [outcome.metrics for outcome in outcomes]
    assert {cell["state"] for cell in table["cells"]} == {"finished"}
    losses = [outcome.metrics["loss"] for outcome in outcomes[:2]]
    spread = table["over_seeds"][0]["metrics"]["loss"]
    assert spread == {"mean": pytest.approx(sum(losses) / 2), "low": min(losses), "high": max(losses)}
    text = (out / "table.md").read_text()
    assert "| heads.scale | training.seed | kNN top-1 % | loss |" in text
    assert f"| learned | 0 | {100 * outcomes[0].metrics['knn_top1']:.1f} | {losses[0]:.4f} |" in text
    assert "| heads.scale | seeds | kNN top-1 %, mean (range) |" in text
    assert "no test image was read" in text


def test_a_second_call_repeats_nothing(trained, monkeypatch, capsys):
    grid, out, before = trained
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name in ("ablation.json", "encoder.json")}
    assert len(times) == 8
    monkeypatch.setattr(outcomes_module, "held_out_knn", lambda *_: pytest.fail("measured again"))
    monkeypatch.setattr("prosmin.training.pretrain.train", lambda *_, **__: pytest.fail("trained again"))
    assert ablate(grid, out) == before
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert "finished already" in capsys.readouterr().out


def test_a_longer_grid_trains_missing_cells_and_measures_changed_ones(trained, tmp_path, small, monkeypatch):
    _, out, _ = trained
    copy = tmp_path / "out"
    shutil.copytree(out, copy)
    seen = []
    monkeypatch.setattr(
        outcomes_module, "held_out_knn", lambda encoder, *_: seen.append(encoder.card["step"]) or {"knn_top1": 0}
    )
    found = ablate(small("heads.scale=learned", "training.seed=0,2"), copy)
    assert [outcome.metrics["knn_top1"] == 0 for outcome in found] == [False, True]
    # After one more step the encoder has changed.
    ablate(small("heads.scale=learned", "training.seed=0", training__max_steps="3"), copy)
    assert seen == [2, 3]


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path, small, monkeypatch, capsys):
    def fails(config, out):
        if config.training.seed == 1:
            raise ZeroDivisionError("a | b\nc")
        if config.training.batch_size == 8:
            raise ProsminError("folder:x has lost its images. Look for them.")
        return pretrain(config, out)

    monkeypatch.setattr(run, "pretrain", fails)
    out = tmp_path / "out"
    with pytest.raises(ProsminError, match="3 of 4 cells failed"):
        ablate(small("training.batch_size=16,8", "training.seed=1,0"), out)
    cells = {cell["cell"]: cell for cell in json.loads((out / "table.json").read_text())["cells"]}
    good, lost = (cells[f"training.batch_size={size}+training.seed=0"] for size in (16, 8))
    broken = cells["training.batch_size=16+training.seed=1"]
    assert (good["state"], good["error"]) == ("finished", None)
    assert (lost["state"], lost["metrics"]) == ("failed", {})
    assert lost["error"] == "folder:x has lost its images. Look for them."
    assert broken["error"].startswith("unexpected ZeroDivisionError: a | b\nc. `prosmin pretrain --recipe demo ")
    printed = " ".join(capsys.readouterr().out.split())
    assert "failed: folder:" in printed
    rows = [line for line in (out / "table.md").read_text().splitlines() if line.startswith("|")]
    assert any("a \\| b c" in row for row in rows)
    assert {row.replace("\\|", "").count("|") for row in rows[:6]} == {rows[0].count("|")}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_grid_and_the_same_call_continues_it(tmp_path, small, monkeypatch, number, capsys):
    grid, out = small("training.seed=0,1", training__max_steps="3"), tmp_path / "out"
    step, calls = TrainingStep.__call__, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), number)
        return step(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(TrainingStep, "__call__", interrupted)
        with pytest.raises(Stopped, match=r"^training.seed=0: Stopped at step 2 of 3 "):
            ablate(grid, out)
    assert len(calls) == 2
    assert not (out / "training.seed=1").exists()
    assert [outcome.state for outcome in ablate(grid, out)] == ["finished"] * 2
    assert "continuing" in capsys.readouterr().out


def test_images_without_labels_have_no_knn_and_one_remark_says_so(tmp_path, small, capsys):
    found = ablate(small("training.seed=0,1", data="flat"), tmp_path / "out")
    assert all("knn_top1" not in outcome.metrics and "loss" in outcome.metrics for outcome in found)
    printed = capsys.readouterr().out
    assert "kNN top-1" not in printed
    assert printed.count("has no labels.") == 1
    assert "kNN top-1" not in (tmp_path / "out" / "plot.svg").read_text()


def test_a_failed_measurement_and_one_of_changed_images_are_repeated(tmp_path, small, pictures, monkeypatch):
    own = tmp_path / "own"
    shutil.copytree(pictures / "labelled", own)
    grid, out = small("training.seed=0", data=str(own)), tmp_path / "out"

    def fails(*_):
        raise ProsminError("the disk was away. Mount it.")

    with monkeypatch.context() as patched:
        patched.setattr(outcomes_module, "held_out_knn", fails)
        (failed,) = ablate(grid, out)
    assert failed.remark == "no kNN: the disk was away. Mount it."
    assert "- No kNN: the disk was away. Mount it.\n" in (out / "table.md").read_text()
    (good,) = ablate(grid, out)
    assert (good.remark, "knn_top1" in good.metrics) == ("", True)
    monkeypatch.setattr(outcomes_module, "held_out_knn", lambda *_: {"knn_top1": 0.25})
    assert ablate(grid, out) == [good]
    one = next(own.rglob("*.png"))
    one.write_bytes(one.read_bytes() + b"more")
    assert ablate(grid, out)[0].metrics["knn_top1"] == 0.25
    shutil.rmtree(own)  # without images the old result stays
    assert ablate(grid, out)[0].metrics["knn_top1"] == 0.25


def test_images_that_do_not_fit_into_memory_are_measured_too(trained, tmp_path, monkeypatch):
    grid, out, before = trained
    shutil.copytree(out, tmp_path / "out")
    for file in (tmp_path / "out").rglob("ablation.json"):
        file.unlink()
    monkeypatch.setattr("prosmin.data.image_sets.memory_limit", lambda: 1)
    monkeypatch.setattr("prosmin.data.image_sets.main_memory", lambda: 3)
    found = ablate(grid, tmp_path / "out")
    assert [outcome.remark for outcome in found] == [""] * 4
    assert [o.metrics["knn_top1"] for o in found] == [o.metrics["knn_top1"] for o in before]


def test_one_class_has_no_knn(tmp_path, small, pictures):
    shutil.copytree(pictures / "flat", tmp_path / "own" / "only")
    (found,) = ablate(small("training.seed=0", data=str(tmp_path / "own")), tmp_path / "out")
    assert (found.remark, "knn_top1" in found.metrics) == ("no kNN: the images have one class", False)


def test_runs_of_another_grid_in_the_folder_are_named(trained, tmp_path, small, capsys):
    _, out, _ = trained
    shutil.copytree(out, tmp_path / "out")
    capsys.readouterr()
    ablate(small("heads.scale=zero", "training.seed=0,1"), tmp_path / "out")
    message = capsys.readouterr().err
    assert "heads.scale=learned+training.seed=0, heads.scale=learned+training.seed=1." in message
    assert "--over" in message
    ablate(small("heads.scale=learned,zero", "training.seed=0,1"), tmp_path / "out")
    assert capsys.readouterr().err == ""


def test_the_command(tmp_path, pictures, capsys):
    fields = [word for name, value in SMALL_GRID.items() for word in (f"--{name}", value)]
    data = ["--data", f"folder:{pictures / 'labelled'}", "--training.max_steps", "1"]
    grid = tmp_path / "mine.yaml"
    grid.write_text("{recipe: demo, rows: {plain: {}, twin: {heads.scale: zero}}, notes: {twin: no spread}}")
    assert main(["ablate", "--grid", str(grid), "--out", str(tmp_path / "out"), *data, *fields]) == 0
    out = capsys.readouterr().out
    assert "twin: no spread" in out
    assert "[2/2] twin" in out
    assert sorted(p.name for p in (tmp_path / "out").iterdir() if p.is_dir()) == ["plain", "twin"]
    assert main(["ablate", "--grid", "lamm", "--out", str(tmp_path / "other")]) == 2
    assert "embedding-size, lam," in capsys.readouterr().err
    assert main(["ablate", "--recipe", "demo", "--over", "loss.lam=0.3", "--out", str(tmp_path / "other")]) == 2
    assert "loss.force" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
