"""Two real processes train the model that one process trains: same pictures and draws, BatchNorm and centre shared."""

import os
import subprocess
import sys

import torch
from safetensors.torch import load_file

from conftest import TINY

FIELDS = TINY | {
    "training.max_steps": "4",
    "training.batch_size": "16",
    "compute.precision": "64-true",
    "compute.accelerator": "cpu",
}
LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def train(run, processes):
    fields = FIELDS | {"compute.devices": str(processes)}
    options = [word for name, value in fields.items() for word in (f"--{name}", value)]
    command = ["-m", "prosmin", "pretrain", "--recipe", "demo", "--out", str(run), *options]
    done = subprocess.run(
        [sys.executable, *(LAUNCHER if processes == 2 else []), *command],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return load_file(run / "encoder.safetensors")


def test_two_processes_agree_with_one(tmp_path):
    one, two = train(tmp_path / "one", 1), train(tmp_path / "two", 2)
    assert one.keys() == two.keys()
    for name in one:
        # float64 leaves rounding of 1e-16 a step; a wrong statistic or draw shows in the second digit.
        torch.testing.assert_close(two[name], one[name], rtol=1e-5, atol=1e-8, msg=lambda m, name=name: f"{name}: {m}")
