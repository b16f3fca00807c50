"""Names of splits: which of those a source has is meant, and what the file of another split is called."""

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


def candidates(wanted: str) -> tuple[str, ...]:
    """The names under which a split may be found, the best first."""
    return ALIASES.get(wanted, (wanted,))


def choose(wanted: str, available: Iterable[str], *, spec: str) -> str:
    """The name a source uses for the wanted split."""
    names = list(available)
    for name in candidates(wanted):
        if name in names:
            return name
    has = f"it has: {', '.join(names)}" if names else "it has no splits; name the other images by a SPEC of their own"
    raise UsageError(f"The data {spec} has no split {wanted!r}; {has}.")


def own_group(groups: Mapping[str, Group]) -> Group | None:
    """The group that a source of several splits means where none is named; None where all of it is meant."""
    return next((groups[name] for name in ALIASES["train"] if name in groups), None) if len(groups) > 1 else None


def renamed(path: str, wanted: str) -> list[str]:
    """What the wanted split beside this one may be called: `a/x-train.tar` -> `a/x-test.tar`, ..."""
    folder, slash, name = path.rpartition("/")
    found = list(_WORD.finditer(name))
    if not found:
        return []
    start, end = found[-1].span()
    return [f"{folder}{slash}{name[:start]}{other}{name[end:]}" for other in candidates(wanted)]


def word(name: str) -> str | None:
    """The split a file's name speaks of, if any: `train-00000-of-00002.parquet` -> `train`."""
    found = _WORD.findall(name)
    return found[-1].lower() if found else None
