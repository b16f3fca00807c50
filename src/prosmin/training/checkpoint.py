"""Checkpoints: when one is due, how it is written and read.

A checkpoint is a folder with tensors (safetensors) and a JSON file with their hashes. It is written under another name,
flushed to disk and renamed, so that a process killed at any moment never leaves half of one.
"""

import json
import re
import shutil
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from prosmin.config import Config, fingerprint
from prosmin.data.sources import files_mark
from prosmin.data.stream import Feed
from prosmin.errors import ProsminError
from prosmin.files import advice, file_hash, flush
from prosmin.training.run_folder import RunFolder

_NAME = re.compile(r"step-(\d{8})")
_MODEL, _OPTIMIZER, _STATE = "model.safetensors", "optimizer.safetensors", "state.json"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A run after a step."""

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    pictures: dict[str, Any]  # the images it was trained on: their number and a hash of their file names and sizes
    fingerprint: str = ""
    knn: float | None = None


def describe_images(fabric: Fabric, feed: Feed, config: Config) -> dict[str, Any]:
    """The number of training images and, found by the first process for all, a hash of their file names and sizes."""
    return {"count": len(feed), "mark": files_mark(config.data.spec) if fabric.is_global_zero else None}


def snapshot(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    step: int,
    pictures: dict[str, Any],
    fingerprint: str = "",
    knn: float | None = None,
) -> Checkpoint:
    """A copy in memory that later steps do not change."""
    return Checkpoint(
        step=step,
        model=_on_cpu(model.state_dict()),
        optimizer=_on_cpu(_moments(model, optimizer)),
        pictures=pictures,
        fingerprint=fingerprint,
        knn=knn,
    )


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies as safetensors requires them: on the CPU, contiguous, sharing no memory."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def write(folder: Path, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Write a checkpoint, then remove the oldest ones beyond `keep`, but never the best."""
    final = folder / f"step-{checkpoint.step:08d}"
    part = folder / f".{final.name}.part"
    try:
        for left in folder.glob(".step-*.part"):  # by a process that ended while writing
            shutil.rmtree(left, ignore_errors=True)
        # An interrupted command leaves `part` to the next one: to remove it now could empty it after it is renamed.
        part.mkdir(parents=True)
        _write_files(part, checkpoint)
        if final.exists():  # a damaged one that was skipped on resume
            shutil.rmtree(final)
        part.rename(final)
        flush(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(part, ignore_errors=True)
        older = newest_names(folder)
        kept = f"{older[0]} is intact and the same command continues from it" if older else "there is no earlier one"
        raise ProsminError(
            f"The checkpoint of step {checkpoint.step} cannot be written to {folder}: {error}; {kept}. "
            f"{advice(error, final)}"
        ) from error
    for name in newest_names(folder)[keep:]:
        if name not in (final.name, best(folder)[0]):
            shutil.rmtree(folder / name, ignore_errors=True)  # a leftover does no harm
    return final


def _write_files(folder: Path, checkpoint: Checkpoint) -> None:
    save_file(checkpoint.model, folder / _MODEL)
    save_file(checkpoint.optimizer, folder / _OPTIMIZER)
    state = {
        "step": checkpoint.step,
        "fingerprint": checkpoint.fingerprint,
        "files": {name: file_hash(folder / name) for name in (_MODEL, _OPTIMIZER)},
        "knn_top1": checkpoint.knn,
        "pictures": checkpoint.pictures,
    }
    (folder / _STATE).write_text(json.dumps(state, indent=1))
    mode = (folder / _STATE).stat().st_mode  # follows the umask; files of safetensors are readable by the owner only
    for name in (_MODEL, _OPTIMIZER, _STATE):
        (folder / name).chmod(mode)
        flush(folder / name)


def newest_names(folder: Path) -> list[str]:
    """The checkpoints of a run, newest first."""
    if not folder.is_dir():
        return []
    return sorted((p.name for p in folder.iterdir() if _NAME.fullmatch(p.name)), reverse=True)


def best(folder: Path) -> tuple[str | None, float | None]:
    """The checkpoint with the highest kNN (the oldest of equal ones) and that kNN; None if none was measured."""
    found: tuple[str | None, float | None] = (None, None)
    for name in reversed(newest_names(folder)):
        try:
            score = json.loads((folder / name / _STATE).read_text()).get("knn_top1")
        except (OSError, ValueError):  # damaged; `load_newest` reports it
            continue
        if score is not None and (found[1] is None or score > found[1]):
            found = name, score
    return found


def load_newest(folder: Path) -> tuple[Checkpoint | None, dict[str, str]]:
    """The newest intact checkpoint, and {name: what is wrong} for each damaged one that was skipped."""
    damaged: dict[str, str] = {}
    for name in newest_names(folder):
        try:
            return load(folder / name), damaged
        except (FileNotFoundError, ValueError, KeyError, SafetensorError) as error:
            damaged[name] = str(error)
        except OSError as error:  # it may be intact: do not lose the steps since the one before
            raise ProsminError(
                f"The checkpoint {folder / name} cannot be read: {error.strerror}. Fix that and run again; or remove "
                "it to continue from the one before."
            ) from None
    return None, damaged


def set_aside(folder: Path, name: str) -> str:
    """Rename a damaged checkpoint, so that it counts neither as the best nor among those kept."""
    aside = folder / f"{name}.damaged"
    shutil.rmtree(aside, ignore_errors=True)
    (folder / name).rename(aside)
    return aside.name


def load(path: Path) -> Checkpoint:
    """One checkpoint; ValueError if a file has changed since it was written."""
    state = json.loads((path / _STATE).read_text())
    for name, expected in state["files"].items():
        if file_hash(path / name) != expected:
            raise ValueError(f"{name} does not match its hash")
    return Checkpoint(
        step=int(state["step"]),
        model=load_file(path / _MODEL),
        optimizer=load_file(path / _OPTIMIZER),
        pictures=state.get("pictures", {}),
    )


def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: Optimizer) -> None:
    """Copy a checkpoint's tensors into the model and the optimizer; their names must match."""
    try:
        model.load_state_dict(checkpoint.model, strict=True)
    except RuntimeError:
        raise ProsminError(
            f"The checkpoint of step {checkpoint.step} does not match the networks of this configuration: an earlier "
            "version of prosmin wrote it. Start a new run with another --out."
        ) from None
    is_fused = bool(optimizer.defaults.get("fused"))
    for parameter, name in _names(model, optimizer):
        prefix = f"{name}/"
        optimizer.state[parameter] = {
            key.removeprefix(prefix): _state_like(parameter, value, is_counter=key == f"{prefix}step", fused=is_fused)
            for key, value in checkpoint.optimizer.items()
            if key.startswith(prefix)
        }


