"""Grids: what the command line and files ask for, which cells there are, which are refused."""

import shlex
import tomllib
import warnings
from pathlib import Path

import pytest

from prosmin.ablation import run
from prosmin.ablation.cells import Cell, make_cells
from prosmin.ablation.grid import combine, grid_names, parse_over, read_grid
from prosmin.ablation.run import ablate
from prosmin.cli import main
from prosmin.errors import UsageError


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
        ("loss.lam=", "loss.lam="),
        ("loss.lam=0.5,,0.6", "0.5,,0.6"),
    ],
)
def test_a_sweep_that_cannot_be_read_is_refused(text, part):
    with pytest.raises(UsageError, match=part):
        parse_over(text)


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ({}, "--over"),
        ({"recipe": "demo"}, "--over"),
        ({"recipe": "demo", "over": ["loss.lam=0.5", "loss.lam=0.6"]}, "loss.lam is swept"),
        ({"grid": "lam", "over": ["loss.lam=0.5"]}, "loss.lam is swept"),
        ({"recipe": "demo", "over": ["loss.lam=0.5"], "fields": {"loss.lam": "0.5"}}, "loss.lam"),
        ({"grid": "paper-table4", "fields": {"heads.batchnorm": "true"}}, "heads.batchnorm"),
        ({"grid": "paper-table4", "over": ["heads.batchnorm=true,false"]}, "heads.batchnorm.*paper-table4"),
        ({"grid": "lamm"}, "Did you mean lam.*embedding-size, lam, momentum, paper-table4, samples"),
        ({"grid": "nowhere.yaml"}, "nowhere.yaml"),
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
    assert grid.fixed == read_grid("lam").fixed | {"loss.force": "false", "data.spec": "x"}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("over: {loss.lam: [0.5]}", "recipe: NAME"),
        ("recipe: demo", "either over .* or rows"),
        ("{recipe: demo, over: {loss.lam: [0.5]}, rows: {a: {loss.lam: 0.6}}}", "either over .* or rows"),
        ("{recipe: demo, sweep: {loss.lam: [0.5]}}", "'sweep'"),
        ("{recipe: demo, over: {loss.lam: 0.5}}", "loss.lam is 0.5"),
        ("{recipe: demo, rows: {a: 3}}", "the row 'a' is 3"),
        ("{recipe: demo, rows: {1: {loss.samples: 8}}}", "the row 1 is"),
        ("{recipe: demo, rows: {a: {loss.samples: 8}}, notes: {b: text}}", "'b'"),
        ("{recipe: demo, over: [loss.lam]}", "over is"),
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
@pytest.mark.parametrize("recipe", [None, "demo"])
def test_every_grid_has_a_header_and_cells_that_are_allowed(name, recipe):
    grid = combine(grid=name, recipe=recipe, over=[], fields={})
    assert grid.recipe == (recipe or "paper")
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
    cells = cells_of("loss.lam=0.50,.47", "training.seed=1")
    assert [cell.name for cell in cells] == ["loss.lam=0.5+training.seed=1", "loss.lam=0.47+training.seed=1"]
    assert cells[1].swept == {"loss.lam": 0.47, "training.seed": 1}
    assert cells_of("views.jitter=0.4,0.4,0.2,0.1")[0].name == "views.jitter=0.4,0.4,0.2,0.1"
    assert cells_of("heads.batchnorm=yes")[0].name == "heads.batchnorm=true"
    assert cells_of("optimizer.clip=none")[0].name == "optimizer.clip=null"


def test_names_that_no_folder_can_have_are_changed_and_stay_different():
    one, two, far = cells_of(f"data.spec=folder:a/b,folder:a:b,folder:{'x' * 300}")
    assert one.name != two.name
    assert all(len(cell.name) < 140 and "/" not in cell.name and ":" not in cell.name for cell in (one, two, far))
    assert cells_of("data.spec=folder:a/b")[0].name == one.name


def test_the_command_of_a_cell_trains_it(capsys, monkeypatch):
    (cell,) = cells_of("views.jitter=0.1,0.2,0.3,0.4", training__epochs="3")
    seen = []
    monkeypatch.setattr("prosmin.training.pretrain.pretrain", lambda config, out: seen.append((config, out)))
    assert main(shlex.split(cell.command(Path("some where")))[1:]) == 0
    assert seen == [(cell.config, Path("some where"))]


@pytest.mark.parametrize(
    ("over", "parts"),
    [
        (["loss.lamm=0.5,0.6"], ["loss.lamm", "Did you mean lam?"]),
        (["los.lam=0.5"], ["'los'"]),
        (["loss.lam=0.5,1.5"], ["1 of 2 cells", "loss.lam=1.5: loss.lam is 1.5"]),
        (["loss.lam=0.3,0.5,0.4"], ["2 of 3 cells", "loss.lam=0.3: ", "loss.lam=0.4: ", "loss.force"]),
        (["training.epochs=1,two"], ["training.epochs=two", "'two'", "a whole number"]),
        (["loss.lam=0.5,0.50"], ["loss.lam=0.5 and loss.lam=0.5"]),
        (["heads.scale=learned,zero", "training.seed=1,1"], ["heads.scale=learned+training.seed=1 and"]),
        (["backbone.name=resnet8_cifar,resnet7_cifar"], ["resnet7_cifar", "backbone.name is"]),
        (["method.name=prosmin,ibot"], ["method.name=ibot: ", "vit_tiny"]),
        (["views.local=0,-1", "method.name=mocov3"], ["views.local=-1+method.name=mocov3: "]),
    ],
)
def test_a_cell_that_cannot_be_trained_is_refused_before_training(tmp_path, over, parts, monkeypatch):
    monkeypatch.setattr(run, "pretrain", lambda *_: pytest.fail("trained"))
    grid = combine(grid=None, recipe="demo", over=over, fields={})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with pytest.raises(UsageError) as refused:
            ablate(grid, tmp_path / "out")
    for part in parts:
        assert part in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_force_trains_a_score_without_minimum_with_one_warning():
    grid = combine(grid=None, recipe="demo", over=["loss.lam=0.3", "training.seed=0,1"], fields={"loss.force": "true"})
    with pytest.warns(UserWarning, match="no minimum") as caught:
        assert len(make_cells(grid)) == 2
    assert len(caught) == 1
