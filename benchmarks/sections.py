"""Long measurements that keep what they have: sections with time limits, and lines of a .jsonl file."""

import json
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from prosmin.files import write_text


class OutOfTimeError(BaseException):
    """A section's time bound is over. No Exception: a compiler at work would make a failure of its own of it."""


class Sections:
    """A JSON document that grows by a section at a time; a run that is killed keeps what it had."""

    def __init__(self, out: Path, document: dict[str, Any], *, chosen: list[str] | None = None) -> None:
        self.out, self.document, self.chosen = out, document, chosen
        self.document["sections"] = {}
        self.save()

    def run(self, name: str, measure: Callable[[dict[str, Any]], None], *, seconds: float) -> None:
        """Let `measure` fill the section's dictionary; what it filled before its time was over stays."""
        if self.chosen is not None and name not in self.chosen:
            return
        found: dict[str, Any] = {}
        self.document["sections"][name] = found
        began = time.monotonic()
        print(f"-- {name}", flush=True)
        try:
            with bounded(seconds):
                measure(found)
        except OutOfTimeError:
            found["failed"] = f"its {seconds:g} seconds were over"
        except Exception as error:  # the sections after it are still wanted
            traceback.print_exc()
            found["failed"] = f"{type(error).__name__}: {error}"
        found["seconds"] = round(time.monotonic() - began, 1)
        self.save()
        print(json.dumps(found), flush=True)

    def save(self) -> None:
        """The document as it stands."""
        write_text(self.out, json.dumps(self.document, indent=2) + "\n")


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raise OutOfTimeError in the block when it takes longer. For the main thread."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a .jsonl file; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append_missing(out: Path, jobs: Iterable[dict[str, Any]], judge: Callable[..., dict[str, Any]]) -> None:
    """Add the line of every job that the .jsonl file does not have yet; a job is the arguments of `judge`."""
    known = read_lines(out)
    for job in jobs:
        if not any(job.items() <= line.items() for line in known):
            line = json.dumps(job | judge(**job))
            print(line, flush=True)
            with out.open("a") as file:
                file.write(line + "\n")
