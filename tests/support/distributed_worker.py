"""What torchrun starts in test_distributed.py: trains the runs named on the command line one after another."""

import atexit
import faulthandler
import json
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from prosmin import config as configs
from prosmin.errors import Stopped
from prosmin.training import checkpoint as checkpoints
from prosmin.training import pretrain as pretraining
from prosmin.training.launch import make_fabric
from prosmin.training.log import Logbook
from prosmin.training.pretrain import pretrain

STUCK = 150
"""A run takes ten seconds; after this many, a process prints where it is and ends."""


def main() -> None:
    """Each argument is JSON: a run folder, a recipe and its overrides."""
    atexit.register(lambda: print(f"connected at the end: {dist.is_initialized()}", flush=True))  # the last of all
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for argument in sys.argv[1:]:
        faulthandler.dump_traceback_later(STUCK, exit=True)
        folder, recipe, overrides = json.loads(argument)
        Logbook.at_once = Path(folder).name != "late lines"  # True on a CPU; on a GPU rows are written a step later
        pretraining.make_fabric = second_comes_late if Path(folder).name == "late process" else make_fabric
        if Path(folder).name == "slow disk" and not Path(folder).exists():  # when it goes on, the disk is quick again
            checkpoints.write = slowly(checkpoints.write)
        try:
            pretrain(configs.resolve(recipe=recipe, overrides=overrides), Path(folder))
        except Stopped as stopped:
            step = int(str(stopped).split()[3])  # Stopped at step N
            there = (Path(folder) / f"checkpoints/step-{step:08d}").is_dir()
            print(f"checkpoint there when left: {there}", flush=True)
            raise


def slowly(write):
    """A disk that takes two seconds more."""
    return lambda *arguments, **options: (time.sleep(2.0), write(*arguments, **options))[1]


def second_comes_late(config, out):
    """The fabric, three seconds later in the second process; the first would have made its folder by then."""
    fabric = make_fabric(config, out)
    time.sleep(3 * fabric.global_rank)
    return fabric


if __name__ == "__main__":
    main()
