"""The configuration of one run: built from dictionaries and YAML, checked, written back, compared."""

import dataclasses
import hashlib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from prosmin.config.fields import (
    BackboneConfig,
    ComputeConfig,
    DataConfig,
    OptimizerConfig,
    TargetConfig,
    TrainingConfig,
    ViewsConfig,
    check,
    check_choice,
    option,
)
from prosmin.config.methods import METHOD_GROUPS, ProsminLoss
from prosmin.errors import UsageError
from prosmin.messages import suggest

Tree = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """Which method learns."""

    name: str = option("prosmin", "one of: " + ", ".join(METHOD_GROUPS))

    def __post_init__(self) -> None:
        check_choice("method.name", self.name, METHOD_GROUPS)


GROUPS: dict[str, type] = {
    "method": MethodConfig,
    "data": DataConfig,
    "views": ViewsConfig,
    "backbone": BackboneConfig,
    "target": TargetConfig,
    "optimizer": OptimizerConfig,
    "training": TrainingConfig,
    "compute": ComputeConfig,
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """The whole tree of one run."""

    method: MethodConfig
    data: DataConfig
    views: ViewsConfig
    backbone: BackboneConfig
    heads: Any
    loss: Any
    target: Any
    optimizer: OptimizerConfig
    training: TrainingConfig
    compute: ComputeConfig

    def __post_init__(self) -> None:
        if isinstance(self.loss, ProsminLoss):
            self.loss.check(views=2 + self.views.local)


def groups(method: str) -> dict[str, type]:
    """The dataclass of each group for a method."""
    own = METHOD_GROUPS.get(method, {})
    return {field.name: own.get(field.name) or GROUPS[field.name] for field in dataclasses.fields(Config)}


def build(tree: Mapping[str, Any]) -> Config:
    """The checked configuration of a nested dictionary; missing fields take their defaults."""
    method = _build_group("method", MethodConfig, tree.get("method"))
    classes = groups(method.name)
    for name in tree:
        if name not in classes:
            raise UsageError(f"There is no group {name!r} in a configuration.{suggest(name, classes)}")
    built = {name: _build_group(name, cls, tree.get(name), method.name) for name, cls in classes.items()}
    return Config(**built)


def _build_group(group: str, cls: type, values: Any, method: str = "") -> Any:
    values = {} if values is None else values
    if not isinstance(values, Mapping):
        raise UsageError(f"{group} is {values!r}; allowed: a mapping of fields to values.")
    hints = typing.get_type_hints(cls)
    of = f" for {method}" if method and cls in METHOD_GROUPS.get(method, {}).values() else ""
    for name in values:
        if name not in hints:
            raise UsageError(f"There is no field {group}.{name}{of}.{suggest(name, hints)}")
    return cls(**{name: _convert(f"{group}.{name}", value, hints[name]) for name, value in values.items()})


def _convert(name: str, value: Any, hint: Any) -> Any:
    """A YAML value or command-line text as the type of its field."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None or (isinstance(value, str) and value.lower() in ("null", "none")):
            return None
        return _convert(name, value, next(arg for arg in args if arg is not types.NoneType))
    if origin is Literal:
        check_choice(name, value, args)
        return value
    if origin is tuple:
        values = value.strip("[]()").split(",") if isinstance(value, str) else value
        fits = isinstance(values, list | tuple) and len(values) == len(args)
        check(fits, name, value, f"{len(args)} numbers with commas between")
        return tuple(_convert(name, v, arg) for v, arg in zip(values, args, strict=True))
    if hint is bool:
        text = str(value).lower()
        check(text in ("true", "false", "yes", "no", "on", "off", "1", "0"), name, value, "true or false")
        return text in ("true", "yes", "on", "1")
    if hint is str:
        return str(value)
    return _convert_number(name, value, hint)


def _convert_number(name: str, value: Any, kind: type) -> Any:
    allowed = "a whole number" if kind is int else "a number"
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{name} is {value!r}; allowed: {allowed}.") from None
    check(not isinstance(value, bool) and number == number and abs(number) != float("inf"), name, value, allowed)
    check(kind is float or number == int(number), name, value, allowed)
    try:
        return kind(value)  # of a text too: a float has no room for every whole number
    except ValueError:  # 1e3
        return int(number)


def to_tree(config: Config) -> Tree:
    """The nested dictionary that `build` turns back into the same configuration."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        return list(value) if isinstance(value, tuple) else value

    return plain(dataclasses.asdict(config))


def to_yaml(config: Config) -> str:
    """The configuration as the text of a run's config.yaml."""
    return yaml.safe_dump(to_tree(config), sort_keys=False, default_flow_style=None)


def describe(method: str = "prosmin") -> Iterator[tuple[str, str, str]]:
    """Every field with its default and its line, for the help text; a fixed choice with its values."""
    for group, cls in groups(method).items():
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            hint, line = hints[field.name], field.metadata["doc"]
            if typing.get_origin(hint) is Literal:
                line += f"; one of: {', '.join(map(str, typing.get_args(hint)))}"
            yield f"{group}.{field.name}", str(field.default), line


_FREE = {
    "data": ("max_bad",),
    "training": (
        "max_steps",
        "checkpoint_every",
        "checkpoint_minutes",
        "keep",
        "log_every",
        "logger",
        "knn_every",
        "knn_pictures",
        "on_collapse",
    ),
}
"""Fields that may change when a run is resumed, beside all of `compute`."""


def fingerprint(config: Config) -> str:
    """A short hash of all that determines the result."""
    tree = {name: values for name, values in to_tree(config).items() if name != "compute"}
    tree["training"] = {name: value for name, value in tree["training"].items() if name not in _FREE["training"]}
    tree["data"] = tree["data"] | {"max_bad": DataConfig().max_bad}  # not left out: runs keep the hash they have
    return hashlib.blake2b(yaml.safe_dump(tree).encode(), digest_size=8).hexdigest()


def differences(one: Config, other: Config) -> list[str]:
    """The fields that determine the result and differ: "group.field: a -> b"."""
    first, second = to_tree(one), to_tree(other)
    rows = []
    for group in first:
        for name in dict.fromkeys([*first[group], *second[group]]):
            a, b = first[group].get(name), second[group].get(name)
            free = group == "compute" or name in _FREE.get(group, ())
            if a != b and not free:
                rows.append(f"{group}.{name}: {a} -> {b}")
    return rows
