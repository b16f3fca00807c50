"""A grid: fields with their values (`over`) or named rows of fields, from a YAML file and the command line."""

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prosmin import config as configs
from prosmin.config.recipes import read_shipped, shipped_names
from prosmin.config.values import is_list
from prosmin.errors import UsageError

ROW = "row"
"""The name of the column of named rows, in the place of a field."""

DEFAULT_RECIPE = "demo"
"""Used if neither a grid nor --recipe names one."""

_KEYS = ("recipe", "set", "over", "rows", "notes")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A recipe, the fields that all cells set, and those that differ: all rows with all combinations of `over`."""

    name: str = ""
    recipe: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    over: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)  # on rows

    @property
    def swept(self) -> tuple[str, ...]:
        """The fields that differ between cells, as the columns of a table."""
        return (*([ROW] if self.rows else []), *self.over)


def grid_names() -> list[str]:
    """The grids of the package."""
    return shipped_names("grids")


def read_grid(name: str) -> Grid:
    """A grid of the package, or your own file NAME.yaml."""
    is_file = name.endswith((".yaml", ".yml"))
    return _build(Path(name).stem if is_file else name, read_shipped("grids", name))


def combine(*, grid: str | None, recipe: str | None, over: Sequence[str], fields: Mapping[str, str]) -> Grid:
    """The grid of a command line: --grid, --recipe, each --over, each --group.field."""
    found = read_grid(grid) if grid is not None else Grid(recipe=DEFAULT_RECIPE)
    swept = dict(found.over)
    for text in over:
        name, values = parse_over(text)
        if name in swept:
            raise UsageError(f"{name} is swept twice. Give all of its values in one --over {name}=A,B,...")
        swept[name] = values
    in_rows = {name for row in found.rows.values() for name in row}
    for name in swept:
        if name in in_rows:
            raise UsageError(f"{name} is swept, but the rows of the grid {found.name} set it. Leave it out.")
    for name in fields:
        if name in swept or name in in_rows:
            raise UsageError(
                f"{name} has one value on the command line, but the grid sweeps it. Remove one of the two."
            )
    if not swept and not found.rows:
        raise UsageError("The grid is empty: give --over group.field=A,B,... at least once, or --grid NAME.")
    recipe = found.recipe if recipe is None else recipe
    return dataclasses.replace(found, recipe=recipe, over=swept, fixed={**found.fixed, **fields})


def parse_over(text: str) -> tuple[str, tuple[str, ...]]:
    """`group.field=a,b,c` as the field and its values; values that contain commas are separated by `;`."""
    name, equals, values = text.partition("=")
    if not equals or "." not in name:
        raise UsageError(f"--over is {text!r}; allowed: group.field=A,B,..., such as loss.lam=0.45,0.5.")
    separator = ";" if ";" in values or _is_list(name) else ","
    found = tuple(value.strip() for value in values.split(separator))
    if not all(found):
        raise UsageError(f"--over {text} has an empty value; allowed: {name}=A{separator}B{separator}...")
    return name, found


def _is_list(name: str) -> bool:
    """Whether the values of a field are lists, as of views.jitter."""
    group, _, last = name.partition(".")
    classes = {configs.groups(method).get(group) for method in configs.METHOD_GROUPS} - {None}
    return any(is_list(typing.get_type_hints(cls).get(last)) for cls in classes)


def _build(name: str, tree: Mapping[str, Any]) -> Grid:
    """The checked grid of a file."""
    for key, value in tree.items():
        if key not in _KEYS:
            raise UsageError(f"The grid {name} has an entry {key!r}; allowed: {', '.join(_KEYS)}.")
        if key != "recipe" and not isinstance(value, Mapping):
            raise UsageError(f"In the grid {name}, {key} is {value!r}; allowed: a mapping.")
    if not isinstance(tree.get("recipe"), str):
        raise UsageError(
            f"The grid {name} has no recipe; write recipe: NAME (see `prosmin recipes`) or recipe: FILE.yaml."
        )
    if bool(tree.get("over")) == bool(tree.get("rows")):
        raise UsageError(f"The grid {name} needs either over (fields with lists of values) or rows (named fields).")
    for swept, values in tree.get("over", {}).items():
        if not isinstance(values, list) or not values:
            raise UsageError(f"In the grid {name}, over {swept} is {values!r}; allowed: a list of values.")
    for row, fields in tree.get("rows", {}).items():
        if not isinstance(row, str) or not row or not isinstance(fields, Mapping):
            raise UsageError(
                f"In the grid {name}, the row {row!r} is {fields!r}; allowed: a name and a mapping of fields to values."
            )
    for row in tree.get("notes", {}):
        if row not in tree.get("rows", {}):
            raise UsageError(f"In the grid {name}, a note is on {row!r}, which is not one of its rows.")
    over, rows, notes = (tree.get(key, {}) for key in ("over", "rows", "notes"))
    return Grid(name=name, recipe=tree["recipe"], fixed=tree.get("set", {}), over=over, rows=rows, notes=notes)
