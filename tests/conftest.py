"""Settings shared by all tests: two threads at most, and a run small enough for any machine."""

import os
import signal
import warnings

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # compute.deterministic needs it before a GPU is first used

import pytest
import torch

from prosmin import config as configs
from tiny_run import TINY

# Convolutions in float32 on a GPU too: their tolerances are made for float32, and TF32 has ten bits.
torch.backends.cudnn.allow_tf32 = False
# A script's background ignores SIGINT. Runs respect that, and tests send the signal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(min(2, int(os.environ.get("OMP_NUM_THREADS", "2"))))


ON_THE_CPU = {"calibrate", "embed", "encoder", "export", "inspect"}
ON_THE_CPU |= {"test_files_of_earlier_versions", "test_search", "test_sklearn"}
"""Folders and files that compare encoders they load with numbers of a CPU; test_gpu.py runs the commands on a GPU."""


@pytest.fixture(scope="module", autouse=True)
def loaded_on_the_cpu(request):
    """There, encoders stay on the CPU also on a machine with a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        if ON_THE_CPU & {request.path.parent.name, request.path.stem}:
            patch.setattr(torch.cuda, "is_available", lambda: False)
        yield


@pytest.fixture(autouse=True)
def matmul_precision():
    """A test that prepares networks for a GPU, which turns TF32 on, does not round the products of the next one."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def tiny():
    """A function that resolves the tiny configuration with changes."""

    def resolve(**changes: str) -> configs.Config:
        fields = {name.replace("__", "."): value for name, value in changes.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return configs.resolve(recipe="demo", overrides=TINY | fields)

    return resolve
