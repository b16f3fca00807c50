"""When two configurations are the same run: all that determines the result."""

import hashlib

import yaml

from prosmin.config.groups import DataConfig
from prosmin.config.tree import Config, to_tree

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
