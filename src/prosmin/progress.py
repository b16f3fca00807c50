"""Progress of long work: a bar on a terminal, a few plain lines in a file."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich import progress as rich_progress
from rich.console import Console
from rich.markup import escape

Item = TypeVar("Item")


class Progress:
    """What is done of a total: a bar on a terminal; elsewhere about `lines` lines like `step 40/800  note  9 s left`.

    Both go to standard output. Nothing is shown if `hidden`, or if there is nothing left to do.
    """

    def __init__(
        self,
        title: str,
        *,
        total: float,
        done: float = 0,
        lines: int = 10,
        hidden: bool = False,
        transient: bool = False,
    ) -> None:
        self.title, self.total, self.lines = title, total, lines
        self.start = self.done = done
        self.hidden = hidden or done >= total
        self.began = time.monotonic()
        console = Console(file=sys.stdout)
        columns = (
            rich_progress.TextColumn("{task.description}"),
            rich_progress.BarColumn(),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TextColumn("{task.fields[note]}"),
            rich_progress.TimeRemainingColumn(),
        )
        is_bar = console.is_terminal and not self.hidden
        self._bar = rich_progress.Progress(*columns, console=console, transient=transient) if is_bar else None
        self._task = self._bar.add_task(escape(title), total=total, completed=int(done), note="") if self._bar else None

    def __enter__(self) -> "Progress":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, done: float, note: str = "") -> None:
        """Show that `done` of the total is done, with a note on the newest values."""
        before, self.done = self.done, done
        if self.hidden:
            return
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=done, note=escape(note))
        elif int(before * self.lines / self.total) < int(done * self.lines / self.total):
            left = (time.monotonic() - self.began) / max(done - self.start, 1) * (self.total - done)
            print(
                "  ".join(filter(None, (f"{self.title} {done}/{self.total}", note, f"{left:.0f} s left"))), flush=True
            )

    def add_images(self, count: int) -> None:
        """Show that `count` more images are done, and how many a second."""
        done = self.done + count
        self.update(done, f"{(done - self.start) / max(time.monotonic() - self.began, 1e-9):.0f} img/s")


def track(items: Iterable[Item], title: str, *, total: int) -> Iterator[Item]:
    """The items, with a bar on standard error while they are used, where that is a terminal and there is a title."""
    console = Console(stderr=True)
    hidden = not (title and console.is_terminal)
    yield from rich_progress.track(
        items, description=escape(title), total=total, console=console, transient=True, disable=hidden
    )


@contextmanager
def announced(name: str, *, number: int, total: int) -> Iterator[None]:
    """A line on stderr when one of `total` tasks starts, and one with its time when it is done."""
    print(f"[{number}/{total}] {name} ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    yield
    print(f"[{number}/{total}] {name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
