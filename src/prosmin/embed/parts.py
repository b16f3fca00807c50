"""The folder FILE.parquet.parts: one file per 512 images, written whole or not at all, shared by processes."""

import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from prosmin.data.sources import file_state, files_mark
from prosmin.data.sources.folder import FolderSource
from prosmin.data.unreadable import CheckedSource
from prosmin.errors import ProsminError
from prosmin.files import write_text
from prosmin.local_processes import LAUNCHERS, Helpers, place

PATIENCE = 60
"""Seconds after which a process that waits says for what."""
LOOK = 0.2
"""The longest pause, in seconds, before a process that waits looks again."""


@dataclass(frozen=True)
class Process:
    """This one among all, its number on its own machine, and those that it started itself."""

    rank: int
    world: int
    local: int
    helpers: Helpers = field(default_factory=Helpers)
    launched: bool = False
    """By torchrun or SLURM, perhaps on machines with copies of the files that have other times."""

    @property
    def is_all(self) -> bool:
        """Whether there is no process but those that it started itself."""
        return self.world == 1 + len(self.helpers.started)

    @property
    def device(self) -> torch.device:
        """A GPU of its own, if there is one."""
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", self.local % torch.cuda.device_count())

    def wait_until(self, condition: Callable[[], bool], *, what: str) -> None:
        """Until the other processes have come so far. A launcher ends those that wait for one that failed."""
        began, pause, told = time.monotonic(), 0.01, False
        while not condition():
            self.helpers.check()
            time.sleep(pause)
            pause = min(2 * pause, LOOK)
            if not told and time.monotonic() - began > PATIENCE:
                print(f"waiting for another process: {what}", file=sys.stderr, flush=True)
                told = True


def this_process(environment: Mapping[str, str], helpers: Helpers) -> Process:
    """As the process that started it, torchrun or SLURM's srun say; the first of those it started itself."""
    if found := place(environment):
        rank, world = found
        return Process(rank, world, rank)
    if helpers.started:
        return Process(0, 1 + len(helpers.started), 0, helpers)
    launcher = next((each for each in LAUNCHERS.values() if each.sign in environment), None)
    if launcher is None:
        return Process(0, 1, 0)
    rank, world, local = (int(environment[name]) for name in launcher[1:])
    return Process(rank, world, local, launched=True)


class PartMarks:
    """By the files of a part's own images, whose names the settings hold; elsewhere by those of the whole source."""

    def __init__(self, source: CheckedSource, *, times: bool) -> None:
        opened = source.source
        self._folder, self._times = opened if isinstance(opened, FolderSource) else None, times
        self._whole = "" if self._folder else files_mark(source.spec, times=times) or ""

    def __call__(self, numbers: Tensor) -> str:
        """A few letters that are others when a file of these images is another; empty for a published set."""
        if self._folder is None:
            return self._whole
        paths = (os.path.join(self._folder.root, self._folder.names[i]) for i in numbers.tolist())
        states = " ".join(_state(path, times=self._times) for path in paths)
        return hashlib.blake2b(states.encode(), digest_size=8).hexdigest()


def _state(path: str, *, times: bool) -> str:
    try:
        return file_state(path, times=times)
    except OSError:
        return "none"


PART = 512
"""Images in a part: what a kill can cost a process."""

SETTINGS = "settings.json"


@dataclass(frozen=True)
class Parts:
    """The files of some images."""

    folder: Path
    name: str  # such as part-{:05d}.parquet
    numbers: Tensor  # (N,): the images' numbers in their source

    def __len__(self) -> int:
        return -(-len(self.numbers) // PART)

    def path(self, i: int) -> Path:
        """The file of part i."""
        return self.folder / self.name.format(i)

    def pictures(self, i: int) -> Tensor:
        """The numbers of the images of part i."""
        return self.numbers[i * PART : (i + 1) * PART]

    def own(self, process: Process) -> range:
        """The parts this process answers for."""
        return range(process.rank, len(self), process.world)

    def missing(self, process: Process) -> list[int]:
        """Those of its parts that are not there yet."""
        return [i for i in self.own(process) if not self.path(i).exists()]

    def are_whole(self) -> bool:
        """Whether every part is there."""
        return all(self.path(i).exists() for i in range(len(self)))


@contextmanager
def open_folder(
    folder: Path, settings: dict[str, Any], process: Process, *, finished: Callable[[], bool]
) -> Iterator[None]:
    """Make the folder, or check that the one there was begun with the same settings; hold this process's lock."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock_file(folder, process.rank).open("w")
    except OSError as error:
        raise ProsminError(f"{folder} cannot be used: {error.strerror}. Give another file with --out.") from None
    with lock:
        if process.rank == 0:
            _take(lock, folder)
        else:  # the first one has it while it joins what is there
            process.wait_until(lambda: _is_free(lock) or finished(), what=f"lock of {folder}")
        try:
            file = folder / SETTINGS
            if process.rank == 0 and not file.exists():
                write_text(file, json.dumps(settings, indent=1))
            process.wait_until(lambda: file.exists() or finished(), what=str(file))
            if file.exists():
                refuse_other(_read(file), settings, where=f"{folder} was begun")
            else:  # the first process has finished and removed the folder that this one then made again
                shutil.rmtree(folder, ignore_errors=True)
            yield
        except BaseException:
            if process.is_all:
                process.helpers.end()
                if not any(folder.glob("*-*")):
                    shutil.rmtree(folder)  # it failed before there was anything to keep
            raise


def refuse_other(found: dict[str, Any], asked: dict[str, Any], *, where: str) -> None:
    """An error that shows each setting that differs."""
    names = [name for name in dict.fromkeys([*found, *asked]) if found.get(name) != asked.get(name)]
    if names:
        shown = "\n  ".join(f"{name}: {found.get(name)} -> {asked.get(name)}" for name in names)
        raise ProsminError(
            f"{where} with other settings (there -> asked for):\n  {shown}\n"
            "Give another file with --out, or remove what is there."
        )


@contextmanager
def others_out(folder: Path, process: Process) -> Iterator[None]:
    """Once every other process has left the folder; one that comes later waits until the file is finished."""
    with ExitStack() as locks:
        for rank in range(process.world):
            if rank != process.rank:
                lock = locks.enter_context(_lock_file(folder, rank).open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX)  # given back by a process that has finished its parts
        yield


def _lock_file(folder: Path, rank: int) -> Path:
    return folder / f".lock.{rank}"


def _take(lock: IO[str], folder: Path) -> None:
    if not _is_free(lock):
        raise ProsminError(f"Another process is writing to {folder}. Wait for it, or give another file with --out.")


def _is_free(lock: IO[str]) -> bool:
    """Then it is taken."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ProsminError(f"{file} cannot be read: {error}. Remove {file.parent} to begin again.") from None
