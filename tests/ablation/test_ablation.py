"""Grids: which cells there are and which are refused, that each trains once, and what the table and the plot say."""

import json
import os
import shlex
import shutil
import signal
import tomllib
import warnings
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from prosmin import config as configs
from prosmin.ablation import outcome as judging
from prosmin.ablation import run
from prosmin.ablation.cells import Cell, make_cells
from prosmin.ablation.grid import Grid, combine, grid_names, parse_over, read_grid
from prosmin.ablation.outcome import Outcome, measured, over_seeds, training_seconds
from prosmin.ablation.plot import draw, swept_axis, write_plot
from prosmin.ablation.run import ablate
from prosmin.cli import main
from prosmin.data.image_sets import load_pictures
from prosmin.encoder import load
from prosmin.errors import ProsminError, Stopped, UsageError
from prosmin.evaluation.probes.held_out import held_out_knn
from prosmin.training.pretrain import pretrain
from prosmin.training.run_folder import RunFolder
from prosmin.training.step import TrainingStep
from tiny_run import TINY

SMALL = TINY | {"training.batch_size": "16", "training.max_steps": "2", "training.checkpoint_every": "1"}


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Two classes of forty images that differ a little in tint, no others to test on; and the same in one folder."""
    root = tmp_path_factory.mktemp("pictures")
    draw_from = np.random.default_rng(0)
    for number in range(80):
        image = draw_from.integers(0, 160, (24, 24, 3), dtype=np.uint8)
        image[..., number % 2] += 7
        for folder in (root / "labelled" / f"class{number % 2}", root / "flat"):
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{number}.png")
    return root


@pytest.fixture
def small(pictures):
    """A function that makes a grid of tiny runs on those images."""

    def make(*over: str, data: str = "labelled", **fields: str) -> Grid:
        named = {name.replace("__", "."): value for name, value in fields.items()}
        swept = [text.partition("=")[0] for text in over]
        fixed = {name: value for name, value in (SMALL | named).items() if name not in swept}
        return combine(grid=None, recipe="demo", over=over, fields=fixed | {"data.spec": f"folder:{pictures / data}"})

    return make


def cells_of(*over: str, recipe: str = "demo", **fields: str) -> list[Cell]:
    named = {name.replace("__", "."): value for name, value in fields.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return make_cells(combine(grid=None, recipe=recipe, over=over, fields=named))


# What is asked for


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("loss.lam=0.45,0.5", "loss.lam", ("0.45", "0.5")),
        ("training.seed=0", "training.seed", ("0",)),
        ("views.jitter=0.4,0.4,0.2,0.1;0,0,0,0", "views.jitter", ("0.4,0.4,0.2,0.1", "0,0,0,0")),
        ("views.jitter=0.4,0.4,0.2,0.1", "views.jitter", ("0.4,0.4,0.2,0.1",)),
        ("loss.mask_ratio=0.1,0.5;0.2,0.2", "loss.mask_ratio", ("0.1,0.5", "0.2,0.2")),
        ("data.spec=folder:a,b;photos", "data.spec", ("folder:a,b", "photos")),
        ("optimizer.clip=null,3.0", "optimizer.clip", ("null", "3.0")),
    ],
)
def test_values_are_between_commas_and_lists_between_semicolons(text, name, values):
    assert parse_over(text) == (name, values)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("loss.lam", "group.field="),
        ("lam=1,2", "group.field="),
        ("loss.lam=", "empty value"),
        ("loss.lam=0.5,,0.6", "empty value"),
    ],
)
def test_a_sweep_that_cannot_be_read_is_refused(text, part):
    with pytest.raises(UsageError, match=part):
        parse_over(text)


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ({}, "The grid is empty"),
        ({"recipe": "demo"}, "The grid is empty"),
        ({"recipe": "demo", "over": ["loss.lam=0.5", "loss.lam=0.6"]}, "swept twice"),
        ({"grid": "lam", "over": ["loss.lam=0.5"]}, "swept twice"),
        ({"recipe": "demo", "over": ["loss.lam=0.5"], "fields": {"loss.lam": "0.5"}}, "given as one value"),
        ({"grid": "paper-table4", "fields": {"heads.batchnorm": "true"}}, "given as one value"),
        ({"grid": "paper-table4", "over": ["heads.batchnorm=true,false"]}, "rows of the grid paper-table4 set it"),
        ({"grid": "lamm"}, "Did you mean lam.*embedding-size, lam, momentum, paper-table4, samples"),
        ({"grid": "nowhere.yaml"}, "nowhere.yaml cannot be read"),
    ],
)
def test_contradictions_are_refused(asked, part):
    with pytest.raises(UsageError, match=part):
        combine(**{"grid": None, "recipe": None, "over": [], "fields": {}} | asked)


def test_a_recipe_is_that_of_the_grid_or_demo():
    recipes = [
        combine(grid=grid, recipe=recipe, over=["training.seed=0,1"], fields={}).recipe
        for grid, recipe in ((None, None), (None, "demo-vit"), ("paper-table4", None), ("paper-table4", "demo"))
    ]
    assert recipes == ["demo", "demo-vit", "paper", "demo"]


def test_the_command_line_wins_over_what_a_grid_sets():
    grid = combine(
        grid="lam",
        recipe="demo-vit",
        over=["training.seed=0,1"],
        fields={"loss.force": "false", "data.spec": "x"},
    )
    assert (grid.recipe, grid.swept) == ("demo-vit", ("loss.lam", "training.seed"))
    assert grid.fixed == {"loss.force": "false", "loss.identification": 0.0, "data.spec": "x"}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("over: {loss.lam: [0.5]}", "names no recipe"),
        ("recipe: demo", "either over .* or rows"),
        ("{recipe: demo, over: {loss.lam: [0.5]}, rows: {a: {loss.lam: 0.6}}}", "either over .* or rows"),
        ("{recipe: demo, sweep: {loss.lam: [0.5]}}", "a part 'sweep'"),
        ("{recipe: demo, over: {loss.lam: 0.5}}", "a list of values"),
        ("{recipe: demo, rows: {a: 3}}", "the row 'a' is 3"),
        ("{recipe: demo, rows: {1: {loss.samples: 8}}}", "the row 1 is"),
        ("{recipe: demo, rows: {a: {loss.samples: 8}}, notes: {b: text}}", "a note is on 'b'"),
        ("{recipe: demo, over: [loss.lam]}", "allowed: a mapping"),
    ],
)
def test_a_grid_file_is_checked(tmp_path, text, part):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UsageError, match=part):
        read_grid(str(tmp_path / "mine.yaml"))


def test_a_grid_file_may_end_in_yml_and_lie_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.yml").write_text("{recipe: demo, over: {loss.lam: [0.5]}}")
    assert read_grid("~/mine.yml").name == "mine"


# The grids that come with the package


@pytest.mark.parametrize("name", grid_names())
@pytest.mark.parametrize("recipe", [None, "paper"])
def test_every_grid_has_a_header_and_cells_that_are_allowed(name, recipe):
    grid = combine(grid=name, recipe=recipe, over=[], fields={})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        cells = make_cells(grid)
    assert len(cells) == len({cell.name for cell in cells}) >= 4
    text = (Path(run.__file__).parents[1] / "grids" / f"{name}.yaml").read_text()
    assert text.startswith(f"# {name}: ")
    assert f"#   prosmin ablate --grid {name} " in text


def test_table_4_has_its_five_different_rows():
    with pytest.warns(UserWarning, match="does not identify the scale"):
        cells = make_cells(combine(grid="paper-table4", recipe="demo", over=[], fields={}))
    marks = [
        (c.config.loss.rule, c.config.loss.beta, c.config.heads.batchnorm, c.config.heads.predictor) for c in cells
    ]
    assert marks == [
        ("energy", 1.0, False, True),
        ("kernel", 1.0, False, True),
        ("energy", 2.0, False, True),
        ("energy", 1.0, True, True),
        ("energy", 1.0, False, False),
    ]
    assert "rows 1 (73.2) and 6 (71)" in cells[0].note
    assert all(cell.note for cell in cells)
    assert [cell.config.loss.force for cell in cells] == [False, False, True, False, False]


def test_the_package_carries_its_grids():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert "grids/*.yaml" in project["tool"]["setuptools"]["package-data"]["prosmin"]


# Cells


def test_names_are_readable_and_follow_from_the_values():
    cells = cells_of("loss.lam=0.50,.45", "training.seed=1")
    assert [cell.name for cell in cells] == ["loss.lam=0.5+training.seed=1", "loss.lam=0.45+training.seed=1"]
    assert cells[1].swept == {"loss.lam": 0.45, "training.seed": 1}
    assert cells_of("views.jitter=0.4,0.4,0.2,0.1")[0].name == "views.jitter=0.4,0.4,0.2,0.1"
    assert cells_of("heads.batchnorm=yes")[0].name == "heads.batchnorm=true"
    assert cells_of("optimizer.clip=none")[0].name == "optimizer.clip=null"


def test_names_that_no_folder_can_have_are_changed_and_stay_different():
    one, two, far = cells_of(f"data.spec=folder:a/b,folder:a:b,folder:{'x' * 300}")
    assert one.name != two.name
    assert all(len(cell.name) < 140 and "/" not in cell.name and ":" not in cell.name for cell in (one, two, far))
    assert cells_of("data.spec=folder:a/b")[0].name == one.name


def test_a_cell_knows_its_own_command(capsys, monkeypatch):
    (cell,) = cells_of("views.jitter=0.1,0.2,0.3,0.4", training__epochs="3")
    seen = []
    monkeypatch.setattr("prosmin.training.pretrain.pretrain", lambda config, out: seen.append((config, out)))
    assert main(shlex.split(cell.command(Path("some where")))[1:]) == 0
    assert seen == [(cell.config, Path("some where"))]


@pytest.mark.parametrize(
    ("over", "parts"),
    [
        (["loss.lamm=0.5,0.6"], ["no field loss.lamm", "Did you mean lam?"]),
        (["los.lam=0.5"], ["no group 'los'"]),
        (["loss.lam=0.5,1.5"], ["1 of 2 cells are refused", "loss.lam=1.5: loss.lam is 1.5"]),
        (["loss.lam=0.3,0.5,0.4"], ["2 of 3 cells", "loss.lam=0.3: ", "loss.lam=0.4: ", "loss.force"]),
        (["training.epochs=1,two"], ["training.epochs=two", "'two'", "a whole number"]),
        (["loss.lam=0.5,0.50"], ["Two cells are the same run"]),
        (["heads.scale=learned,zero", "training.seed=1,1"], ["Two cells are the same run"]),
        (["backbone.name=resnet8_cifar,resnet7_cifar"], ["resnet7_cifar", "backbone.name is"]),
        (["method.name=prosmin,ibot"], ["method.name=ibot: ", "vit_tiny"]),
        (["views.local=0,2", "method.name=mocov3"], ["views.local=2+method.name=mocov3: "]),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is(tmp_path, over, parts, monkeypatch):
    monkeypatch.setattr(run, "pretrain", lambda *_: pytest.fail("trained"))
    grid = combine(grid=None, recipe="demo", over=over, fields={})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with pytest.raises(UsageError) as refused:
            ablate(grid, tmp_path / "out")
    for part in parts:
        assert part in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_force_lets_a_score_without_minimum_train_and_it_is_said_once():
    grid = combine(grid=None, recipe="demo", over=["loss.lam=0.3", "training.seed=0,1"], fields={"loss.force": "true"})
    with pytest.warns(UserWarning, match="no minimum") as said:
        assert len(make_cells(grid)) == 2
    assert len(said) == 1


def test_missing_pictures_and_folders_of_other_runs_are_refused_early(tmp_path, small, monkeypatch):
    monkeypatch.setattr(run, "pretrain", lambda *_: pytest.fail("trained"))
    with pytest.raises(ProsminError, match="missing"):
        ablate(small("training.seed=0,1", data="missing"), tmp_path / "out")
    with pytest.raises(ProsminError, match=r"fewer than training.batch_size 999 of training.batch_size=999"):
        ablate(small("training.batch_size=16,999"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    grid = small("training.seed=0,1")
    begun = RunFolder(tmp_path / "out" / "training.seed=1")
    begun.open(make_cells(grid)[1].config)
    begun.close()
    with pytest.raises(ProsminError, match=r"optimizer\.lr: 0\.002 -> 0\.5"):
        ablate(small("training.seed=0,1", optimizer__lr="0.5"), tmp_path / "out")


def test_a_folder_of_something_else_is_left_alone(tmp_path, small, monkeypatch):
    monkeypatch.setattr(run, "pretrain", lambda *_: pytest.fail("trained"))
    grid = small("training.seed=0,1")
    single = RunFolder(tmp_path / "single")
    single.open(make_cells(grid)[0].config)
    single.close()
    (tmp_path / "file").write_text("mine")
    for name, words in {
        "single": r"single is the folder of a run, not of a grid\. Give another folder with --out",
        "file": r"file is a file; a grid is a folder",
        ".": r"is no folder of a grid and not empty: it holds file, single\. Give a new or empty folder",
    }.items():
        with pytest.raises(UsageError, match=words):
            ablate(grid, tmp_path / name)
    assert sorted(path.name for path in single.path.iterdir()) == [".lock", "config.yaml"]


# Real cells


@pytest.fixture(scope="module")
def trained(tmp_path_factory, pictures):
    """Two settings times two seeds, and what was printed; the images that were read; DIR."""
    out = tmp_path_factory.mktemp("ablation") / "out"
    over = ["heads.scale=learned,zero", "training.seed=0,1"]
    grid = combine(grid=None, recipe="demo", over=over, fields=SMALL | {"data.spec": f"folder:{pictures / 'labelled'}"})
    return grid, out, ablate(grid, out)


def test_every_cell_is_a_run_and_is_judged_without_test_pictures(trained):
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


def test_the_table_says_it_for_people_and_programs(trained):
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
    monkeypatch.setattr(judging, "held_out_knn", lambda *_: pytest.fail("judged again"))
    monkeypatch.setattr("prosmin.training.pretrain.train", lambda *_, **__: pytest.fail("trained again"))
    assert ablate(grid, out) == before
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert "finished already" in capsys.readouterr().out


def test_a_longer_grid_trains_what_is_missing_and_judges_what_changed(trained, tmp_path, small, monkeypatch):
    _, out, _ = trained
    copy = tmp_path / "out"
    shutil.copytree(out, copy)
    seen = []
    monkeypatch.setattr(
        judging, "held_out_knn", lambda encoder, *_: seen.append(encoder.card["step"]) or {"knn_top1": 0}
    )
    found = ablate(small("heads.scale=learned", "training.seed=0,2"), copy)
    assert [outcome.metrics["knn_top1"] == 0 for outcome in found] == [False, True]
    # Trained for a step more, the encoder is another one.
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
    with pytest.raises(ProsminError, match="3 of 4 cells failed; the table says why"):
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
        with pytest.raises(Stopped, match=r"^training.seed=0: Stopped at step 2 of 3 .*The same command continues"):
            ablate(grid, out)
    assert len(calls) == 2
    assert not (out / "training.seed=1").exists()
    assert [outcome.state for outcome in ablate(grid, out)] == ["finished"] * 2
    assert "continuing" in capsys.readouterr().out


def test_pictures_without_labels_have_no_knn_and_it_is_said_once(tmp_path, small, capsys):
    found = ablate(small("training.seed=0,1", data="flat"), tmp_path / "out")
    assert all("knn_top1" not in outcome.metrics and "loss" in outcome.metrics for outcome in found)
    printed = capsys.readouterr().out
    assert "kNN top-1" not in printed
    assert printed.count("has no labels.") == 1
    assert "kNN top-1" not in (tmp_path / "out" / "plot.svg").read_text()


def test_a_judgement_that_failed_and_one_of_other_pictures_are_made_again(tmp_path, small, pictures, monkeypatch):
    own = tmp_path / "own"
    shutil.copytree(pictures / "labelled", own)
    grid, out = small("training.seed=0", data=str(own)), tmp_path / "out"

    def fails(*_):
        raise ProsminError("the disk was away. Mount it.")

    with monkeypatch.context() as patched:
        patched.setattr(judging, "held_out_knn", fails)
        (failed,) = ablate(grid, out)
    assert failed.remark == "no kNN: the disk was away. Mount it."
    assert "- No kNN: the disk was away. Mount it.\n" in (out / "table.md").read_text()
    (good,) = ablate(grid, out)
    assert (good.remark, "knn_top1" in good.metrics) == ("", True)
    monkeypatch.setattr(judging, "held_out_knn", lambda *_: {"knn_top1": 0.25})
    assert ablate(grid, out) == [good]
    one = next(own.rglob("*.png"))
    one.write_bytes(one.read_bytes() + b"more")
    assert ablate(grid, out)[0].metrics["knn_top1"] == 0.25
    shutil.rmtree(own)  # what cannot be judged again stays as it was
    assert ablate(grid, out)[0].metrics["knn_top1"] == 0.25


def test_pictures_that_do_not_fit_into_memory_are_judged_too(trained, tmp_path, monkeypatch):
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
    said = capsys.readouterr().err
    assert "leaves out: heads.scale=learned+training.seed=0, heads.scale=learned+training.seed=1. To have them" in said
    assert "in --over" in said
    ablate(small("heads.scale=learned,zero", "training.seed=0,1"), tmp_path / "out")
    assert "leaves out" not in capsys.readouterr().err


def test_the_command(tmp_path, pictures, capsys):
    fields = [word for name, value in SMALL.items() for word in (f"--{name}", value)]
    data = ["--data", f"folder:{pictures / 'labelled'}", "--training.max_steps", "1"]
    grid = tmp_path / "mine.yaml"
    grid.write_text("{recipe: demo, rows: {plain: {}, twin: {heads.scale: zero}}, notes: {twin: no spread}}")
    assert main(["ablate", "--grid", str(grid), "--out", str(tmp_path / "out"), *data, *fields]) == 0
    out = capsys.readouterr().out
    assert "twin: no spread" in out
    assert "[2/2] twin" in out
    assert sorted(p.name for p in (tmp_path / "out").iterdir() if p.is_dir()) == ["plain", "twin"]
    assert main(["ablate", "--grid", "lamm", "--out", str(tmp_path / "other")]) == 2
    assert "There are: embedding-size, lam," in capsys.readouterr().err
    assert main(["ablate", "--recipe", "demo", "--over", "loss.lam=0.3", "--out", str(tmp_path / "other")]) == 2
    assert "loss.force" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


# Numbers and drawings


def test_seconds_are_those_of_the_log():
    rows = [{"step": 10, "images_per_second": 100.0}, {"step": 15, "images_per_second": 50.0}]
    assert training_seconds(rows, batch_size=20) == 2.0 + 2.0
    assert training_seconds([], batch_size=20) is None
    assert training_seconds([{"step": 1, "images_per_second": 0.0}], batch_size=20) is None


@pytest.mark.parametrize(
    ("values", "log", "joined", "labels"),
    [
        ([0.4, 0.5, 0.6], False, True, ["0.4", "0.5", "0.6"]),
        ([4096, 256, 1024], True, True, ["256", "1024", "4096"]),
        ([0, 1, 100], False, True, ["0", "1", "100"]),
        ([0.8, 0.9, 0.99, 0.996], False, True, ["0.8", "0.9", "0.99", "0.996"]),
        ([True, False], False, False, ["true", "false"]),
        (["energy", None], False, False, ["energy", "null"]),
        (["a very long name of a row", "another such long name", "short"], False, False, ["1", "2", "3"]),
        ([7], False, True, ["7"]),
    ],
)
def test_the_axis_fits_the_values(values, log, joined, labels):
    axis = swept_axis(values)
    assert (axis.log, axis.joined) == (log, joined)
    assert [axis.label(tick) for tick in axis.ticks] == labels
    places = axis.place([axis.tick(value) for value in values])
    assert places.min() > 0
    assert places.max() < 1
    assert len(set(places)) == len(values)


def fake_outcomes(grid, metrics):
    """Finished cells with the metrics that `metrics` gives for what they sweep."""
    return [Outcome(cell=cell, metrics=metrics(cell.swept), verdict="healthy") for cell in make_cells(grid)]


def test_the_plot_has_a_panel_a_quantity_and_a_bar_a_range():
    grid = combine(grid="samples", recipe=None, over=["training.seed=0,1,2", "views.local=1,2"], fields={})
    outcomes = fake_outcomes(grid, lambda swept: {"loss": swept["loss.samples"] + 0.1 * swept["training.seed"]})
    (summary, *_), count = over_seeds(outcomes), len(over_seeds(outcomes))
    assert (count, summary.seeds) == (8, 3)
    assert (summary.metrics["loss"].low, summary.metrics["loss"].high) == (2.0, 2.2)
    outcomes[0] = Outcome(cell=outcomes[0].cell, error="it failed")
    svg = draw(grid, over_seeds(outcomes), measured(outcomes))
    root = ElementTree.fromstring(svg)
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert tags.count("svg") == 1 + 1
    assert tags.count("circle") == 8  # a mean for each of 4 x 2 settings
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"2", "4", "8", "16", "loss.samples", "●  views.local 1"} <= set(texts)
    assert any("mean and range of 3 seeds" in (text or "") for text in texts)


def test_seeds_alone_are_not_averaged_and_nothing_measured_is_no_plot(tmp_path):
    grid = combine(grid=None, recipe="demo", over=["training.seed=0,1,2"], fields={})
    outcomes = fake_outcomes(grid, lambda swept: {"loss": float(swept["training.seed"])})
    assert [summary.seeds for summary in over_seeds(outcomes)] == [1, 1, 1]
    write_plot(grid, outcomes, tmp_path / "plot.svg")
    assert ElementTree.parse(tmp_path / "plot.svg").getroot().tag.endswith("svg")
    write_plot(grid, [Outcome(cell=o.cell) for o in outcomes], tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()


def test_names_cannot_break_the_drawing(tmp_path):
    file = tmp_path / "grid.yaml"
    file.write_text("{recipe: demo, rows: {'<b>&\"x': {loss.samples: 2}, y: {loss.samples: 8}}}")
    grid = combine(grid=str(file), recipe=None, over=[], fields={})
    outcomes = fake_outcomes(grid, lambda swept: {"knn_top1": 0.5})
    write_plot(grid, outcomes, tmp_path / "plot.svg")
    texts = [e.text for e in ElementTree.parse(tmp_path / "plot.svg").getroot().iter()]
    assert any('<b>&"x' in (text or "") for text in texts)
    assert configs.build(configs.to_tree(outcomes[0].cell.config)) == outcomes[0].cell.config
