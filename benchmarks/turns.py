"""Time several things in alternation on a machine that other processes use too."""

import os
import time
from collections.abc import Callable
from pathlib import Path

QUIET = 0.05
"""Cores that other processes may take of a turn."""


def busy_seconds() -> float:
    """Seconds that the cores have worked for anybody, where the system tells."""
    file = Path("/proc/stat")
    if not file.exists():
        return 0.0
    ticks = [int(word) for word in file.read_text().split("\n")[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # less idle, and idle for a disk


class Others:
    """What other processes take of the machine, in cores, from one look to the next."""

    def __init__(self, patience: float) -> None:
        self.until = time.monotonic() + patience
        self.disturbed = 0
        self._mark()

    def _mark(self) -> None:
        self.then = (time.monotonic(), busy_seconds(), time.process_time())

    def share(self) -> float:
        """Since the last look."""
        began, busy, own = self.then
        self._mark()
        now, busy_now, own_now = self.then
        return (busy_now - busy - (own_now - own)) / max(now - began, 1e-9)

    def wait(self) -> None:
        """Until they are quiet for a second, or patience is over."""
        self._mark()
        while time.monotonic() < self.until:
            time.sleep(1)
            if self.share() < QUIET:
                return

    def interfered(self) -> bool:
        """Whether they did since `wait`, and there is time to do it again."""
        again = self.share() > QUIET and time.monotonic() < self.until
        self.disturbed += again
        return again


def in_turns(
    runs: dict[str, Callable[[], float]], *, repeats: int, patience: float
) -> tuple[dict[str, list[float]], int]:
    """Seconds of each, one after another and again; and how many were made again."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    others = Others(patience)
    for _ in range(repeats):
        for name, run in runs.items():
            others.wait()
            seconds = run()
            while others.interfered():
                others.wait()
                seconds = run()
            found[name].append(seconds)
    return found, others.disturbed