def _state_like(parameter: nn.Parameter, value: Tensor, *, is_counter: bool, fused: bool) -> Tensor:
    """A copy of an optimizer's state as it expects it.

    Moments have the device, dtype and strides of their parameter: a fused optimizer refuses others. Step counters, (),
    stay on the CPU unless the optimizer is fused.
    """
    if not is_counter:
        return torch.empty_like(parameter).copy_(value)
    return value.to(parameter.device, copy=True) if fused else value.clone()


def _moments(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as flat tensors: {"online.backbone.stem.0.weight/exp_avg": ...}."""
    return {
        f"{name}/{key}": value
        for parameter, name in _names(model, optimizer)
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _names(model: nn.Module, optimizer: Optimizer) -> list[tuple[nn.Parameter, str]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [(p, names[id(p)]) for group in optimizer.param_groups for p in group["params"]]


class Saver:
    """Writes a checkpoint every few steps or minutes, and whenever kNN is the best so far.

    Only the first process writes, in a thread, while training continues. A write that fails ends the run some steps
    later.
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
        self.writes = fabric.is_global_zero
        self.config, self.folder, self.method, self.optimizer = config, run.checkpoints, method, optimizer
        self.pictures = pictures
        self.saved_at = time.monotonic()
        self.best = best(self.folder)[1] if self.writes else None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="prosmin-checkpoint")
        self._writing: Future[Path] | None = None

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._writer.shutdown()
        if error is not None and (text := self.error_text()):
            print(f"warning: {text}", file=sys.stderr)

    def is_due(self, done: int) -> bool:
        """Whether enough steps or, by the first process's clock, minutes have passed."""
        every, minutes = self.config.training.checkpoint_every, self.config.training.checkpoint_minutes
        is_late = minutes is not None and time.monotonic() - self.saved_at > 60 * minutes
        return done % every == 0 or (self.writes and is_late)

    def is_best(self, score: float | None) -> bool:
        """Whether every kept checkpoint has a lower kNN."""
        return score is not None and (self.best is None or score > self.best)

    def save(self, done: int, score: float | None) -> None:
        """Start to write the checkpoint after `done` steps, in the process that writes."""
        if self.is_best(score):
            self.best = score
        if self.writes:
            self.wait()
            mark = fingerprint(self.config)
            copy = snapshot(self.method, self.optimizer, step=done, pictures=self.pictures, fingerprint=mark, knn=score)
            self._writing = self._writer.submit(write, self.folder, copy, keep=self.config.training.keep)
        self.saved_at = time.monotonic()

    def check(self) -> None:
        """Raise the error of the last write, if it has ended with one by now."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk; raise the error if it cannot be written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def error_text(self) -> str:
        """Wait for the last write; its error as text, empty if there was none."""
        try:
            self.wait()
        except ProsminError as error:
            return str(error)
        return ""
