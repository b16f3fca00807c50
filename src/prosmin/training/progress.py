"""What a person sees while it trains: a bar on a terminal, a few plain lines in a file."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


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
