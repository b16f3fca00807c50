"""The processes of one command: those that torchrun or srun started, and those of `prosmin embed --processes N`.

The latter are started here and not by `torch.distributed.run --standalone`, which imports torch before it starts the
first of them: 2.2 s of CPU time on a two-core machine, against 0.05 s here, for a command that takes 5 s on a few
hundred images. It would also hide their errors behind its own report. Each process runs the same command with its
number in the environment; what it prints is shown only if it fails, and it ends when the first process does.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from prosmin.errors import ProsminError, UsageError
from prosmin.interrupts import PARENT, if_interrupted, leave


class Launch(NamedTuple):
    """The place of this process among those that a launcher started."""

    launcher: str  # torchrun or srun
    rank: int
    world: int
    local_rank: int
    nodes: int


def launch_of(environment: Mapping[str, str]) -> Launch | None:
    """This process as torchrun or srun started it; None without a launcher.

    SLURM_NTASKS is no sign of srun, since a batch script without srun has it, too; an interactive shell is no launcher.
    """

    def number(name: str, default: int = 0) -> int:
        return int(environment.get(name, default))

    if "TORCHELASTIC_RUN_ID" in environment:
        world = number("WORLD_SIZE", 1)
        nodes = world // number("LOCAL_WORLD_SIZE", world)
        return Launch("torchrun", number("RANK"), world, number("LOCAL_RANK"), nodes)
    tasks = number("SLURM_STEP_NUM_TASKS", 1)
    if tasks > 1 and environment.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        return Launch("srun", number("SLURM_PROCID"), tasks, number("SLURM_LOCALID"), number("SLURM_NNODES", 1))
    return None


START = f"""
import sys
sys.path.append({str(Path(__file__).parents[1])!r})
from prosmin.__main__ import program
program()
"""
"""Run with -P: the process imports the same prosmin as the first one, and nothing from the working directory."""

PLACE = "PROSMIN_PROCESS"
"""RANK/WORLD in the environment of every process but the first, which is the one of `interrupts.PARENT`."""

ENDING = 5.0
"""Seconds that a process has to end after SIGTERM: a fraction of one is enough to remove an unfinished file."""


@dataclass(frozen=True)
class Helper:
    """A further process and the file with its error messages."""

    process: subprocess.Popen[bytes]
    stderr: IO[bytes]


@dataclass(frozen=True)
class Helpers:
    """All processes of a command but the first."""

    started: tuple[Helper, ...] = ()

    def check(self) -> None:
        """An error if one of them has failed."""
        for helper in self.started:
            if status := helper.process.poll():
                helper.stderr.seek(0)
                message = helper.stderr.read().decode(errors="replace").strip().rpartition("prosmin: ")[2]
                raise ProsminError(
                    f"One of {1 + len(self.started)} processes {_ending(status)}: {message or 'no message.'}"
                )

    def end(self) -> None:
        """End those that still run, and wait for them.

        Without Popen.wait: an interrupt may come while the main thread is in it, and its lock is not free then.
        """
        running = [helper.process.pid for helper in self.started if helper.process.poll() is None]
        for number, seconds in ((signal.SIGTERM, ENDING), (signal.SIGKILL, ENDING)):
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
            until = time.monotonic() + seconds
            while running and time.monotonic() < until:
                running = [process for process in running if not _has_ended(process)]
                time.sleep(0.01)


def _has_ended(process: int) -> bool:
    """Whether a child has ended; its status remains for Popen."""
    try:
        return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # Popen has asked for it
        return True


def _ending(status: int) -> str:
    if status == -signal.SIGKILL:
        return (
            "was killed (SIGKILL), as a system without free memory does. The same command continues, and fewer "
            "--processes need less memory. Its error"
        )
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


@contextlib.contextmanager
def helpers(count: int, arguments: Sequence[str]) -> Iterator[Helpers]:
    """`count` - 1 further processes of the command `prosmin ARGUMENTS`; they end with this block.

    In one of these processes there are no further ones, and the block ends with the first process.
    """
    if count < 1:
        raise UsageError(f"--processes is {count}; allowed: 1 or more.")
    if PLACE in os.environ:
        with ending_without(int(os.environ[PARENT]), every=0.2):
            yield Helpers()
        return
    if count == 1:
        yield Helpers()
        return
    launch = launch_of(os.environ)
    if launch is not None and launch.world > 1:
        raise UsageError(
            f"--processes is {count}, but {launch.launcher} has already started {launch.world} processes. Use only one."
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if count > cores:
        raise UsageError(f"--processes is {count}; allowed: 1 to {cores}, the cores that this command may use.")
    shares = {"LOCAL_WORLD_SIZE": str(count)}
    if "OMP_NUM_THREADS" not in os.environ:
        shares["OMP_NUM_THREADS"] = str(max(1, cores // count))
    with contextlib.ExitStack() as stack:
        stack.enter_context(environment(shares))
        others = Helpers(tuple(stack.enter_context(_started(rank, count, arguments)) for rank in range(1, count)))
        stack.callback(others.end)
        stack.enter_context(if_interrupted(others.end))
        yield others


def place(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Rank and number of processes, in a process that `helpers` started; else None."""
    if PLACE not in environment:
        return None
    rank, world = environment[PLACE].split("/")
    return int(rank), int(world)


@contextlib.contextmanager
def _started(rank: int, count: int, arguments: Sequence[str]) -> Iterator[Helper]:
    with (
        tempfile.TemporaryFile() as stderr,
        subprocess.Popen(
            [sys.executable, "-P", "-c", START, *arguments],
            env={**os.environ, PLACE: f"{rank}/{count}", PARENT: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            process_group=0,  # Ctrl-C goes to the first process, which ends the others
        ) as process,
    ):
        yield Helper(process, stderr)


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Within the block, these variables are set."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def ending_without(parent: int, *, every: float = 1.0) -> Iterator[None]:
    """In this block the process ends, whatever it waits for, when the process `parent` that started it has ended."""
    left = threading.Event()

    def watch() -> None:
        while not left.wait(every):
            if os.getppid() != parent:
                leave(1)

    threading.Thread(target=watch, daemon=True, name="prosmin-parent").start()
    try:
        yield
    finally:
        left.set()
