"""The folder FILE.parquet.parts: one file per 512 images, written completely or not at all, shared by processes."""

import fcntl
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from prosmin.data.sources import files_mark
from prosmin.data.sources.folder import FolderSource
from prosmin.data.unreadable import CheckedSource
from prosmin.errors import ProsminError
from prosmin.files import write_text
from prosmin.interrupts import if_interrupted
from prosmin.local_processes import Helpers, launch_of, place

PATIENCE = 60
"""Seconds after which a waiting process prints what it waits for."""
LOOK = 0.2
"""The longest pause, in seconds, of a waiting process."""
PART = 512
"""Images in a part: the most that a process loses when it is killed."""
SETTINGS = "settings.json"


@dataclass(frozen=True)
class Process:
    """One of several processes that share the images."""

    rank: int
    world: int
    local: int  # its number on this machine
    helpers: Helpers = field(default_factory=Helpers)  # those that it started itself
    launched: bool = False
    """By torchrun or srun, perhaps on several machines with copies of the files that have other times."""

    @property
    def is_all(self) -> bool:
        """Whether there are no processes but those that it started itself."""
        return self.world == 1 + len(self.helpers.started)

    @property
    def device(self) -> torch.device:
        """The GPU of this process if there is one, else the CPU."""
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", self.local % torch.cuda.device_count())

    def wait_until(self, condition: Callable[[], bool], *, what: str) -> None:
        """Wait for the other processes. If one of them fails, the launcher or `helpers.check` ends the wait."""
        began, pause, printed = time.monotonic(), 0.01, False
        while not condition():
            self.helpers.check()
            time.sleep(pause)
            pause = min(2 * pause, LOOK)
            if not printed and time.monotonic() - began > PATIENCE:
                print(f"waiting for another process: {what}", file=sys.stderr, flush=True)
                printed = True


def this_process(environment: Mapping[str, str], helpers: Helpers) -> Process:
    """This process: a helper, the first one with its helpers, one of a launcher, or the only one."""
    if found := place(environment):
        rank, world = found
        return Process(rank, world, rank)
    if helpers.started:
        return Process(0, 1 + len(helpers.started), 0, helpers)
    if launch := launch_of(environment):
        return Process(launch.rank, launch.world, launch.local_rank, launched=True)
    return Process(0, 1, 0)


class PartMarks:
    """A hash of the state of the files that some images are in; with `times`, it includes their times of modification.

    For a folder these are the images' own files, elsewhere all files of the source. It is empty for a published set.
    """

    def __init__(self, source: CheckedSource, *, times: bool) -> None:
        opened = source.source
        self._folder, self._times = opened if isinstance(opened, FolderSource) else None, times
        self._whole = "" if self._folder else files_mark(source.spec, times=times) or ""

    def __call__(self, numbers: Tensor) -> str:
        """The hash for the images with these numbers."""
        if self._folder is None:
            return self._whole
        states = " ".join(self._folder.state(i, times=self._times) for i in numbers.tolist())
        return hashlib.blake2b(states.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Parts:
    """The files for some images."""

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
        """The parts that this process writes."""
        return range(process.rank, len(self), process.world)

    def missing(self, process: Process) -> list[int]:
        """Those of them that are not written yet."""
        return [i for i in self.own(process) if not self.path(i).exists()]

    def are_whole(self) -> bool:
        """Whether every part is written."""
        return all(self.path(i).exists() for i in range(len(self)))


@contextmanager
def open_folder(
    folder: Path, settings: dict[str, Any], process: Process, *, finished: Callable[[], bool], output: str = "file"
) -> Iterator[None]:
    """Make the folder, or check that the existing one has the same settings; lock it for this process's rank.

    `output` is what --out names: a file or a folder.
    """
    new = [parent for parent in folder.parents if not parent.exists()]
    other = f"another {output} with --out"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock_file(folder, process.rank).open("w")
    except OSError as error:
        raise ProsminError(f"{folder} cannot be used: {error.strerror}. Give {other}.") from None
    with lock:
        if process.rank > 0:  # the first process has this lock while it joins the parts
            process.wait_until(lambda: take(lock) or finished(), what=f"lock of {folder}")
        elif not take(lock):
            raise ProsminError(f"Another process is writing to {folder}. Wait for it, or give {other}.")

        def abandon() -> None:
            if process.is_all:
                process.helpers.end()
                if not any(folder.glob("*-*")):
                    shutil.rmtree(folder)  # it failed before there was anything to keep
                    for parent in new:
                        with suppress(OSError):  # not empty
                            parent.rmdir()

        try:
            with if_interrupted(abandon):
                _use(folder, settings, process, finished=finished, output=output)
                yield
        except BaseException:
            abandon()
            raise


def _use(
    folder: Path, settings: dict[str, Any], process: Process, *, finished: Callable[[], bool], output: str
) -> None:
    """Write the settings, or check that the folder has the same."""
    file = folder / SETTINGS
    if process.rank == 0 and not file.exists():
        write_text(file, json.dumps(settings, indent=1))
    process.wait_until(lambda: file.exists() or finished(), what=str(file))
    if file.exists():
        refuse_other(_read(file), settings, what=str(folder), output=output)
    else:  # the first process has finished and removed the folder, which this one then made again
        shutil.rmtree(folder, ignore_errors=True)


def refuse_other(found: dict[str, Any], requested: dict[str, Any], *, what: str, output: str = "file") -> None:
    """An error that lists each setting that differs; `output` is what --out names: a file or a folder."""
    names = [name for name in dict.fromkeys([*found, *requested]) if found.get(name) != requested.get(name)]
    if names:
        changes = "\n  ".join(f"{name}: {found.get(name)} -> {requested.get(name)}" for name in names)
        raise ProsminError(
            f"{what} was written with other settings (in the {output} -> requested):\n  {changes}\n"
            f"Give another {output} with --out, or remove this one."
        )


@contextmanager
def others_out(folder: Path, process: Process) -> Iterator[None]:
    """Wait until every other process has left the folder; one that comes later waits until the file is finished."""
    with ExitStack() as locks:
        for rank in range(process.world):
            if rank != process.rank:
                lock = locks.enter_context(_lock_file(folder, rank).open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX)  # released by a process that has finished its parts
        yield


def _lock_file(folder: Path, rank: int) -> Path:
    return folder / f".lock.{rank}"


def take(lock: IO[str]) -> bool:
    """Lock the file if it is free."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ProsminError(f"{file} cannot be read: {error}. Remove {file.parent} to start again.") from None
