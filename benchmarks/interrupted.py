"""A command that is interrupted by Ctrl-C, and what must be so afterwards; benchmarks/interrupts.py says when."""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import pyarrow.parquet as pq
from PIL import Image
from safetensors.torch import load_file

from prosmin.__main__ import program
from prosmin.interrupts import MESSAGE

STOPPED = "Stopped at step "
WRONG = ("Traceback", "Error", "Exception", "terminate called", "Fatal", "leaked", "warning:", "unexpected")
AT_THE_END = 2.0
"""Seconds that a command which has done its work may take to end: its processes disconnect from each other."""

PATIENCE = 60.0
"""Seconds after which a process counts as one that does not end."""


@dataclass(frozen=True)
class Case:
    """A command, run in an empty folder beside which are the folders `run` and `images`."""

    name: str
    words: tuple[str, ...]
    kept: str = ""  # a pattern of files that are finished parts of the work
    same: tuple[str, ...] = ()  # files that have the same bytes as those of an undisturbed command
    several: bool = False  # it starts processes
    uses: tuple[str, ...] = ()  # what is copied into the folder first, since the command writes into it


@dataclass
class Seen:
    """What was counted and measured of one command."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)  # from the signal to the end of the process
    failures: list[str] = field(default_factory=list)


def start(words: Sequence[str], folder: Path, *, shell: bool) -> int:
    """The command in a session of its own, as in a terminal; its number comes back. It writes to folder.log."""
    process = os.fork()
    if process:
        return process
    os.setsid()
    log = os.open(f"{folder}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(folder)
    os.environ["TMPDIR"] = f"{folder}.tmp"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    if shell:
        os.execv(sys.executable, [sys.executable, "-P", "-m", "prosmin", *words])
    tempfile.tempdir = None
    sys.argv = ["prosmin", *words]
    status: object = 1
    try:
        program()
    except SystemExit as end:
        status = end.code
    finally:
        sys.stdout.flush()
        os._exit(status if isinstance(status, int) else 1)


def handles_signals(process: int) -> bool:
    """Whether the program has begun: Python alone does not catch SIGTERM."""
    caught = next(line for line in Path(f"/proc/{process}/status").read_text().splitlines() if "SigCgt" in line)
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def has_ended(process: int) -> int | None:
    """The status of a process that has ended."""
    done, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def ended(process: int, seconds: float) -> int | None:
    """The status of a process that ends within this time; None if it does not."""
    until = time.monotonic() + seconds
    while (status := has_ended(process)) is None and time.monotonic() < until:
        time.sleep(0.001)
    return status


def session(process: int) -> list[int]:
    """The processes of the command; a terminal's session has all of them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[3]) == process and words[0] != "Z":
            found.append(int(path.parent.name))
    return found


def survivors(process: int) -> list[int]:
    """Processes of an ended command that do not end soon after it."""
    until = time.monotonic() + 10
    while (left := session(process)) and time.monotonic() < until:
        time.sleep(0.02)
    for each in left:
        os.kill(each, signal.SIGKILL)
    return left


def files_of(folder: Path) -> set[str]:
    """The names of all files, but for checkpoints: which of them remain depends on where a run was stopped."""
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in names if "/checkpoints/step-" not in name}


def broken(path: Path) -> bool:
    """Whether a file is not whole."""
    try:
        if path.suffix == ".parquet":
            pq.read_table(path)
        elif path.suffix == ".safetensors":
            load_file(path)
        elif path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".png":
            Image.open(path).load()
        elif path.suffix == ".html":
            return not path.read_text().rstrip().endswith("</html>")
        elif path.suffix == ".onnx":
            onnx.load(path)
    except Exception:  # every library has its own
        return True
    return False


