"""The doctor's checks of cores, memory, disk, GPUs and processes."""

import os
from types import SimpleNamespace

import pytest
import torch

from prosmin import machine as limits
from prosmin.data import image_sets as streamed
from prosmin.data.image_sets import load_pictures
from prosmin.doctor import machine
from prosmin.doctor.finding import Finding
from prosmin.doctor.machine import examine_processes
from prosmin.errors import ProsminError

# Machine


def cgroups(tmp_path, membership, files):
    (tmp_path / "own").write_text(membership)
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text + "\n")
    return limits.cgroup_limits(root=tmp_path / "fs", membership=tmp_path / "own")


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/b/memory.max": "max"}, (None, None)),
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000", "a/b/memory.max": "1024"}, (1.5, 1024)),
        # the tightest limit of its parents counts, and a container sees its limits at the root
        ("0::/a/b\n", {"a/b/cpu.max": "800000 100000", "a/cpu.max": "400000 100000", "memory.max": "9"}, (4.0, 9)),
        ("0::/of/the/host\n", {"cpu.max": "200000 100000"}, (2.0, None)),
        (
            "5:memory:/x\n4:cpu,cpuacct:/x\n1:name=systemd:/\n",
            {
                "cpu,cpuacct/x/cpu.cfs_quota_us": "300000",
                "cpu,cpuacct/x/cpu.cfs_period_us": "100000",
                "memory/x/memory.limit_in_bytes": "2048",
            },
            (3.0, 2048),
        ),
        (
            "5:memory:/x\n4:cpu:/x\n",
            {
                "cpu/x/cpu.cfs_quota_us": "-1",
                "cpu/x/cpu.cfs_period_us": "100000",
                "memory/x/memory.limit_in_bytes": "9223372036854771712",
            },
            (None, None),
        ),
        ("", {}, (None, None)),
    ],
)
def test_limits_of_cgroups(tmp_path, membership, files, expected):
    assert cgroups(tmp_path, membership, files) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("max", None), ("3000000", 3_000_000), (str(2**59), None)],  # None: all that the machine has
)
def test_images_are_decoded_into_the_memory_that_the_cgroup_allows(tmp_path, monkeypatch, text, expected):
    """A container is killed at its limit, far below the memory of its host."""
    granted = cgroups(tmp_path, "0::/a\n", {"a/memory.max": text})
    monkeypatch.setattr(limits, "cgroup_limits", lambda: granted)
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert limits.main_memory() == (expected or there)
    assert streamed.memory_limit() == limits.main_memory() // 3
    if expected:  # the images take more than a third of it
        with pytest.raises(ProsminError, match="photos@test"):
            load_pictures("photos@test")


def test_a_share_of_the_cores_is_noted_with_the_threads_that_fit(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert machine.examine_cores(None) == Finding("ok", "CPU cores", "16 usable of 64")
    short = machine.examine_cores(3.6)
    assert short.status == "note"
    assert "3.6" in short.says
    assert "OMP_NUM_THREADS=4" in short.do
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert machine.examine_cores(3.6).status == "ok"


def test_little_memory_and_little_disk_are_reported(monkeypatch, tmp_path):
    assert machine.examine_memory(None).status in ("ok", "note")
    assert "1.0 GiB" in machine.examine_memory(machine.GIB).says
    assert machine.examine_memory(machine.GIB).status == "note"
    for free, status in ((50, "ok"), (2, "note"), (0.01, "problem")):
        usage = SimpleNamespace(free=int(free * machine.GIB))
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda _, usage=usage: usage)
        assert machine.examine_disk(tmp_path).status == status
    monkeypatch.setattr(machine.os, "access", lambda *_: False)
    assert "--out" in machine.examine_disk(tmp_path).do


# Devices


def test_the_driver_is_read_or_asked_for(tmp_path, monkeypatch):
    file = tmp_path / "version"
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n")
    assert machine.driver_version(file=file) == "550.54.15"
    file.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n")
    assert machine.driver_version(file=file) == "580.95.05"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.driver_version(file=tmp_path / "none") == ""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 535.1\necho 535.1\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert machine.driver_version(file=tmp_path / "none") == "535.1"


def test_a_gpu_is_reported_with_its_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: SimpleNamespace(name="H200"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda i: (130 * machine.GIB, 139 * machine.GIB))
    assert machine.examine_gpu(1) == Finding("ok", "cuda:1", "H200, 130.0 GiB free of 139.0 GiB")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda i: (9 * machine.GIB, 139 * machine.GIB))
    assert machine.examine_gpu(1).status == "note"

    def fail(i):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "mem_get_info", fail)
    assert machine.examine_gpu(1).status == "problem"


def test_an_unusable_gpu_is_a_problem_unless_it_was_switched_off(monkeypatch):
    def fail():
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040). Please update")

    monkeypatch.setattr(torch.cuda, "init", fail)
    monkeypatch.setattr(machine, "torch_build", lambda: "built for CUDA 13.2")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert machine.explain_no_gpu("").status == "ok"
    wrong = machine.explain_no_gpu("470.1")
    assert wrong.status == "problem"
    assert "too old (found version 11040)" in wrong.says
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine.explain_no_gpu("470.1").status == "note"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(machine, "torch_build", lambda: "built for the CPU only")
    assert "pip install" in machine.explain_no_gpu("470.1").do


def test_nvjpeg_is_tested_if_there_is_a_gpu(monkeypatch):
    tried = []
    monkeypatch.setattr(machine, "_decode_on_gpu", lambda data, device: tried.append(data))
    assert machine.examine_nvjpeg(0).status == "ok"
    assert not tried
    assert "--compute.nvjpeg" in machine.examine_nvjpeg(2).says
    assert tried[0][:2] == b"\xff\xd8"

    def fail(data, device):
        raise RuntimeError("not compiled with nvJPEG")

    monkeypatch.setattr(machine, "_decode_on_gpu", fail)
    assert machine.examine_nvjpeg(2).status == "note"


# Processes

TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "LOCAL_RANK": "0"}
SRUN = {"SLURM_STEP_NUM_TASKS": "4"}


@pytest.mark.parametrize(
    ("environment", "status", "begins", "does"),
    [
        ({}, "ok", "1;", ""),
        (TORCHRUN | {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, "ok", "4, started by torchrun", ""),
        (TORCHRUN | {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, "ok", "8 (4 on each of 2 nodes), started by", ""),
        ({"WORLD_SIZE": "4", "RANK": "0"}, "note", "1, but WORLD_SIZE", "torchrun"),
        ({"LOCAL_RANK": "0"}, "note", "1, but WORLD_SIZE", "torchrun"),
        (SRUN | {"SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "4"}, "ok", "4, started by SLURM", ""),
        ({"SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "4"}, "note", "1, ", "srun"),
        (
            {"SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4", "SLURM_NNODES": "2"},
            "ok",
            "8 (4 on each of 2 nodes)",
            "",
        ),
        (SRUN | {"SLURM_NTASKS": "4", "SLURM_NNODES": "1"}, "note", "4, ", "--ntasks-per-node=4"),
        ({"SLURM_NTASKS": "4", "SLURM_JOB_NAME": "bash"}, "ok", "1;", ""),
        ({"SLURM_JOB_ID": "77", "SLURM_NTASKS": "1"}, "ok", "1;", ""),
    ],
)
def test_the_number_of_processes(environment, status, begins, does):
    count, variables = examine_processes(environment)
    assert count.status == status
    assert count.says.startswith(begins)
    assert does in count.do
    for name, value in environment.items():
        assert name == "TORCHELASTIC_RUN_ID" or f"{name}={value}" in variables.says
