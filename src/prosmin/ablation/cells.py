"""The cells of a grid: each with its name, its configuration and its command; all checked before one trains."""

import hashlib
import itertools
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from prosmin import config as configs
from prosmin.ablation.grid import ROW, Grid
from prosmin.config import Config
from prosmin.data.sources import open_source
from prosmin.errors import ProsminError, UsageError
from prosmin.messages import some
from prosmin.methods import build_method
from prosmin.training.run_folder import RunFolder, other_files

RESULT = "ablation.json"
"""The file of a judged cell, in its run folder."""

TABLE = "table.json"
"""The file of all cells, in the folder of the grid."""

LONGEST = 120  # letters of a folder's name; file systems stop at 255 bytes


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a grid."""

    name: str  # of its folder
    swept: Mapping[str, Any]  # what makes it differ from the others: field -> value, and its row
    overrides: Mapping[str, Any]
    recipe: str
    config: Config
    note: str = ""

    def command(self, folder: Path) -> str:
        """What trains this cell alone."""
        fields = [word for name, value in self.overrides.items() for word in (f"--{name}", value_text(value))]
        return shlex.join(["prosmin", "pretrain", "--recipe", self.recipe, *fields, "--out", str(folder)])


def make_cells(grid: Grid) -> list[Cell]:
    """All cells, or one error that names every cell refused and why."""
    cells: list[Cell] = []
    refused: dict[str, str] = {}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        choices = list(_choices(grid))
        for swept, overrides in choices:
            try:
                cells.append(_cell(grid, swept, overrides))
            except ProsminError as error:
                refused[_name(swept)] = str(error)
    for message, category in dict.fromkeys((str(warning.message), warning.category) for warning in said):
        warnings.warn(message, category, stacklevel=2)
    if refused:
        raise UsageError(_refusal(refused, len(choices)))
    _refuse_duplicates(cells)
    return cells


def check_folders(cells: list[Cell], out: Path) -> None:
    """Refuse folders that hold something else, and images that cannot be had, before anything is trained."""
    _refuse_other_files(cells, out)
    for cell in cells:
        run = RunFolder(out / cell.name)
        if run.config_file.is_file() and (different := configs.differences(run.read_config(), cell.config)):
            shown = "\n  ".join(different)
            raise ProsminError(
                f"{run.path} holds a run of another configuration (there -> asked for):\n  {shown}\n"
                "Give another folder with --out, or the values that are there to continue that grid."
            )
    unjudged = [cell for cell in cells if not (out / cell.name / RESULT).is_file()]
    counts = {spec: len(open_source(spec)) for spec in dict.fromkeys(cell.config.data.spec for cell in unjudged)}
    for cell in unjudged:
        spec, size = cell.config.data.spec, cell.config.training.batch_size
        if counts[spec] < size:
            raise ProsminError(
                f"{spec} has {counts[spec]} images, fewer than training.batch_size {size} of {cell.name}. "
                "Give a smaller one. No cell was begun."
            )


def other_runs(cells: list[Cell], out: Path) -> list[str]:
    """The runs in the folder of a grid that are none of its cells."""
    own = {cell.name for cell in cells}
    return [name for name in other_files(out) if name not in own and RunFolder(out / name).config_file.is_file()]


def _refuse_other_files(cells: list[Cell], out: Path) -> None:
    if RunFolder(out).config_file.exists():
        raise UsageError(f"--out {out} is the folder of a run, not of a grid. Give another folder with --out.")
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file; a grid is a folder. Give another with --out.")
    own = {cell.name for cell in cells}  # a grid that was stopped within its first cell has no table yet
    others = [] if (out / TABLE).is_file() else [name for name in other_files(out) if name not in own]
    if others:
        raise UsageError(
            f"--out {out} is no folder of a grid and not empty: it holds {some(others)}. "
            "Give a new or empty folder with --out."
        )


def value_text(value: Any) -> str:
    """A value as it is written on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(value_text, value)) if isinstance(value, list | tuple) else str(value)


def _choices(grid: Grid) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """What is swept and what is overridden in each cell: rows times the product over the fields."""
    rows: Mapping[str, Mapping[str, Any]] = grid.rows or {"": {}}
    for row, fields in rows.items():
        for values in itertools.product(*grid.over.values()):
            chosen = dict(zip(grid.over, values, strict=True))
            yield ({ROW: row} if row else {}) | chosen, {**grid.fixed, **fields, **chosen}


def _cell(grid: Grid, swept: dict[str, Any], overrides: dict[str, Any]) -> Cell:
    config = configs.resolve(recipe=grid.recipe, overrides=overrides)
    _check_networks(config)
    tree = configs.to_tree(config)
    # Values as the configuration has them: 0.50 and 0.5 name one cell.
    plain = {name: value if name == ROW else _at(tree, name) for name, value in swept.items()}
    note = grid.notes.get(swept.get(ROW, ""), "")
    return Cell(name=_name(plain), swept=plain, overrides=overrides, recipe=grid.recipe, config=config, note=note)


def _at(tree: Mapping[str, Any], name: str) -> Any:
    group, _, field = name.partition(".")
    return tree[group][field]


def _check_networks(config: Config) -> None:
    """Raise what building the networks would raise, without their weights."""
    try:
        with torch.device("meta"):
            build_method(config)
    except ProsminError:
        raise
    except Exception:
        # Some network cannot be built without weights: training it will tell.
        return


def _name(swept: Mapping[str, Any]) -> str:
    """A readable folder name: `loss.lam=0.45+training.seed=1`."""
    parts = [value if name == ROW else f"{name}={value_text(value)}" for name, value in swept.items()]
    exact = "+".join(parts)
    safe = re.sub(r"[^\w.=+,@-]+", "_", exact)
    if safe == exact and len(safe) <= LONGEST and not safe.startswith("."):
        return safe
    return f"{safe[:LONGEST].lstrip('.')}-{hashlib.blake2b(exact.encode(), digest_size=4).hexdigest()}"


def _refusal(refused: Mapping[str, str], total: int) -> str:
    sentences = set(refused.values())
    if len(refused) == total and len(sentences) == 1:
        return sentences.pop()
    shown = "".join(f"\n  {name}: {sentence}" for name, sentence in refused.items())
    return f"{len(refused)} of {total} cells are refused, so nothing was trained:{shown}"


def _refuse_duplicates(cells: list[Cell]) -> None:
    known: list[Cell] = []
    for cell in cells:
        for other in known:
            if other.config == cell.config or other.name == cell.name:
                raise UsageError(
                    f"Two cells are the same run: {other.name} and {cell.name}. Leave one of the two values out."
                )
        known.append(cell)
