"""The doctor: what is well, what is not, and that it still speaks when imports are broken."""

import importlib.metadata
import math
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from prosmin import doctor as doctor_module
from prosmin import machine as limits
from prosmin.cli import main
from prosmin.data import image_sets as streamed
from prosmin.data.image_sets import load_pictures
from prosmin.doctor import machine, packages, selftest
from prosmin.doctor import machine as devices
from prosmin.doctor.finding import Finding, reason
from prosmin.doctor.machine import examine_processes, is_first
from prosmin.doctor.packages import Requirement, examine_package, parse_requirement, release
from prosmin.errors import ProsminError

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"  (ok|note|problem) +\S")
TITLES = ["Packages", "Machine", "Processes", "Extras", "Self-test"]


def subjects(output, status):
    """The subjects of all lines of one status."""
    return re.findall(rf"^  {status} +(\S+(?: \S+)?) {{2,}}", output, re.MULTILINE)


def run_with(tmp_path, broken, message):
    """`prosmin doctor` in a process where importing `broken` fails."""
    (tmp_path / broken).mkdir()
    (tmp_path / broken / "__init__.py").write_text(f"raise RuntimeError({message!r})\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "prosmin", "doctor"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        check=False,
    )


# The whole


def test_here_everything_needed_works(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert [line for line in lines[:-1] if not LINE.match(line)] == TITLES
    assert lines[-1].startswith("Everything needed works.")
    assert len(lines) <= 45
    assert subjects(out, "problem") == []
    for subject in ("prosmin", "Python", "torch", "torchvision", "timm", "lightning-fabric", "also needed"):
        assert subject in subjects(out, "ok")
    for test in selftest.TESTS:
        assert test in subjects(out, "ok")
    assert f"built for CUDA {torch.version.cuda}" in out or "CPU only" in out


def test_a_broken_torchvision_is_named_and_the_rest_is_told(tmp_path):
    done = run_with(tmp_path, "torchvision", "operator torchvision::nms does not exist")
    assert done.returncode == 1
    problem = next(line for line in done.stdout.splitlines() if line.startswith("  problem"))
    assert subjects(done.stdout, "problem") == ["torchvision"]
    assert "operator torchvision::nms does not exist" in problem
    assert "pip install --force-reinstall torch torchvision" in problem
    assert {"timm", "training", "decoding"} <= set(subjects(done.stdout, "note"))
    assert {"torch", "scoring rule", "writing"} <= set(subjects(done.stdout, "ok"))
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("prosmin: Not everything that is needed works: torchvision.")


def test_a_broken_torch_is_named_and_the_rest_is_told(tmp_path):
    done = run_with(tmp_path, "torch", "libcudart.so.13: cannot open shared object file")
    assert done.returncode == 1
    assert "torch" in subjects(done.stdout, "problem")
    assert "libcudart.so.13" in done.stdout
    assert {"GPU", "processes", "scoring rule"} <= set(subjects(done.stdout, "note"))
    assert {"CPU cores", "writing"} <= set(subjects(done.stdout, "ok"))
    assert "Traceback" not in done.stdout + done.stderr


def test_a_section_that_fails_does_not_silence_the_others(monkeypatch, capsys):
    def fail(found):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(
        doctor_module, "SECTIONS", {"First": fail, "Second": lambda found: [Finding("ok", "b", "well")]}
    )
    with pytest.raises(ProsminError, match=r"works: first\."):
        doctor_module.doctor()
    out = capsys.readouterr().out
    assert f"{'first':<22} could not be examined: ZeroDivisionError: oh" in out
    assert f"  ok       {'b':<22} well" in out


def test_of_several_processes_one_speaks(monkeypatch, capsys):
    found = [Finding("ok", "a", "well")]
    monkeypatch.setattr(doctor_module, "SECTIONS", {"Only": lambda _: found})
    monkeypatch.setenv("RANK", "1")
    doctor_module.doctor()
    assert capsys.readouterr().out == ""
    found.append(Finding("problem", "b", "ill", "Mend it"))
    with pytest.raises(ProsminError):
        doctor_module.doctor()
    assert capsys.readouterr().out == f"  problem  {'b':<22} ill. Mend it\n"
    assert is_first({"SLURM_PROCID": "0"})
    assert not is_first({"SLURM_PROCID": "2"})


def test_a_reason_is_one_short_line():
    assert reason(ImportError("one. two\nthree")) == "ImportError: one"
    assert reason(KeyError()) == "KeyError"
    assert len(reason(OSError("x" * 500))) == 160


# Packages


def test_requirements_are_read_as_both_places_write_them():
    assert parse_requirement("torch>=2.11") == Requirement("torch", "2.11")
    assert parse_requirement("types-PyYAML", extra="dev") == Requirement("types-PyYAML", "", "dev")
    assert parse_requirement('datasets>=3; extra == "datasets"') == Requirement("datasets", "3", "datasets")
    assert parse_requirement("imageio[ffmpeg] >= 2.3 ; extra == 'x'") == Requirement("imageio", "2.3", "x")
    assert parse_requirement("numpy<3,>=1.26") == Requirement("numpy", "1.26")


def test_installed_metadata_serve_where_there_is_no_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(packages.prosmin, "__file__", str(tmp_path / "a/b/prosmin/__init__.py"))
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["torch>=2.11", 'wandb>=1; extra == "wandb"'])
    assert packages.requirements() == [Requirement("torch", "2.11"), Requirement("wandb", "1", "wandb")]


