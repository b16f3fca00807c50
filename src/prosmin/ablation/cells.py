"""The cells (runs) of a grid: name, configuration and command; all are checked before the first one trains."""

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
from prosmin.config.values import to_text
from prosmin.data.sources import open_source
from prosmin.errors import ProsminError, UsageError
from prosmin.messages import some
from prosmin.methods import build_method
from prosmin.training.run_folder import RunFolder, other_files

RESULT = "ablation.json"
"""The file with a cell's metrics, in its run folder."""

TABLE = "table.json"
"""The file with all cells, in the folder of the grid."""

LONGEST = 120  # characters of a folder's name; file systems allow 255 bytes


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a grid."""

    name: str  # of its folder
    swept: Mapping[str, Any]  # where it differs from other cells: field -> value, and its row
    overrides: Mapping[str, Any]
    recipe: str
    config: Config
    note: str = ""

    def command(self, folder: Path) -> str:
        """The command that trains this cell alone."""
        fields = [word for name, value in self.overrides.items() for word in (f"--{name}", to_text(value))]
        return shlex.join(["prosmin", "pretrain", "--recipe", self.recipe, *fields, "--out", str(folder)])


def make_cells(grid: Grid) -> list[Cell]:
    """All cells, or one error that says why each refused cell is refused."""
    cells: list[Cell] = []
    refused: dict[str, str] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        choices = list(_choices(grid))
        for swept, overrides in choices:
            try:
                cells.append(_cell(grid, swept, overrides))
            except ProsminError as error:
                refused[_name(swept)] = str(error)
    for message, category in dict.fromkeys((str(warning.message), warning.category) for warning in caught):
        warnings.warn(message, category, stacklevel=2)
    if refused:
        raise UsageError(_refusal(refused, len(choices)))
    _refuse_duplicates(cells)
    return cells


def check_folders(cells: list[Cell], out: Path) -> None:
    """Refuse folders with other content and images that cannot be opened, before anything is trained."""
    _refuse_other_files(cells, out)
    for cell in cells:
        run = RunFolder(out / cell.name)
        if run.config_file.is_file() and (different := configs.differences(run.read_config(), cell.config)):
            rows = "\n  ".join(different)
            raise ProsminError(
                f"{run.path} contains a run with another configuration (existing -> requested):\n  {rows}\n"
                "Choose another folder with --out, or use the existing values to continue that grid."
            )
    unfinished = [cell for cell in cells if not (out / cell.name / RESULT).is_file()]
    counts = {spec: len(open_source(spec)) for spec in dict.fromkeys(cell.config.data.spec for cell in unfinished)}
    for cell in unfinished:
        spec, size = cell.config.data.spec, cell.config.training.batch_size
        if counts[spec] < size:
            raise ProsminError(
                f"{spec} has {counts[spec]} images, fewer than training.batch_size {size} of {cell.name}. "
                "Use a smaller batch. Nothing was trained."
            )


def other_runs(cells: list[Cell], out: Path) -> list[str]:
    """The runs in the folder of a grid that are not cells of it."""
    names = {cell.name for cell in cells}
    return [name for name in other_files(out) if name not in names and RunFolder(out / name).config_file.is_file()]


def _refuse_other_files(cells: list[Cell], out: Path) -> None:
    if RunFolder(out).config_file.exists():
        raise UsageError(f"--out {out} is the folder of a run, not of a grid. Choose another folder.")
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file; allowed: a folder.")
    names = {cell.name for cell in cells}  # a grid that was stopped in its first cell has no table yet
    others = [] if (out / TABLE).is_file() else [name for name in other_files(out) if name not in names]
    if others:
        raise UsageError(f"--out {out} contains other files: {some(others)}. Choose a new or an empty folder.")


def _choices(grid: Grid) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Of each cell: what differs, and all fields it sets. Every row with every combination of values."""
    rows: Mapping[str, Mapping[str, Any]] = grid.rows or {"": {}}
    for row, fields in rows.items():
        for values in itertools.product(*grid.over.values()):
            chosen = dict(zip(grid.over, values, strict=True))
            yield ({ROW: row} if row else {}) | chosen, {**grid.fixed, **fields, **chosen}


def _cell(grid: Grid, swept: dict[str, Any], overrides: dict[str, Any]) -> Cell:
    config = configs.resolve(recipe=grid.recipe, overrides=overrides)
    _check_networks(config)
    tree = configs.to_tree(config)
    # Converted values, so that 0.50 and 0.5 are the same cell.
    plain = {name: value if name == ROW else _at(tree, name) for name, value in swept.items()}
    note = grid.notes.get(swept.get(ROW, ""), "")
    return Cell(name=_name(plain), swept=plain, overrides=overrides, recipe=grid.recipe, config=config, note=note)


def _at(tree: Mapping[str, Any], name: str) -> Any:
    group, _, field = name.partition(".")
    return tree[group][field]


def _check_networks(config: Config) -> None:
    """Raise the errors of building the networks, without allocating weights."""
    try:
        with torch.device("meta"):
            build_method(config)
    except ProsminError:
        raise
    except Exception:
        # Some networks cannot be built without weights; an error will then show up in training.
        return


def _name(swept: Mapping[str, Any]) -> str:
    """A readable folder name: `loss.lam=0.45+training.seed=1`."""
    parts = [value if name == ROW else f"{name}={to_text(value)}" for name, value in swept.items()]
    exact = "+".join(parts)
    safe = re.sub(r"[^\w.=+,@-]+", "_", exact)
    if safe == exact and len(safe) <= LONGEST and not safe.startswith("."):
        return safe
    return f"{safe[:LONGEST].lstrip('.')}-{hashlib.blake2b(exact.encode(), digest_size=4).hexdigest()}"


def _refusal(refused: Mapping[str, str], total: int) -> str:
    reasons = set(refused.values())
    if len(refused) == total and len(reasons) == 1:
        return reasons.pop()
    rows = "".join(f"\n  {name}: {reason}" for name, reason in refused.items())
    return f"{len(refused)} of {total} cells are refused, so nothing was trained:{rows}"


def _refuse_duplicates(cells: list[Cell]) -> None:
    for one, other in itertools.combinations(cells, 2):
        if one.config == other.config or one.name == other.name:
            raise UsageError(f"Two cells are the same run: {one.name} and {other.name}. Remove one of the values.")
