"""The configuration of one run: built from nested dictionaries, checked, written as YAML, compared."""

import dataclasses
import hashlib
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
    option,
)
from prosmin.config.methods import METHOD_GROUPS, ProsminLoss, ProsminTarget
from prosmin.config.values import check_choice, convert
from prosmin.errors import UsageError
from prosmin.messages import suggest

Tree = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """The method."""

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
    """All groups of fields of one run."""

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
            self.loss.check(self.heads, views=2 + self.views.local)
        if isinstance(self.target, ProsminTarget):
            self.target.check(self.heads, batch_size=self.training.batch_size)
        self._check_start()

    def _check_start(self) -> None:
        """What continues from given weights needs them, in both networks."""
        for name in ("guard", "guard_every"):
            value = getattr(self.training, name)
            if value and self.backbone.weights is None:
                raise UsageError(
                    f"training.{name} is {value:g}, but there is no starting encoder to compare with: "
                    "give backbone.weights too, or leave it out."
                )
        frozen, epochs = self.backbone.freeze_epochs, self.training.epochs
        if frozen >= epochs:
            raise UsageError(
                f"backbone.freeze_epochs is {frozen:g} and training.epochs is {epochs}, so the backbone would never "
                f"learn; allowed: 0 to below {epochs}. Lower backbone.freeze_epochs or raise training.epochs; to train "
                "only heads for an encoder, use `prosmin calibrate`."
            )
        if frozen and self.target.start != "copy":
            raise UsageError(
                f"backbone.freeze_epochs is {frozen:g}, but target.start is "
                f"{self.target.start!r}: the target would have random weights. Set target.start to copy."
            )


def groups(method: str) -> dict[str, type]:
    """The dataclass of each group for a method."""
    special = METHOD_GROUPS.get(method, {})
    return {field.name: special.get(field.name) or GROUPS[field.name] for field in dataclasses.fields(Config)}


def build(tree: Mapping[str, Any]) -> Config:
    """The checked configuration from a nested dictionary; missing fields have their defaults."""
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
    where = f" for {method}" if method and cls in METHOD_GROUPS.get(method, {}).values() else ""
    for name in values:
        if name not in hints:
            raise UsageError(f"There is no field {group}.{name}{where}.{suggest(name, hints)}")
    return cls(**{name: convert(f"{group}.{name}", value, hints[name]) for name, value in values.items()})


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
    """Every field: its name, default and line of documentation, with the values of a fixed choice."""
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
        "max_steps", "checkpoint_every", "checkpoint_minutes", "keep", "log_every", "logger", "knn_every",
        "knn_pictures", "on_collapse", "guard", "guard_every",
    ),
}  # fmt: skip
"""Fields that may change when a run is resumed, in addition to all of `compute`."""


_ADDED: dict[str, Tree] = {
    "backbone": {"freeze_epochs": 0.0},
    "optimizer": {"layer_decay": 1.0, "clip_each": False},
    "heads": {
        "normalise_last": True,
        "predictor_form": "scaled",
        "whitening_eps": 1e-3,
        "radius": False,
        "condition": False,
    },
    "loss": {"score_weight": 1.0},
    "target": {"whitening": "centre", "whitening_eps": 1e-3, "whitening_momentum": 0.9, "normalise": False},
}
"""Fields that runs of version 0.1.0 did not have, with the values that mean what those runs did."""


def fingerprint(config: Config) -> str:
    """A short hash of all fields that determine the result."""
    tree = {name: values for name, values in to_tree(config).items() if name != "compute"}
    tree["training"] = {name: value for name, value in tree["training"].items() if name not in _FREE["training"]}
    for group, added in _ADDED.items():
        tree[group] = {name: value for name, value in tree[group].items() if name not in added or value != added[name]}
    tree["data"] = tree["data"] | {"max_bad": DataConfig().max_bad}  # set, not removed: existing runs keep their hash
    return hashlib.blake2b(yaml.safe_dump(tree).encode(), digest_size=8).hexdigest()


def differences(one: Config, other: Config) -> list[str]:
    """The differing fields that determine the result, each as "group.field: a -> b"."""
    first, second = to_tree(one), to_tree(other)
    rows = []
    for group in first:
        for name in dict.fromkeys([*first[group], *second[group]]):
            a, b = first[group].get(name), second[group].get(name)
            if a != b and group != "compute" and name not in _FREE.get(group, ()):
                rows.append(f"{group}.{name}: {a} -> {b}")
    return rows