def test_every_extra_of_the_project_has_its_purpose():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, texts in extras.items():
        for text in texts:
            name = parse_requirement(text).name
            assert extra in packages.FOR_DEVELOPERS or name in packages.PURPOSES, (
                f"prosmin.doctor.packages.PURPOSES should say what {name} is for"
            )


def test_extras_are_there_or_come_with_their_command(monkeypatch):
    found = [
        Requirement("pytest", "8", "here"),
        Requirement("nowhere-to-be", "", "away"),
        Requirement("ruff", "", "dev"),
    ]
    monkeypatch.setattr(packages, "requirements", lambda: found)
    monkeypatch.setitem(packages.PURPOSES, "nowhere-to-be", "nothing")
    there, missing = packages.examine_extras()
    assert (there.status, there.subject) == ("ok", "pytest")
    assert str(missing).startswith(
        f"  note     {'nowhere-to-be':<22} not installed; for nothing. pip install 'prosmin[away]'"
    )


def test_missing_and_old_packages_are_problems_with_a_command():
    missing = examine_package(Requirement("nowhere-to-be", "1.2"), ())
    assert (missing.status, missing.do) == ("problem", "pip install 'nowhere-to-be>=1.2'")
    old = examine_package(Requirement("timm", "999.1"), ())
    assert old.status == "problem"
    assert "too old; needed: 999.1 or later" in old.says
    assert old.do == "pip install --upgrade 'timm>=999.1'"


def test_versions_compare_by_their_numbers():
    assert release("2.11.0rc1+cu130") == (2, 11, 0)
    assert release("10.2") > release("9.9.9")
    assert release("1.0.30") >= release("1.0.20")
    assert release("3.1") >= release("")


# Machine


def cgroups(tmp_path, membership, files):
    (tmp_path / "own").write_text(membership)
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text + "\n")
    return limits.cgroup_limits(root=tmp_path / "fs", own=tmp_path / "own")


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/b/memory.max": "max"}, (None, None)),
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000", "a/b/memory.max": "1024"}, (1.5, 1024)),
        # the tightest of those above it counts, and a container sees its own limits at the root
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
def test_pictures_are_decoded_into_what_the_cgroup_grants(tmp_path, monkeypatch, text, expected):
    """A container is killed at its limit, far below the memory of its host."""
    granted = cgroups(tmp_path, "0::/a\n", {"a/memory.max": text})
    monkeypatch.setattr(limits, "cgroup_limits", lambda: granted)
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert limits.main_memory() == (expected or there)
    assert streamed.memory_limit() == limits.main_memory() // 3
    if expected:  # the images take more than a third of it
        with pytest.raises(ProsminError, match="more than a third of the memory"):
            load_pictures("photos@test")


