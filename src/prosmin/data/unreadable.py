"""The record of unreadable images: every reader of images decodes through a `CheckedSource`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from prosmin.data.decode import PictureError, bounded, decode_bounded
from prosmin.data.sources import Source
from prosmin.errors import ProsminError


@dataclass(frozen=True)
class CheckedSource:
    """A source that decodes its images and records those that cannot be read. Safe from several threads."""

    source: Source
    max_bad: float | None = None  # the share above which reading raises ProsminError; None: never
    option: str = ""  # the command-line option that raises max_bad, for the error
    unreadable: dict[int, str] = field(default_factory=dict)  # number -> reason

    @property
    def spec(self) -> str:
        """The SPEC that opens it."""
        return self.source.spec

    @property
    def labels(self) -> Tensor | None:
        """(N,) int64, or None."""
        return self.source.labels

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the labels; empty without labels."""
        return self.source.classes

    def __len__(self) -> int:
        return len(self.source)

    def key(self, i: int) -> str:
        """Path or name of image i."""
        return self.source.key(i)

    def read(self, i: int) -> bytes | Tensor:
        """Image i, not decoded."""
        return self.source.read(i)

    def image(self, i: int, data: bytes | Tensor | None = None) -> Tensor | None:
        """Image i, uint8 (3, H, W), reduced to bounded size; None if it cannot be read, which is recorded.

        `data` is what `source.read(i)` returned, if that was called already.
        """
        try:
            return read_picture(self.source, i, data)
        except PictureError as reason:
            self.record(i, reason)
            return None

    def record(self, i: int, reason: PictureError) -> None:
        """Record that image i cannot be read. Raises ProsminError if that makes too many."""
        self.unreadable[i] = str(reason)
        if self.max_bad is not None and _too_many(len(self.unreadable), len(self), self.max_bad):
            raise self.error()

    def error(self) -> ProsminError:
        """The error for too many unreadable images, with the list."""
        if self.max_bad == 0 and not self.option:
            i, reason = min(self.unreadable.copy().items())
            return ProsminError(f"{self.key(i)} cannot be read: {reason}. Repair it or leave it out.")
        return _error(self.lines(), total=len(self), max_bad=self.max_bad or 0.0, spec=self.spec, option=self.option)

    def lines(self) -> list[str]:
        """ "key: reason" of each unreadable image found so far, in the order of the source."""
        return [f"{self.key(i)}: {reason}" for i, reason in sorted(self.unreadable.copy().items())]

    def readable(self, numbers: Tensor) -> Tensor:
        """Which of these images could be read: (n,) -> (n,) bool."""
        return torch.tensor([i not in self.unreadable for i in numbers.tolist()], dtype=torch.bool)


def read_picture(source: Source, i: int, data: bytes | Tensor | None = None) -> Tensor:
    """Image i of a source, uint8 (3, H, W), reduced to bounded size. Raises PictureError."""
    try:
        data = source.read(i) if data is None else data
    except OSError as error:
        raise PictureError(error.strerror or str(error)) from None
    return bounded(data) if isinstance(data, Tensor) else decode_bounded(data)


def check_readable(unreadable: list[str], *, total: int, max_bad: float, spec: str, option: str = "") -> None:
    """Raise if more than `max_bad` of `total` images, or all of them, are unreadable; `option` allows more."""
    if _too_many(len(unreadable), total, max_bad):
        raise _error(unreadable, total=total, max_bad=max_bad, spec=spec, option=option)


def report_left_out(spec: str, unreadable: Sequence[str]) -> None:
    """Name the unreadable images that were left out, on stderr."""
    if unreadable:
        print(f"unreadable images left out of {spec}: {len(unreadable)}{_listed(unreadable)}", file=sys.stderr)


def _too_many(count: int, total: int, max_bad: float) -> bool:
    return count > 0 and (count > max_bad * total or count == total)


def _error(unreadable: list[str], *, total: int, max_bad: float, spec: str, option: str) -> ProsminError:
    allow = f", or allow more with {option}" if option and len(unreadable) < total else ""
    return ProsminError(
        f"At least {len(unreadable)} of {total} images in {spec} cannot be read; a share of {max_bad:g} is allowed. "
        f"Repair or remove them{allow}:{_listed(unreadable)}"
    )


def _listed(lines: Sequence[str]) -> str:
    """At most twenty of them, one per line."""
    return "".join(f"\n  {line}" for line in lines[:20]) + ("\n  ..." if len(lines) > 20 else "")
