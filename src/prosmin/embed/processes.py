"""The processes that share a set: they meet in the folder of parts and need no other connection."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from prosmin.own_processes import LAUNCHERS, Helpers, place

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
