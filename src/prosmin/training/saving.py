"""When a checkpoint is due, and its way to the disk beside the training."""

import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from lightning_fabric import Fabric
from torch import nn
from torch.optim import Optimizer

from prosmin.config import Config, fingerprint
from prosmin.data.feed import Feed
from prosmin.data.sources import files_mark
from prosmin.errors import ProsminError
from prosmin.training import checkpoints
from prosmin.training.run_folder import RunFolder


class Saver:
    """Writes a checkpoint when steps or minutes have passed, or when kNN was never better.

    Training goes on while a disk takes it, one at a time; what cannot be written ends the run some steps later.
    """

    def __init__(
        self,
        fabric: Fabric,
        config: Config,
        run: RunFolder,
        pictures: dict[str, Any],
        method: nn.Module,
        optimizer: Optimizer,
    ) -> None:
        self.writes = fabric.is_global_zero  # the other processes meet it again in the next step
        self.config, self.folder, self.method, self.optimizer = config, run.checkpoints, method, optimizer
        self.pictures = pictures
        self.saved_at = time.monotonic()
        self.best = checkpoints.best(self.folder)[1] if self.writes else None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="prosmin-checkpoint")
        self._writing: Future[Path] | None = None

    def __enter__(self) -> "Saver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.shutdown()
        if error is not None and (trouble := self.trouble()):
            print(f"warning: {trouble}", file=sys.stderr)

    def is_due(self, behind: int) -> bool:
        """Whether steps or, by this process's own clock, minutes have passed."""
        training = self.config.training
        late = training.checkpoint_minutes is not None and _since(self.saved_at) > 60 * training.checkpoint_minutes
        return behind % training.checkpoint_every == 0 or (self.writes and late)

    def is_best(self, score: float | None) -> bool:
        """Whether no checkpoint kept has a kNN as good."""
        return score is not None and (self.best is None or score > self.best)

    def save(self, behind: int, score: float | None) -> None:
        """Begin to write it, in the process that writes."""
        if self.is_best(score):
            self.best = score
        if self.writes:
            self.wait()
            taken = checkpoints.snapshot(
                self.method,
                self.optimizer,
                step=behind,
                fingerprint=fingerprint(self.config),
                pictures=self.pictures,
                knn=score,
            )
            self._writing = self._writer.submit(checkpoints.write, self.folder, taken, keep=self.config.training.keep)
        self.saved_at = time.monotonic()

    def check(self) -> None:
        """An error where the last one could not be written, as far as is known."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Until the last one is whole on the disk; an error where it cannot be."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def trouble(self) -> str:
        """Wait for the last one; in words why it could not be written, empty if it was."""
        try:
            self.wait()
        except ProsminError as error:
            return str(error)
        return ""


def _since(moment: float) -> float:
    return time.monotonic() - moment


def pictures_of(fabric: Fabric, feed: Feed, config: Config) -> dict[str, Any]:
    """What a run learns from: how many pictures and, looked up by one process for all, the mark of their files."""
    return {"count": len(feed), "mark": files_mark(config.data.spec) if fabric.is_global_zero else None}