def test_a_share_of_the_cores_is_noted_with_the_threads_that_fit(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert machine.examine_cores(None) == Finding("ok", "CPU cores", "16 usable of 64")
    short = machine.examine_cores(3.6)
    assert short.status == "note"
    assert "grants the time of 3.6" in short.says
    assert "OMP_NUM_THREADS=4" in short.do
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert machine.examine_cores(3.6).status == "ok"


def test_little_memory_and_little_disk_are_told(monkeypatch, tmp_path):
    assert machine.examine_memory(None).status in ("ok", "note")
    assert "a cgroup allows 1.0 GiB" in machine.examine_memory(machine.GIB).says
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
    assert devices.driver_version(file=file) == "550.54.15"
    file.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n")
    assert devices.driver_version(file=file) == "580.95.05"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert devices.driver_version(file=tmp_path / "none") == ""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 535.1\necho 535.1\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert devices.driver_version(file=tmp_path / "none") == "535.1"


def test_a_gpu_is_told_with_its_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: SimpleNamespace(name="H200"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda i: (130 * machine.GIB, 139 * machine.GIB))
    assert devices.examine_gpu(1) == Finding("ok", "cuda:1", "H200, 130.0 GiB free of 139.0 GiB")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda i: (9 * machine.GIB, 139 * machine.GIB))
    assert devices.examine_gpu(1).status == "note"

    def fail(i):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "mem_get_info", fail)
    assert devices.examine_gpu(1).status == "problem"


def test_a_gpu_that_is_there_and_not_used_is_a_problem_unless_somebody_chose_so(monkeypatch):
    def fail():
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040). Please update")

    monkeypatch.setattr(torch.cuda, "init", fail)
    monkeypatch.setattr(devices, "torch_build", lambda: "built for CUDA 13.2")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices.explain_no_gpu("").status == "ok"
    wrong = devices.explain_no_gpu("470.1")
    assert wrong.status == "problem"
    assert "too old (found version 11040)" in wrong.says
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices.explain_no_gpu("470.1").status == "note"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(devices, "torch_build", lambda: "built for the CPU only")
    assert "pip install" in devices.explain_no_gpu("470.1").do


def test_nvjpeg_is_tried_where_there_is_a_gpu(monkeypatch):
    tried = []
    monkeypatch.setattr(devices, "_decode_on_gpu", lambda data, device: tried.append(data))
    assert devices.examine_nvjpeg(0).status == "ok"
    assert not tried
    assert devices.examine_nvjpeg(2).says.startswith("the GPU can decode")
    assert tried[0][:2] == b"\xff\xd8"

    def fail(data, device):
        raise RuntimeError("not compiled with nvJPEG")

    monkeypatch.setattr(devices, "_decode_on_gpu", fail)
    assert devices.examine_nvjpeg(2).status == "note"


# Processes

TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "LOCAL_RANK": "0"}
SRUN = {"SLURM_STEP_NUM_TASKS": "4"}


