"""One value: from YAML or a text of the command line to the type of its field, and back to text."""

import re
import types
import typing
from collections.abc import Iterable
from typing import Any, Literal

from prosmin.errors import UsageError
from prosmin.messages import closest, did_you_mean


def check(condition: bool, name: str, received: object, allowed: str) -> None:
    """Raise an error that says what was received and what is allowed, unless the condition is true."""
    if not condition:
        raise UsageError(f"{name} is {received!r}; allowed: {allowed}.")


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Refuse a name that is not known; the error suggests the closest one."""
    known = list(known)
    if value not in known:
        hint = did_you_mean(closest(str(value), known))
        raise UsageError(f"{name} is {value!r}.{hint} Allowed: {', '.join(known)}.")


def convert(name: str, value: Any, hint: Any) -> Any:
    """A YAML value or a text as the type `hint`; `name` is the field or option that an error names."""
    args = typing.get_args(hint)
    if _is_union(hint):
        if value is None or (isinstance(value, str) and value.lower() in ("null", "none")):
            return None
        return convert(name, value, _without_none(hint))
    if typing.get_origin(hint) is Literal:
        check_choice(name, value, args)
        return value
    if is_list(hint):
        return _convert_list(name, value, args)
    if hint is bool:
        text = str(value).lower()
        check(text in ("true", "false", "yes", "no", "on", "off", "1", "0"), name, value, "true or false")
        return text in ("true", "yes", "on", "1")
    return str(value) if hint is str else _convert_number(name, value, hint)


def _convert_list(name: str, value: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A list of any length for tuple[X, ...], else of the length that the type says."""
    parts = split_list(value.strip("[]()")) if isinstance(value, str) else value
    is_free = args[-1] is ...
    fits = isinstance(parts, list | tuple) and "" not in parts and (is_free or len(parts) == len(args))
    check(fits, name, value, f"{'values' if is_free else f'{len(args)} numbers'} with commas between")
    return tuple(convert(name, part, args[0] if is_free else args[i]) for i, part in enumerate(parts))


def _convert_number(name: str, value: Any, kind: type) -> Any:
    allowed = "a whole number" if kind is int else "a number"
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{name} is {value!r}; allowed: {allowed}.") from None
    check(not isinstance(value, bool) and number == number and abs(number) != float("inf"), name, value, allowed)
    check(kind is float or number == int(number), name, value, allowed)
    try:
        return kind(value)  # from the text: a float cannot represent every whole number
    except ValueError:  # 1e3
        return int(number)


def split_list(text: str) -> list[str]:
    """The parts between commas; a comma in braces, as in `webdataset:{a,b}.tar`, belongs to its part."""
    return [part.strip() for part in re.split(r",(?![^{}]*\})", text)]


def is_list(hint: Any) -> bool:
    """Whether a field of this type has several values."""
    return typing.get_origin(_without_none(hint)) is tuple


def to_text(value: Any) -> str:
    """A value as it is written on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(to_text, value)) if isinstance(value, list | tuple) else str(value)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (types.UnionType, typing.Union)


def _without_none(hint: Any) -> Any:
    return next(arg for arg in typing.get_args(hint) if arg is not types.NoneType) if _is_union(hint) else hint
