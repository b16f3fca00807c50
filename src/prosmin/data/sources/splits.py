"""Names of splits: the aliases of a split, and what the file or folder of another split is called."""

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from prosmin.errors import UsageError

Group = TypeVar("Group")

ALIASES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    # Many sets publish labels for a validation split only, and everyone tests on that: ImageNet is one.
    "test": ("test", "testing", "val", "valid", "validation"),
}
_WORD = re.compile(r"(?<![a-z])(training|train|validation|valid|val|testing|test)(?![a-z])", re.IGNORECASE)


def candidates(split: str) -> tuple[str, ...]:
    """The names under which a split may be found, the best first."""
    return ALIASES.get(split, (split,))


def choose(split: str, available: Iterable[str], *, spec: str) -> str:
    """The name a source uses for the split."""
    names = list(available)
    for name in candidates(split):
        if name in names:
            return name
    has = f"it has: {', '.join(names)}" if names else "it has no splits; give the other images as a separate SPEC"
    raise UsageError(f"The data {spec} has no split {split!r}; {has}.")


def train_group(groups: Mapping[str, Group]) -> Group | None:
    """The training split of several; None where the source has no splits, so that all of it is used."""
    return next((groups[name] for name in ALIASES["train"] if name in groups), None) if len(groups) > 1 else None


def renamed(path: str, split: str) -> list[str]:
    """Possible paths of another split beside this one: `a/x-train.tar` -> `a/x-test.tar`, ..."""
    folder, slash, name = path.rpartition("/")
    found = list(_WORD.finditer(name))
    if not found:
        return []
    start, end = found[-1].span()
    return [f"{folder}{slash}{name[:start]}{other}{name[end:]}" for other in candidates(split)]


def word(name: str) -> str | None:
    """The split that a file's name contains, if any: `train-00000-of-00002.parquet` -> `train`."""
    found = _WORD.findall(name)
    return found[-1].lower() if found else None
