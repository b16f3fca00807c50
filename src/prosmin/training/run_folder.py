"""A run folder: its configuration, its metrics, its lock."""

import fcntl
import json
import os
from pathlib import Path
from typing import IO, Any

from prosmin import config as configs
from prosmin.config import Config
from prosmin.encoder.file import CARD, read_card
from prosmin.errors import ProsminError
from prosmin.files import write_text
from prosmin.messages import some

_LOGS = (".log", ".out", ".err")
"""Endings of files into which a shell or SLURM may write what the run says."""


def other_files(folder: Path) -> list[str]:
    """What lies in a folder besides hidden files and what a launcher writes there before a run begins."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith(".") and not name.endswith(_LOGS))
    except OSError:  # who may not list it cannot use it: `open` says so
        return []


class RunFolder:
    """Names and files of one run. Opening it for training takes a lock that ends with the process."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._lock: IO[str] | None = None

    @property
    def config_file(self) -> Path:
        """The resolved configuration; it reruns the run."""
        return self.path / "config.yaml"

    @property
    def metrics_file(self) -> Path:
        """One JSON object a logged step."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def encoder_file(self) -> Path:
        """The trained encoder; it exists once the run has finished."""
        return self.path / "encoder.safetensors"

    def read_config(self) -> Config:
        """The configuration the folder was started with."""
        if not self.config_file.is_file():
            raise ProsminError(
                f"{self.path} is not a run folder: it holds no config.yaml. "
                "Give the folder that `prosmin pretrain --out` wrote."
            )
        return configs.build(configs.read_yaml(self.config_file))

    def is_finished(self, config: Config) -> bool:
        """Whether the run's encoder is there and stems from the last step that the configuration asks for."""
        if not (self.path / CARD).is_file():
            return False
        card = read_card(self.path)
        return card["trained"] >= min(card["steps"], config.training.max_steps or card["steps"])

    def refuse_other_files(self) -> None:
        """An error where the folder is somebody's, not a run's: what a launcher writes beside a run may be there."""
        if self.config_file.exists() or not self.path.is_dir():
            return
        if any(self.path.glob("checkpoints/step-*")):
            raise ProsminError(
                f"{self.path} holds checkpoints but no config.yaml. "
                "Put the file back, or give another folder with --out."
            )
        if others := other_files(self.path):
            raise ProsminError(
                f"{self.path} is no run folder and not empty: it holds {some(others)}. "
                "Give a new or empty folder with --out."
            )

    def open(self, config: Config) -> None:
        """Make the folder, or check that the one there was started with the same configuration; take the lock."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._take_lock()
        except OSError as error:
            raise ProsminError(
                f"The run folder {self.path} cannot be used: {error.strerror}. Give another with --out."
            ) from None
        if self.config_file.exists():
            self._refuse_another(self.read_config(), config)
        else:
            write_text(self.config_file, configs.to_yaml(config))

    def go_on(self, config: Config) -> None:
        """Write what has changed of the fields that may, such as training.max_steps: the file stays true."""
        if self.read_config() != config:
            write_text(self.config_file, configs.to_yaml(config))

    def _refuse_another(self, there: Config, config: Config) -> None:
        different = configs.differences(there, config)
        if not different:
            return
        shown = "(there -> asked for):\n  " + "\n  ".join(different)
        if not self.is_finished(there):
            raise ProsminError(
                f"{self.path} holds a run of another configuration {shown}\n"
                "Give another folder with --out, or leave the options out to continue that run."
            )
        fits = not any(line.startswith("backbone.") for line in different)
        start = f" `--backbone.weights {self.encoder_file}` starts it from the weights of this one." if fits else ""
        raise ProsminError(
            f"{self.path} holds a run that has finished, of another configuration {shown}\n"
            f"More epochs, or any other change, are a new run: give another folder with --out.{start}"
        )

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        lock = (self.path / ".lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise ProsminError(
                f"Another process is training in {self.path}. Wait for it, or give another folder with --out."
            ) from None
        self._lock = lock

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def read_metrics(self) -> list[dict[str, Any]]:
        """The logged lines in order; a last line cut short by a kill is left out."""
        if not self.metrics_file.is_file():
            return []
        rows = []
        for line in self.metrics_file.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return rows

    def rewind_metrics(self, step: int) -> None:
        """Drop the lines after `step`: the steps they tell of are done again."""
        kept = [row for row in self.read_metrics() if row["step"] <= step]
        write_text(self.metrics_file, "".join(json.dumps(row) + "\n" for row in kept))

    def log(self, row: dict[str, Any]) -> None:
        """Append one line."""
        with self.metrics_file.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
