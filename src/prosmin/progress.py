"""Progress for a person: a bar on a terminal, a few plain lines in a file."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class TrainingProgress:
    """A bar with ETA, img/s and loss on a terminal; about twenty lines over the run elsewhere."""

    def __init__(self, *, start: int, steps: int, steps_per_epoch: int, quiet: bool = False) -> None:
        self.start, self.steps, self.steps_per_epoch, self.quiet = start, steps, steps_per_epoch, quiet
        self.began = time.monotonic()
        self.note = self.knn = ""
        self.lines_every = max(1, steps // 20)
        console = Console(file=sys.stdout)
        columns = (
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=console) if console.is_terminal and not quiet else None
        self.task = self.bar.add_task("", total=steps, completed=start, epoch="0", note="") if self.bar else None

    def __enter__(self) -> "TrainingProgress":
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar:
            self.bar.stop()

    def describe(self, row: dict[str, float]) -> None:
        """Take the newest logged line."""
        if "knn_top1" in row:
            self.knn = f"  kNN {100 * row['knn_top1']:.1f} %"
        self.note = f"loss {row['loss']:.4f}  {row['images_per_second']:.0f} img/s{self.knn}"

    def advance(self, done: int) -> None:
        """`done` steps are behind us."""
        if self.quiet:
            return
        epoch = f"{done / self.steps_per_epoch:.1f}"
        if self.bar and self.task is not None:
            self.bar.update(self.task, completed=done, epoch=epoch, note=self.note)
        elif done % self.lines_every == 0 or done == self.steps:
            left = (time.monotonic() - self.began) / max(done - self.start, 1) * (self.steps - done)
            print(f"step {done}/{self.steps}  epoch {epoch}  {self.note}  {left:.0f} s left", flush=True)


LINES = 10


class EmbedProgress:
    """Images behind us, and how fast; of several processes the first one shows its own share."""

    def __init__(self, title: str, *, total: int, done: int, rank: int = 0, world: int = 1) -> None:
        self.title = title if world == 1 else f"{title} (share of 1 of {world} processes)"
        self.total, self.done, self.start = total, done, done
        self.quiet = rank > 0 or done == total
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
        """So many images more."""
        before, self.done = self.done, self.done + pictures
        if self.quiet:
            return
        rate = (self.done - self.start) / max(time.monotonic() - self.began, 1e-9)
        if self.bar and self.task is not None:
            self.bar.update(self.task, completed=self.done, rate=f"{rate:.0f} img/s")
        elif before * LINES // self.total < self.done * LINES // self.total:
            left = (self.total - self.done) / rate
            print(f"{self.title}: {self.done}/{self.total}  {rate:.0f} img/s  {left:.0f} s left", flush=True)


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(file=sys.stdout),
    )
