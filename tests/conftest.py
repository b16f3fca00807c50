"""Settings shared by all tests: two threads at most, and a run small enough for any machine."""

import os
import warnings

import pytest
import torch

from prosmin import config as configs
from tiny_run import TINY

torch.set_num_threads(min(2, int(os.environ.get("OMP_NUM_THREADS", "2"))))


@pytest.fixture
def tiny():
    """A function that resolves the tiny configuration with changes."""

    def resolve(**changes: str) -> configs.Config:
        fields = {name.replace("__", "."): value for name, value in changes.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return configs.resolve(recipe="demo", overrides=TINY | fields)

    return resolve