class Trial:
    """One command in its folder, interrupted again and again until it may finish."""

    def __init__(self, case: Case, root: Path, seen: Seen) -> None:
        self.case, self.seen, self.root, self.folder = case, seen, root, root / "work"
        self.foreign: set[str] = set()  # what libraries leave in the temporary folder without an interrupt, too
        self.renew()

    def renew(self) -> None:
        """Begin again with an empty folder."""
        for path in (self.folder, Path(f"{self.folder}.tmp")):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
        for name in self.case.uses:
            shutil.copytree(self.root / name, self.folder / name)

    def finish(self, *, shell: bool) -> float:
        """Let the command finish and compare its files with the undisturbed ones; returns the seconds it took."""
        process = start(self.case.words, self.folder, shell=shell)
        while not handles_signals(process):
            time.sleep(0.001)
        began = time.monotonic()
        if (status := ended(process, 4 * PATIENCE)) != 0:
            self.fail(f"the same command again ended with {status}")
        seconds = time.monotonic() - began
        self.foreign |= set(os.listdir(f"{self.folder}.tmp"))
        self.compare()
        return seconds

    def compare(self) -> None:
        """The files of the finished command are those of the undisturbed one; then the next begins."""
        self.seen.counts["finished"] += 1
        expected = self.root / "undisturbed"
        if not expected.exists():
            shutil.copytree(self.folder, expected)
        elif different := files_of(self.folder) ^ files_of(expected):
            self.fail(f"after the end other files than without interrupts: {sorted(different)}")
        for name in self.case.same:
            path = self.folder / name
            if not path.exists() or path.read_bytes() != (expected / name).read_bytes():
                self.fail(f"after the end {name} is not that without interrupts")
        self.renew()

    def interrupt(self, moment: float, again: float | None, *, shell: bool) -> bool:
        """Press Ctrl-C after this many seconds, and once more `again` seconds later; False if it had finished."""
        kept = self.kept()
        process = start(self.case.words, self.folder, shell=shell)
        status = None
        while status is None and not handles_signals(process):
            status = has_ended(process)
            time.sleep(0.0005)
        if status is None and (status := ended(process, moment)) is None:
            sent = time.monotonic()
            os.killpg(process, signal.SIGINT)
            if again is not None and (status := ended(process, again)) is None:
                os.killpg(process, signal.SIGINT)
            status = ended(process, PATIENCE) if status is None else status
            self.seen.seconds.append(time.monotonic() - sent)
            self.seen.counts["interrupted"] += 1
            self.seen.counts[f"status {status}"] += 1
            self.check(status, kept, moment=moment, twice=again is not None)
            struck = True
        else:
            struck = False
        if left := survivors(process):
            self.fail(f"{len(left)} processes did not end")
            ended(process, 1)
        if status == 0:
            self.compare()
        elif status != 130:
            self.renew()
        return struck

    def check(self, status: int | None, kept: set[str], *, moment: float, twice: bool) -> None:
        """All that must be so after an interrupt."""
        output, when = Path(f"{self.folder}.log").read_text(), f"at {moment:.2f} s{', twice' if twice else ''}"
        messages = [line for line in output.splitlines() if "prosmin: " in line]
        if status == 0 and self.seen.seconds[-1] > AT_THE_END:
            self.fail(f"{when}: it went on for {self.seen.seconds[-1]:.1f} s")
        if status not in (0, 130):
            self.fail(f"{when}: status {status}")
        elif status == 130 and not (len(messages) == 1 and (MESSAGE in messages[0] or STOPPED in messages[0])):
            self.fail(f"{when}: messages {messages}")
        if found := [word for word in WRONG if word in output]:
            self.fail(f"{when}: the output contains {found}")
        names = files_of(self.folder)
        if not twice and (left := [name for name in names if ".part/" in f"{name}/"]):
            self.fail(f"{when}: temporary files {sorted(left)}")
        if not twice and (strange := set(os.listdir(f"{self.folder}.tmp")) - self.foreign):
            self.fail(f"{when}: files in the temporary folder {sorted(strange)}")
        if wrong := [name for name in names if broken(self.folder / name) and ".part/" not in f"{name}/"]:
            self.fail(f"{when}: half-written {wrong}")
        expected = files_of(self.root / "undisturbed")
        lost = kept - self.kept()
        if "step-" in self.case.kept:  # older checkpoints are removed
            lost = {max(lost)} if lost and max(lost) > max(self.kept(), default="") else set()
        if lost and not expected <= names:
            self.fail(f"{when}: lost {sorted(lost)}")

    def kept(self) -> set[str]:
        """The finished parts that are there."""
        return {str(path) for path in self.folder.glob(self.case.kept)} if self.case.kept else set()

    def fail(self, text: str) -> None:
        """Record a failure, with the output of the command."""
        self.seen.failures.append(text)
        print(f"{self.case.name}: {text}\n{Path(f'{self.folder}.log').read_text()[-3000:]}", flush=True)
