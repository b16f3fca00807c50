"""What torchrun starts in test_distributed.py: trains the runs named on the command line one after another."""

import json
import sys
import warnings
from pathlib import Path

import torch

from prosmin import config as configs
from prosmin.training.logbook import Logbook
from prosmin.training.pretrain import pretrain


def main() -> None:
    """Each argument is JSON: a run folder, a recipe and its overrides."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for argument in sys.argv[1:]:
        folder, recipe, overrides = json.loads(argument)
        Logbook.at_once = Path(folder).name != "late lines"  # on a CPU True; a GPU writes its lines a step later
        pretrain(configs.resolve(recipe=recipe, overrides=overrides), Path(folder))


if __name__ == "__main__":
    main()
