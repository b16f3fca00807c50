"""What a source of images is, and the record that describes one kind of source."""

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from prosmin.data.sources.remote import is_remote

if TYPE_CHECKING:  # importing torch takes seconds; the error for a missing folder need not wait for it
    from torch import Tensor


class Source(Protocol):
    """Images by number, read one at a time and not decoded; reading is safe from several threads."""

    @property
    def spec(self) -> str:
        """The SPEC that opens it."""

    @property
    def labels(self) -> "Tensor | None":
        """(N,) int64, or None."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the labels; empty without labels."""

    def __len__(self) -> int: ...

    def key(self, i: int) -> str:
        """Path or name of image i."""

    def read(self, i: int) -> "bytes | Tensor":
        """Image i: encoded bytes, or uint8 (3, H, W). Raises OSError where it cannot be read."""


def resolved(path: str) -> str:
    """The path without links and `~`; of a remote one without a `/` at its end."""
    return path.rstrip("/") if is_remote(path) else os.path.realpath(os.path.expanduser(path))


@dataclass(frozen=True, kw_only=True)
class SourceKind:
    """One kind of source. `rest` is the part of a SPEC after its name and separator."""

    name: str
    form: str
    """How a SPEC is written, for help texts and errors."""
    open: Callable[[str], Source]
    """rest -> the source."""
    other_split: Callable[[str, str], str]
    """(rest, split) -> the rest of that split's SPEC. Raises UsageError where there is none."""
    files: Callable[[str], Collection[str]] | None = None
    """rest -> paths of the files it reads, which a user may change; None for published sets.

    For remote files a dictionary from the path to the `FileState`, as the listing says it.
    """
    place: Callable[[str], str] = resolved
    """rest -> the same text for every way to write it: path resolved, default split named."""
    groups: Callable[[Iterable[str]], list[str]] | None = None
    """Keys of images -> name of each image's group: images of a group overlap and stay in one part of a split."""
    separator: str = ":"
    labelled: bool = False
    """Every such source has labels and a test split."""
