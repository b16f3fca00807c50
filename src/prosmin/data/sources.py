"""Where pictures come from: a SPEC such as `photos@test` or `folder:PATH` names a source.

A source knows how many pictures it has, their labels if there are any, and how to read one; it decodes nothing.
A new one is a function in its own file and a line in `SOURCES`.
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from prosmin.data.photos import open_photos
from prosmin.errors import UsageError


class Source(Protocol):
    """Pictures by number, read one at a time; reading is safe from several threads."""

    @property
    def spec(self) -> str:
        """The SPEC that opens it."""

    @property
    def labels(self) -> Tensor | None:
        """(N,) int64, or None."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the labels."""

    def __len__(self) -> int: ...

    def key(self, i: int) -> str:
        """Path or name of picture i."""

    def read(self, i: int) -> bytes | Tensor:
        """Picture i: encoded bytes, or uint8 (3, H, W). Raises OSError where it cannot be read."""


SOURCES: dict[str, Callable[[str], Source]] = {
    "photos": open_photos,
}


def open_source(spec: str) -> Source:
    """The source a SPEC names."""
    scheme, rest = parse(spec)
    return SOURCES[scheme](rest)


def parse(spec: str) -> tuple[str, str]:
    """Scheme and the rest of a SPEC."""
    scheme, _, rest = spec.partition("@") if spec.startswith("photos") else spec.partition(":")
    if scheme not in SOURCES:
        raise UsageError(f"The data {spec!r} is unknown.")
    return scheme, rest


def split_spec(spec: str, split: str) -> str:
    """The SPEC of another split of the same source."""
    parse(spec)
    return f"photos@{split}"
