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
"""Endings of files into which a shell or SLURM may write the output of a run."""


def other_files(folder: Path) -> list[str]:
    """The files in a folder, except hidden ones and logs that a launcher writes before a run starts."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith(".") and not name.endswith(_LOGS))
    except OSError:  # `open` reports a folder that cannot be used
        return []


class RunFolder:
    """The files of one run. Opening it for training takes a lock that ends with the process."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._lock: IO[str] | None = None

    @property
    def config_file(self) -> Path:
        """The resolved configuration; it reruns the run."""
        return self.path / "config.yaml"

    @property
    def metrics_file(self) -> Path:
        """One JSON object per logged step."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def encoder_file(self) -> Path:
        """The trained encoder; written when the run has finished."""
        return self.path / "encoder.safetensors"

    def read_config(self) -> Config:
        """The configuration the folder was started with."""
        if not self.config_file.is_file():
            raise ProsminError(
                f"{self.path} is not a run folder: it has no config.yaml. "
                "Give the folder that `prosmin pretrain --out` wrote."
            )
        return configs.build(configs.read_yaml(self.config_file))

    def is_finished(self, config: Config) -> bool:
        """Whether the encoder of the last step that the configuration asks for has been written."""
        if not (self.path / CARD).is_file():
            return False
        card = read_card(self.path)
        return card["trained"] >= min(card["steps"], config.training.max_steps or card["steps"])

    def refuse_other_files(self) -> None:
        """An error if the folder holds files that are not of a run."""
        if self.config_file.exists() or not self.path.is_dir():
            return
        if any(self.path.glob("checkpoints/step-*")):
            raise ProsminError(
                f"{self.path} has checkpoints but no config.yaml. Put the file back, or give another folder with --out."
            )
        if others := other_files(self.path):
            raise ProsminError(
                f"{self.path} is not a run folder and not empty: it contains {some(others)}. "
                "Give a new or empty folder with --out."
            )

    def open(self, config: Config) -> None:
        """Make the folder, or check that its run has the same configuration; take the lock."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._take_lock()
        except OSError as error:
            raise ProsminError(
                f"The run folder {self.path} cannot be used: {error.strerror}. Give another with --out."
            ) from None
        if self.config_file.exists():
            self._check_config(self.read_config(), config)
        else:
            write_text(self.config_file, configs.to_yaml(config))

    def update_config(self, config: Config) -> None:
        """Save the new values of fields that may change between starts, such as training.max_steps."""
        if self.read_config() != config:
            write_text(self.config_file, configs.to_yaml(config))

    def _check_config(self, existing: Config, config: Config) -> None:
        different = configs.differences(existing, config)
        if not different:
            return
        changes = "(there -> given):\n  " + "\n  ".join(different)
        if not self.is_finished(existing):
            raise ProsminError(
                f"{self.path} contains a run of another configuration {changes}\n"
                "Give another folder with --out, or leave the options out to continue that run."
            )
        fits = not any(line.startswith("backbone.") for line in different)
        start = f" `--backbone.weights {self.encoder_file}` starts it from the weights of this run." if fits else ""
        raise ProsminError(
            f"{self.path} contains a finished run of another configuration {changes}\n"
            f"More epochs, or any other change, make a new run: give another folder with --out.{start}"
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
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def read_metrics(self) -> list[dict[str, Any]]:
        """The logged rows in order, without a last line that a kill cut short."""
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
        """Drop the rows after `step`, whose steps are repeated."""
        kept = [row for row in self.read_metrics() if row["step"] <= step]
        write_text(self.metrics_file, "".join(json.dumps(row) + "\n" for row in kept))

    def log(self, row: dict[str, Any]) -> None:
        """Append one row."""
        with self.metrics_file.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
