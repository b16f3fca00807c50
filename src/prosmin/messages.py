"""Phrases that error messages share: suggestions for misspelt names, shortened lists."""

import difflib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path


def closest(name: str, known: Iterable[str]) -> str | None:
    """The most similar known name; None if none is similar."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def did_you_mean(*names: str | None) -> str:
    """ " Did you mean X or Y?", to follow a sentence; empty without names."""
    found = [name for name in names if name]
    return f" Did you mean {' or '.join(found)}?" if found else ""


def suggest(name: object, known: Iterable[str]) -> str:
    """The closest known name, and all known names."""
    known = list(known)
    return f"{did_you_mean(closest(str(name), known))} There are: {', '.join(known)}."


def suggest_option(name: str, *, flags: Iterable[str], fields: Iterable[str]) -> str:
    """The closest option of a command: a flag, or a field by its last part or its group (`name` without dashes)."""
    plain, fields = name.lower().replace("-", "_"), list(dict.fromkeys(fields))
    by_last: dict[str, list[str]] = {}
    for field in fields:
        by_last.setdefault(field.rpartition(".")[2], []).append(f"--{field}")
    if plain in by_last:
        return did_you_mean(*by_last[plain])
    group = [f"--{field}" for field in fields if field.startswith(f"{plain}.")]
    if len(group) > 1:
        return f" {plain} is a group of fields: {', '.join(group[:3])}{', ...' if len(group) > 3 else ''}."
    if group:
        return did_you_mean(*group)
    if flag := closest(name.lower(), [flag.lstrip("-") for flag in flags]):
        return did_you_mean(f"--{flag}")
    return did_you_mean(*by_last.get(closest(plain, by_last) or "", []))


def runs_below(folder: Path) -> str:
    """The runs and encoders in a folder, ten at most; empty if there are none."""
    try:
        inside = sorted(entry.path for entry in os.scandir(folder) if entry.is_dir())
    except OSError:
        return ""
    runs = [path for path in inside if any((Path(path) / name).is_file() for name in ("encoder.json", "config.yaml"))]
    return ", ".join(runs[:10]) + (f" and {len(runs) - 10} more" if len(runs) > 10 else "")


def some(names: Sequence[str]) -> str:
    """The first five names, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
