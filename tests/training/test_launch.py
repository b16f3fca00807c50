"""Devices and launchers: how many processes there are, and errors before any is started."""

import os

import pytest
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException

from prosmin.config import ComputeConfig
from prosmin.errors import ProsminError, UsageError
from prosmin.training import launch
from prosmin.training import pretrain as pretraining
from prosmin.training.launch import layout
from prosmin.training.pretrain import pretrain


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (3, 1)),
        ({"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}, (4, 2)),
        ({"SLURM_STEP_NUM_TASKS": "16", "SLURM_NTASKS": "16", "SLURM_NNODES": "2", "SLURM_JOB_NAME": "train"}, (8, 2)),
        ({"SLURM_STEP_NUM_TASKS": "16", "SLURM_NTASKS": "16", "SLURM_JOB_NAME": "interactive"}, (3, 1)),
        ({"SLURM_NTASKS": "16", "SLURM_NNODES": "2", "SLURM_JOB_NAME": "train"}, (3, 1)),  # a batch script without srun
        ({"SLURM_NTASKS": "1"}, (3, 1)),
    ],
)
def test_processes_and_nodes_of_a_launcher(environment, expected):
    assert layout(ComputeConfig(devices=3), environment) == expected


def test_an_uneven_batch_is_refused_before_a_process_is_started(train, monkeypatch):
    monkeypatch.setattr(pretraining, "make_fabric", lambda *_: pytest.fail("processes were started"))
    with pytest.raises(UsageError, match=r"training\.batch_size is 32, which 9 processes"):
        train(compute__devices="9")
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "3", "WORLD_SIZE": "6"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"training\.batch_size is 32, which 6 processes"):
        train()


def test_missing_devices_are_reported(train, tmp_path, monkeypatch):
    def refuse(**_):
        raise MisconfigurationException("You requested gpu: [0, 1]\n But your machine only has: [0]")

    monkeypatch.setattr(launch, "Fabric", refuse)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    with pytest.raises(UsageError, match=r"2 devices .*only has: \[0\] `prosmin doctor`"):
        train(compute__devices="2")
    assert "LOCAL_WORLD_SIZE" not in os.environ  # set only while the processes run
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"^compute\.accelerator is cuda, .*`prosmin doctor`"):
        train(compute__accelerator="cuda")
    assert not (tmp_path / "run").exists()


def test_a_run_closes_its_connections_at_exit_even_if_refused(finished, train, tiny, monkeypatch):
    """Otherwise gloo's threads may abort a process while Python exits, and its status would not be 1."""
    at_exit = []
    monkeypatch.setattr(launch.atexit, "register", at_exit.append)
    monkeypatch.setattr(launch.atexit, "unregister", lambda function: at_exit.clear())
    with pytest.raises(ProsminError, match=r"optimizer\.lr"):
        pretrain(tiny(optimizer__lr="0.5"), finished)
    assert at_exit == [launch._disconnect]
    train(training__max_steps="1")
    assert at_exit == [launch._disconnect]
