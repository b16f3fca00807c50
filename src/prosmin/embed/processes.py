"""The processes that share a set: they meet in the folder of parts and need no other connection."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from prosmin.config import ComputeConfig
from prosmin.training.launch import layout


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
    """As torchrun or SLURM say; alone where neither does."""
    environment = dict(environment)
    local, nodes = layout(ComputeConfig(), environment)
    if local * nodes == 1:
        return Process(0, 1, 0)
    names = ("RANK", "LOCAL_RANK") if "TORCHELASTIC_RUN_ID" in environment else ("SLURM_PROCID", "SLURM_LOCALID")
    rank, place = (int(environment[name]) for name in names)
    return Process(rank, local * nodes, place)


def wait_until(condition: Callable[[], bool]) -> None:
    """Until the other processes have come so far. A launcher ends those that wait for one that failed."""
    pause = 0.01
    while not condition():
        time.sleep(pause)
        pause = min(2 * pause, 2.0)
