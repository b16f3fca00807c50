"""What somebody may have meant by a name that there is not."""

import difflib
from collections.abc import Iterable


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like it; None where none does."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def did_you_mean(*names: str | None) -> str:
    """ " Did you mean X or Y?", to follow a sentence; nothing where there is no name."""
    found = [name for name in names if name]
    return f" Did you mean {' or '.join(found)}?" if found else ""


def meant_option(name: str, *, flags: Iterable[str], fields: Iterable[str]) -> str:
    """The same for an option of a command, given without dashes: one of its flags, or a field by its last part."""
    plain = name.lower().replace("-", "_")
    by_last: dict[str, list[str]] = {}
    for field in dict.fromkeys(fields):
        by_last.setdefault(field.rpartition(".")[2], []).append(f"--{field}")
    if plain in by_last:
        return did_you_mean(*by_last[plain])
    if flag := closest(name.lower(), [flag.lstrip("-") for flag in flags]):
        return did_you_mean(f"--{flag}")
    return did_you_mean(*by_last.get(closest(plain, by_last) or "", []))
