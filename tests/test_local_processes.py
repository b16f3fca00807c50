"""Launchers, and the further processes that a command starts."""

import os
import subprocess
import sys
import time

import pytest

from prosmin.errors import ProsminError, UsageError
from prosmin.local_processes import Helpers, helpers, launch_of, place


def wait(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_one_process_starts_no_other():
    with helpers(1, ["embed"]) as others:
        assert others == Helpers()
        others.check()


@pytest.fixture(autouse=True)
def nine_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(9)))


@pytest.mark.parametrize(("count", "allowed"), [(10, "1 to 9"), (0, "1 or more")])
def test_there_are_as_many_as_cores_at_most(count, allowed):
    with pytest.raises(UsageError, match=f"--processes is {count}; allowed: {allowed}"), helpers(count, ["--version"]):
        pass
    with helpers(9, ["--version"]) as others:
        assert len(others.started) == 8


@pytest.mark.parametrize(
    ("name", "environment"),
    [("torchrun", {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4"}), ("srun", {"SLURM_STEP_NUM_TASKS": "4"})],
)
def test_a_launcher_and_processes_exclude_each_other(name, environment, monkeypatch):
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=f"--processes is 2.* {name} .*4 processes"), helpers(2, []):
        pass


def test_a_shell_that_srun_started_is_no_launcher(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    with helpers(2, ["--version"]) as others:
        assert len(others.started) == 1


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        (
            {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "1"},
            ("torchrun", 5, 8, 1, 2),
        ),
        ({"SLURM_STEP_NUM_TASKS": "6", "SLURM_PROCID": "4", "SLURM_LOCALID": "1"}, ("srun", 4, 6, 1, 1)),
        ({"SLURM_STEP_NUM_TASKS": "6", "SLURM_JOB_NAME": "interactive"}, None),
        ({"SLURM_NTASKS": "6", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, None),  # a batch script without srun
        ({"SLURM_NTASKS": "6", "SLURM_STEP_NUM_TASKS": "1"}, None),
    ],
)
def test_what_is_a_launcher(environment, expected):
    assert launch_of(environment) == expected


def test_the_error_of_a_failed_process_is_shown():
    with helpers(2, ["no-such-command"]) as others:
        [other] = others.started
        wait(lambda: other.process.poll() is not None)
        with pytest.raises(ProsminError, match=r"2 processes ended with status 2: .*'no-such-command'"):
            others.check()


def test_a_killed_process_is_named_with_its_signal():
    with helpers(2, ["embed", "--help"]) as others:
        others.started[0].process.kill()
        others.started[0].process.wait()
        with pytest.raises(ProsminError, match=r"SIGKILL.*memory.*--processes"):
            others.check()


def test_a_helper_imports_nothing_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "argparse.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    with helpers(2, ["--version"]) as others:
        assert others.started[0].process.wait() == 0


def test_the_cores_are_shared(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "7")
    with helpers(3, ["--version"]) as others:
        assert len(others.started) == 2
        assert os.environ["LOCAL_WORLD_SIZE"] == "3"
        assert os.environ["OMP_NUM_THREADS"] == "3"
    assert os.environ["LOCAL_WORLD_SIZE"] == "7"
    assert "OMP_NUM_THREADS" not in os.environ
    assert all(other.process.returncode is not None for other in others.started)


def test_the_number_of_a_process():
    assert place({}) is None
    assert place({"PROSMIN_PROCESS": "1/2"}) == (1, 2)


def test_a_helper_starts_no_others(monkeypatch):
    monkeypatch.setenv("PROSMIN_PROCESS", "1/2")
    monkeypatch.setenv("PROSMIN_PARENT", str(os.getppid()))
    with helpers(2, []) as others:
        assert others == Helpers()


def test_a_process_ends_without_the_one_that_started_it():
    child = """
import os, time
from prosmin.local_processes import helpers

os.environ |= {"PROSMIN_PROCESS": "1/2", "PROSMIN_PARENT": str(os.getppid())}
with helpers(2, []):
    print("waits", flush=True)
    time.sleep(600)
"""
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline() == "waits\n"
    parent.kill()
    parent.wait()
    assert parent.stdout.read() == ""  # ends when the child, which has the other end, does
    parent.stdout.close()