@pytest.mark.parametrize(
    ("environment", "status", "begins", "does"),
    [
        ({}, "ok", "1;", ""),
        (TORCHRUN | {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, "ok", "4, started by torchrun", ""),
        (TORCHRUN | {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, "ok", "8 (4 on each of 2 nodes), started by", ""),
        ({"WORLD_SIZE": "4", "RANK": "0"}, "note", "1, but WORLD_SIZE", "Unset them"),
        ({"LOCAL_RANK": "0"}, "note", "1, but WORLD_SIZE", "Unset them"),
        (SRUN | {"SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "4"}, "ok", "4, started by SLURM", ""),
        ({"SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "4"}, "note", "1, though SLURM has 4 tasks", "srun"),
        (
            SRUN | {"SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4", "SLURM_NNODES": "2"},
            "ok",
            "8 (4 on each of 2 nodes)",
            "",
        ),
        (SRUN | {"SLURM_NTASKS": "4", "SLURM_NNODES": "1"}, "note", "4, by SLURM's --ntasks", "--ntasks-per-node=4"),
        ({"SLURM_NTASKS": "4", "SLURM_JOB_NAME": "bash"}, "ok", "1;", ""),
        ({"SLURM_JOB_ID": "77", "SLURM_NTASKS": "1"}, "ok", "1;", ""),
    ],
)
def test_the_number_of_processes(environment, status, begins, does):
    count, told = examine_processes(environment)
    assert count.status == status
    assert count.says.startswith(begins)
    assert does in count.do
    for name, value in environment.items():
        assert name == "TORCHELASTIC_RUN_ID" or f"{name}={value}" in told.says


# Self-test: each can fail


def failing(subject):
    (finding,) = [f for f in selftest.examine_self(()) if f.subject == subject]
    return finding


def test_a_wrong_score_is_found(monkeypatch):
    real = prosmin_scoring().gaussian_crps
    monkeypatch.setattr(prosmin_scoring(), "gaussian_crps", lambda *args: real(*args) * (1 + 1e-9))
    finding = failing("scoring rule")
    assert finding.status == "problem"
    assert "0.4932" in finding.says


def prosmin_scoring():
    import prosmin.scoring

    return prosmin.scoring


def test_the_reference_is_the_published_form():
    # CRPS of the standard Gaussian at its mean: (sqrt 2 - 1) / sqrt pi
    value = prosmin_scoring().gaussian_crps(*(torch.tensor([x], dtype=torch.float64) for x in (0.0, 1.0, 0.0)))
    assert float(value) == pytest.approx((math.sqrt(2) - 1) / math.sqrt(math.pi), rel=1e-14)


def test_a_method_without_a_gradient_is_found(monkeypatch):
    import prosmin.methods

    class Dead(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def forward(self, views, draws):
            return SimpleNamespace(losses=self.weight * torch.zeros(8))

    monkeypatch.setattr(prosmin.methods, "build_method", lambda config: Dead())
    finding = failing("training")
    assert finding.status == "problem"
    assert "norm 0.0" in finding.says


def test_a_decoder_that_changes_pictures_is_found(monkeypatch):
    from prosmin.data import decode

    real = decode.decode
    monkeypatch.setattr(decode, "decode", lambda data: real(data).flip(0))  # blue for red
    assert failing("decoding").status == "problem"
    monkeypatch.setattr(decode, "decode", lambda data: real(data)[:, :16])
    assert "(3, 16, 48)" in failing("decoding").says


def test_half_written_files_are_found(monkeypatch, tmp_path):
    from contextlib import contextmanager

    import prosmin.files

    @contextmanager
    def careless(path):
        yield path

    monkeypatch.setattr(prosmin.files, "writing", careless)
    finding = failing("writing")
    assert finding.status == "problem"
    assert "another folder" in finding.do


@pytest.mark.parametrize("writable", [True, False])
def test_files_are_tried_where_runs_go(monkeypatch, tmp_path, writable):
    import prosmin.files

    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(selftest.tempfile, "tempdir", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(selftest.os, "access", lambda path, mode: writable)
    written = []
    write_text = prosmin.files.write_text
    monkeypatch.setattr(prosmin.files, "write_text", lambda path, text: (written.append(path), write_text(path, text)))
    expected = tmp_path / ("here" if writable else "elsewhere")
    assert selftest.check_writing() == f"files in {expected} are written whole or not at all"
    assert [path.parent.parent for path in written] == [expected]
    assert list(expected.iterdir()) == []
