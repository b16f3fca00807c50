"""Checkpoints: when one is due, how it is written and read. Tensors beside JSON, renamed into place, hashed."""

import json
import re
import shutil
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
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
_DAMAGED = ".damaged"
_MODEL, _OPTIMIZER, _STATE = "model.safetensors", "optimizer.safetensors", "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint read from the disk."""

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    pictures: dict[str, Any]


@dataclass(frozen=True)
class Snapshot:
    """A run as it is after a step, in memory that no later step touches."""

    step: int
    fingerprint: str
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    pictures: dict[str, Any]  # that it learned from: how many, and what their files are known by
    knn: float | None = None


def snapshot(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    step: int,
    fingerprint: str,
    pictures: dict[str, Any],
    knn: float | None = None,
) -> Snapshot:
    """What is to be written; training may go on while it is."""
    return Snapshot(step, fingerprint, _plain(model.state_dict()), _plain(_moments(model, optimizer)), pictures, knn)


def write(folder: Path, taken: Snapshot, *, keep: int) -> Path:
    """Write the checkpoint of a step beside the others, then drop the oldest beyond `keep`, but never the best."""
    final = folder / f"step-{taken.step:08d}"
    part = folder / f".{final.name}.part"
    try:
        for left in folder.glob(".step-*.part"):  # by a process that was killed while it wrote
            shutil.rmtree(left, ignore_errors=True)
        part.mkdir(parents=True)
        save_file(taken.model, part / _MODEL)
        save_file(taken.optimizer, part / _OPTIMIZER)
        hashes = {name: file_hash(part / name) for name in (_MODEL, _OPTIMIZER)}
        state = {"step": taken.step, "fingerprint": taken.fingerprint, "files": hashes, "knn_top1": taken.knn}
        state |= {"pictures": taken.pictures}
        (part / _STATE).write_text(json.dumps(state, indent=1))
        granted = (part / _STATE).stat().st_mode  # by the umask; safetensors lets the owner alone read
        for name in (_MODEL, _OPTIMIZER, _STATE):
            (part / name).chmod(granted)
            flush(part / name)
        if final.exists():  # a damaged one that was skipped on resume
            shutil.rmtree(final)
        part.rename(final)
        flush(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(part, ignore_errors=True)
        older = newest_names(folder)
        kept = (
            f"{older[0]} is whole and the same command will continue from it"
            if older
            else "there is no earlier checkpoint"
        )
        raise ProsminError(
            f"The checkpoint of step {taken.step} cannot be written to {folder}: {error}; {kept}. "
            f"{advice(error, final)}"
        ) from error
    for name in newest_names(folder)[keep:]:
        if name not in (final.name, best(folder)[0]):
            shutil.rmtree(folder / name, ignore_errors=True)  # an old one that stays is no harm
    return final


def best(folder: Path) -> tuple[str | None, float | None]:
    """The checkpoint with the highest kNN and that kNN; of equal ones the oldest. None where none was measured."""
    found: tuple[str | None, float | None] = (None, None)
    for name in reversed(newest_names(folder)):
        try:
            score = json.loads((folder / name / _STATE).read_text()).get("knn_top1")
        except (OSError, ValueError):  # damaged; `load_newest` names it
            continue
        if score is not None and (found[1] is None or score > found[1]):
            found = name, score
    return found


def newest_names(folder: Path) -> list[str]:
    """The checkpoints of a run, newest first."""
    if not folder.is_dir():
        return []
    return sorted((p.name for p in folder.iterdir() if _NAME.fullmatch(p.name)), reverse=True)


def load_newest(folder: Path) -> tuple[Checkpoint | None, dict[str, str]]:
    """The newest whole checkpoint, and by name what is wrong with each damaged one that was passed over."""
    damaged: dict[str, str] = {}
    for name in newest_names(folder):
        try:
            return load(folder / name), damaged
        except (FileNotFoundError, ValueError, KeyError, SafetensorError) as error:
            damaged[name] = str(error)
        except OSError as error:  # it may be whole, and the steps since the one before it need not be lost
            raise ProsminError(
                f"The checkpoint {folder / name} cannot be read: {error.strerror}. Mend that and run again; or remove "
                "it, to continue from the one before."
            ) from None
    return None, damaged


def set_aside(folder: Path, name: str) -> str:
    """Give a damaged checkpoint a name that is none, so that it counts neither as the best nor among those kept."""
    aside = folder / f"{name}{_DAMAGED}"
    shutil.rmtree(aside, ignore_errors=True)
    (folder / name).rename(aside)
    return aside.name


def load(path: Path) -> Checkpoint:
    """One checkpoint; ValueError when a file is not the one that was written."""
    state = json.loads((path / _STATE).read_text())
    for name, expected in state["files"].items():
        if file_hash(path / name) != expected:
            raise ValueError(f"the hash of {name} does not fit")
    return Checkpoint(
        step=int(state["step"]),
        model=load_file(path / _MODEL),
        optimizer=load_file(path / _OPTIMIZER),
        pictures=state.get("pictures", {}),
    )


def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: Optimizer) -> None:
    """Put a checkpoint's tensors into the model and the optimizer, strictly."""
    try:
        model.load_state_dict(checkpoint.model, strict=True)
    except RuntimeError:
        raise ProsminError(
            f"The checkpoint of step {checkpoint.step} holds other tensors than the networks of this configuration: an "
            "earlier prosmin wrote it. Give another --out to begin anew."
        ) from None
    for parameter, name in _names(model, optimizer):
        prefix = f"{name}/"
        entries = {key[len(prefix) :]: value for key, value in checkpoint.optimizer.items() if key.startswith(prefix)}
        optimizer.state[parameter] = {
            key: _beside(parameter, value, is_counter=key == "step", fused=_fused(optimizer))
            for key, value in entries.items()
        }


def _beside(parameter: nn.Parameter, value: Tensor, *, is_counter: bool, fused: bool) -> Tensor:
    """A copy of what the optimizer keeps of a parameter, where it will look for it.

    Moments lie as their parameter lies and have its format: a fused optimizer refuses others. Step counters, (), stay
    on the CPU unless the optimizer is fused.
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


def _fused(optimizer: Optimizer) -> bool:
    return bool(optimizer.defaults.get("fused"))


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as safetensors takes them: on the CPU, contiguous, none sharing memory."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


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
        self.best = best(self.folder)[1] if self.writes else None
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
            taken = snapshot(
                self.method,
                self.optimizer,
                step=behind,
                fingerprint=fingerprint(self.config),
                pictures=self.pictures,
                knn=score,
            )
            self._writing = self._writer.submit(write, self.folder, taken, keep=self.config.training.keep)
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
    """What a run learns from: how many images and, looked up by one process for all, the mark of their files."""
    return {"count": len(feed), "mark": files_mark(config.data.spec) if fabric.is_global_zero else None}
