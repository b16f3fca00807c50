"""What a person sees while it embeds: a bar on a terminal, about ten plain lines in a file."""

import sys
import time
from typing import TYPE_CHECKING

from prosmin.embed.processes import Process

if TYPE_CHECKING:
    from rich.progress import Progress

LINES = 10


class EmbedProgress:
    """Pictures behind us, and how fast; of several processes the first one shows its own share."""

    def __init__(self, title: str, *, total: int, done: int, process: Process) -> None:
        self.title = title if process.world == 1 else f"{title} (share of 1 of {process.world} processes)"
        self.total, self.done, self.start = total, done, done
        self.quiet = process.rank > 0 or done == total
        self.began = time.monotonic()
        self.bar = _bar() if sys.stdout.isatty() and not self.quiet else None
        self.task = self.bar.add_task(self.title, total=total, completed=done, rate="") if self.bar else None

    def __enter__(self) -> "EmbedProgress":
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar:
            self.bar.stop()

    def advance(self, pictures: int) -> None:
        """So many pictures more."""
        before, self.done = self.done, self.done + pictures
        if self.quiet:
            return
        rate = (self.done - self.start) / max(time.monotonic() - self.began, 1e-9)
        if self.bar and self.task is not None:
            self.bar.update(self.task, completed=self.done, rate=f"{rate:.0f} img/s")
        elif before * LINES // self.total < self.done * LINES // self.total:
            left = (self.total - self.done) / rate
            print(f"{self.title}: {self.done}/{self.total}  {rate:.0f} img/s  {left:.0f} s left", flush=True)


def _bar() -> "Progress":
    # Imported here: a command whose lines go to a file starts without it.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(file=sys.stdout),
    )
