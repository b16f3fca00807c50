"""Further processes of one command on this machine, without a launcher: `prosmin embed --processes N`.

Each is the same command again, told by its environment which of them it is. What it says is shown only if it fails; it
ends when the first process does, however that ends. Nothing heavy is imported here, so that all of them start at once.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from prosmin.errors import ProsminError, UsageError

START = f"""
import sys
sys.path.append({str(Path(__file__).parents[1])!r})
from prosmin.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""With -P: a helper finds what the first process found, and nothing that lies in the working folder."""

PLACE = "PROSMIN_PROCESS"
"""RANK/WORLD, in the environment of every process but the first."""


class Launcher(NamedTuple):
    """What a launcher writes into the environment: its sign, this process's number, how many, its number here."""

    sign: str
    rank: str
    world: str
    local: str


LAUNCHERS = {
    "torchrun": Launcher("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    # Not SLURM_NTASKS, which is there without srun too, in a lone batch script.
    "srun": Launcher("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
}


@dataclass(frozen=True)
class Helper:
    """A process and what it has said."""

    process: subprocess.Popen[bytes]
    said: IO[bytes]


@dataclass(frozen=True)
class Helpers:
    """The processes beside the first one."""

    started: tuple[Helper, ...] = ()

    def check(self) -> None:
        """An error where one of them has failed."""
        for helper in self.started:
            if status := helper.process.poll():
                helper.said.seek(0)
                words = helper.said.read().decode(errors="replace").strip()
                raise ProsminError(
                    f"One of {1 + len(self.started)} processes {_ending(status)}: "
                    f"{words.rpartition('prosmin: ')[2] or 'it said nothing.'}{_advice(status)}"
                )

    def end(self) -> None:
        """End those that have not ended yet, and wait for it."""
        for helper in self.started:
            helper.process.terminate()
        for helper in self.started:
            helper.process.wait()


def _ending(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _advice(status: int) -> str:
    """What to do about a process that had no chance to say why it ended."""
    if status != -signal.SIGKILL:
        return ""
    return (
        " A system without free memory ends processes this way. The same command continues what is there; "
        "fewer --processes need less memory."
    )


@contextlib.contextmanager
def helpers(count: int, arguments: Sequence[str]) -> Iterator[Helpers]:
    """`count` - 1 processes of the command `prosmin ARGUMENTS`; they end with this block."""
    if count < 1:
        raise UsageError(f"--processes is {count}; allowed: 1 or more.")
    if PLACE in os.environ:
        _end_with_parent()
        yield Helpers()
        return
    if count == 1:
        yield Helpers()
        return
    for name, launcher in LAUNCHERS.items():
        if launcher.sign in os.environ and os.environ[launcher.world] != "1":
            raise UsageError(
                f"--processes is {count}, and {name} has started {os.environ[launcher.world]} processes. "
                "Leave one of the two out."
            )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if count > cores:
        raise UsageError(f"--processes is {count}; allowed: 1 to {cores}, the cores that this command may use here.")
    shares = {"LOCAL_WORLD_SIZE": str(count)} | (
        {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(max(1, cores // count))}
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(_environment(shares))
        others = Helpers(tuple(stack.enter_context(_started(rank, count, arguments)) for rank in range(1, count)))
        try:
            yield others
        finally:
            others.end()


def place(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Number of this process and of all, where it is one that was started here."""
    if PLACE not in environment:
        return None
    rank, _, world = environment[PLACE].partition("/")
    return int(rank), int(world)


@contextlib.contextmanager
def _started(rank: int, count: int, arguments: Sequence[str]) -> Iterator[Helper]:
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            [sys.executable, "-P", "-c", START, *arguments],
            env={**os.environ, PLACE: f"{rank}/{count}"},
            stdin=subprocess.PIPE,  # at whose end it ends
            stdout=subprocess.DEVNULL,
            stderr=said,
            process_group=0,  # Ctrl-C is for the first process, which ends the others
        ) as process,
    ):
        yield Helper(process, said)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _end_with_parent() -> None:
    """The pipe from the first process ends when that does, killed or not."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1024):
                pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="prosmin-parent").start()


@contextlib.contextmanager
def ending_without(parent: int, *, every: float = 1.0) -> Iterator[None]:
    """In this block the process ends when `parent`, that started it, is no longer there, whatever it waits for then."""
    left = threading.Event()

    def watch() -> None:
        while not left.wait(every):
            if os.getppid() != parent:
                os._exit(1)

    threading.Thread(target=watch, daemon=True, name="prosmin-parent").start()
    try:
        yield
    finally:
        left.set()
