"""What a grid sweeps: fields with their values (`over`) or named rows, from a file in grids/ and the command line."""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from prosmin import config as configs
from prosmin.errors import UsageError
from prosmin.messages import closest, did_you_mean

ROW = "row"
"""Stands in the place of a field for grids whose cells are named rows."""

DEFAULT_RECIPE = "demo"
"""As of the other commands, where neither a grid nor --recipe names one."""

_KEYS = ("recipe", "set", "over", "rows", "notes")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A recipe, what all cells change in it, and what differs between them: rows times the product of `over`."""

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
    """The grids that come with the package."""
    folder = resources.files("prosmin").joinpath("grids")
    return sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml"))


def read_grid(name: str) -> Grid:
    """The grid of that name, or in that file if it ends with .yaml or .yml."""
    if name.endswith((".yaml", ".yml")):
        return _build(Path(name).stem, configs.read_yaml(Path(name).expanduser()))
    names = grid_names()
    if name not in names:
        meant = did_you_mean(closest(name, names))
        raise UsageError(f"There is no grid {name!r}.{meant} There are: {', '.join(names)}; or give a file NAME.yaml.")
    return _build(name, yaml.safe_load(resources.files("prosmin").joinpath("grids", f"{name}.yaml").read_text()))


def combine(*, grid: str | None, recipe: str | None, over: Sequence[str], fields: Mapping[str, str]) -> Grid:
    """The grid of a command line: --grid, --recipe, every --over, every --group.field."""
    found = read_grid(grid) if grid is not None else Grid(recipe=DEFAULT_RECIPE)
    swept = dict(found.over)
    for text in over:
        name, values = parse_over(text)
        if name in swept:
            raise UsageError(f"{name} is swept twice. Name all of its values in one --over {name}=A,B,...")
        swept[name] = values
    in_rows = {name for row in found.rows.values() for name in row}
    for name in swept:
        if name in in_rows:
            raise UsageError(f"{name} is swept, but the rows of the grid {found.name} set it themselves. Leave it out.")
    for name in fields:
        if name in swept or name in in_rows:
            raise UsageError(f"{name} is given as one value, but the grid sweeps it. Leave --{name} or the sweep out.")
    if not swept and not found.rows:
        raise UsageError("The grid is empty: give --over group.field=A,B,... at least once, or --grid NAME.")
    recipe = found.recipe if recipe is None else recipe
    return dataclasses.replace(found, recipe=recipe, over=swept, fixed={**found.fixed, **fields})


def parse_over(text: str) -> tuple[str, tuple[str, ...]]:
    """`group.field=a,b,c` as the field and its values; between values that hold commas themselves stands `;`."""
    name, equals, values = text.partition("=")
    if not equals or "." not in name:
        raise UsageError(f"--over is {text!r}; allowed: group.field=A,B,..., such as loss.lam=0.45,0.5.")
    separator = ";" if ";" in values or _holds_several(name) else ","
    found = tuple(value.strip() for value in values.split(separator))
    if not all(found):
        raise UsageError(f"--over {text} has an empty value; allowed: {name}=A{separator}B{separator}...")
    return name, found


def _holds_several(name: str) -> bool:
    """Whether a field is itself a list of numbers, such as views.jitter."""
    group, _, last = name.partition(".")
    return any(group == known and typing.get_origin(hint.get(last)) is tuple for known, hint in _hints())


def _hints() -> Iterator[tuple[str, dict[str, Any]]]:
    for method in configs.METHOD_GROUPS:
        for group, cls in configs.groups(method).items():
            hints = typing.get_type_hints(cls)
            yield group, {name: _without_none(hint) for name, hint in hints.items()}


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return next(arg for arg in typing.get_args(hint) if arg is not types.NoneType)
    return hint


def _build(name: str, tree: Mapping[str, Any]) -> Grid:
    """The checked grid of a file."""
    for key, value in tree.items():
        if key not in _KEYS:
            raise UsageError(f"The grid {name} has a part {key!r}; allowed: {', '.join(_KEYS)}.")
        if key != "recipe" and not isinstance(value, Mapping):
            raise UsageError(f"In the grid {name}, {key} is {value!r}; allowed: a mapping.")
    if not isinstance(tree.get("recipe"), str):
        raise UsageError(
            f"The grid {name} names no recipe; allowed: recipe: NAME, one of `prosmin recipes` or a file NAME.yaml."
        )
    if bool(tree.get("over")) == bool(tree.get("rows")):
        raise UsageError(f"The grid {name} must have either over (fields with lists of values) or rows (named fields).")
    for swept, values in tree.get("over", {}).items():
        if not isinstance(values, list) or not values:
            raise UsageError(f"In the grid {name}, over {swept} is {values!r}; allowed: a list of values.")
    for row, fields in tree.get("rows", {}).items():
        if not isinstance(row, str) or not row or not isinstance(fields, Mapping):
            raise UsageError(f"In the grid {name}, the row {row!r} is {fields!r}; allowed: a name, fields with values.")
    for row in tree.get("notes", {}):
        if row not in tree.get("rows", {}):
            raise UsageError(f"In the grid {name}, a note is on {row!r}, which is none of its rows.")
    return Grid(
        name=name,
        recipe=tree["recipe"],
        fixed=tree.get("set", {}),
        over=tree.get("over", {}),
        rows=tree.get("rows", {}),
        notes=tree.get("notes", {}),
    )
