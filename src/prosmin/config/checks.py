"""A field with its documentation, and what a value must be."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from prosmin.errors import UsageError
from prosmin.meant import closest, did_you_mean

Range = tuple[float, float]


def option(default: Any, doc: str) -> Any:
    """A field with its line of documentation."""
    return dataclasses.field(default=default, metadata={"doc": doc})


def check(condition: bool, name: str, received: object, allowed: str) -> None:
    """An error that says what was received and what is allowed."""
    if not condition:
        raise UsageError(f"{name} is {received!r}; allowed: {allowed}.")


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """One of the names there are; of another the error says which may have been meant."""
    known = list(known)
    if value not in known:
        meant = did_you_mean(closest(str(value), known))
        raise UsageError(f"{name} is {value!r}.{meant} Allowed: {', '.join(known)}.")


def check_share(name: str, value: float) -> None:
    """0 to 1."""
    check(0.0 <= value <= 1.0, name, value, "a share from 0 to 1")


def check_range(name: str, value: Range, low: float, high: float) -> None:
    """Two rising numbers."""
    check(low <= value[0] <= value[1] <= high, name, list(value), f"two rising numbers from {low:g} to {high:g}")
