"""The processes that share a set: they meet in the folder of parts and need no other connection."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

PATIENCE = 60
"""Seconds after which a process that waits says for what."""


class Process(NamedTuple):
    """This one among all, and its number on its own machine."""

    rank: int
    world: int
    local: int

    @property
    def device(self) -> torch.device:
        """A GPU of its own, if there is one."""
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", self.local % torch.cuda.device_count())


def this_process(environment: Mapping[str, str]) -> Process:
    """As torchrun or SLURM's srun say; alone where neither does."""
    if "TORCHELASTIC_RUN_ID" in environment:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    elif "SLURM_STEP_NUM_TASKS" in environment:  # SLURM_NTASKS is there without srun too, in a lone batch script
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    else:
        return Process(0, 1, 0)
    return Process(*(int(environment[name]) for name in names))


def wait_until(condition: Callable[[], bool], *, what: str) -> None:
    """Until the other processes have come so far. A launcher ends those that wait for one that failed."""
    began, pause, told = time.monotonic(), 0.01, False
    while not condition():
        time.sleep(pause)
        pause = min(2 * pause, 2.0)
        if not told and time.monotonic() - began > PATIENCE:
            print(f"waiting for {what} by another process", file=sys.stderr, flush=True)
            told = True
