"""Processes that a command starts beside itself."""

import os
import subprocess
import sys
import time

import pytest

from prosmin.errors import ProsminError, UsageError
from prosmin.local_processes import Helpers, helpers, place


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
    """Wherever the tests run."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(9)))


def test_more_than_cores_are_too_many():
    with (
        pytest.raises(UsageError, match="--processes is 10; allowed: 1 to 9, the cores that this command may use"),
        helpers(10, ["--version"]),
    ):
        pass
    with helpers(9, ["--version"]) as others:
        assert len(others.started) == 8


def test_none_is_too_few():
    with pytest.raises(UsageError, match=r"--processes is 0; allowed: 1 or more"), helpers(0, []):
        pass


@pytest.mark.parametrize(
    ("name", "environment"),
    [("torchrun", {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4"}), ("srun", {"SLURM_STEP_NUM_TASKS": "4"})],
)
def test_a_launcher_and_this_do_not_go_together(name, environment, monkeypatch):
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    with (
        pytest.raises(UsageError, match=f"--processes is 2, and {name} has started 4 processes. Leave one"),
        helpers(2, []),
    ):
        pass


def test_a_shell_that_srun_started_is_no_launcher(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    with helpers(2, ["--version"]) as others:
        assert len(others.started) == 1


def test_what_a_failed_process_said_is_told():
    with helpers(2, ["no-such-command"]) as others:
        [other] = others.started
        wait(lambda: other.process.poll() is not None)
        with pytest.raises(ProsminError, match=r"One of 2 processes ended with status 2: .*'no-such-command'"):
            others.check()


def test_one_that_was_killed_is_told_by_its_signal():
    with helpers(2, ["embed", "--help"]) as others:
        others.started[0].process.kill()
        others.started[0].process.wait()
        message = (
            r"One of 2 processes was ended by SIGKILL: it said nothing\. A system without free memory ends processes "
            r"this way\. The same command continues what is there; fewer --processes need less memory\.$"
        )
        with pytest.raises(ProsminError, match=message):
            others.check()


def test_a_helper_imports_nothing_from_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "argparse.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    with helpers(2, ["--version"]) as others:
        assert others.started[0].process.wait() == 0


def test_cores_are_shared_and_given_back(monkeypatch):
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


def test_a_helper_starts_no_others_and_ends_with_the_process_that_started_it():
    code = """
import time
from prosmin.local_processes import helpers

with helpers(2, []) as others:
    print(len(others.started), flush=True)
    time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"PROSMIN_PROCESS": "1/2"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "0\n"
    process.stdin.close()  # as when the other end is killed
    assert process.wait(timeout=30) == 1
    process.stdout.close()


def test_a_process_ends_without_the_one_that_started_it():
    child = """
import os, time
from prosmin.local_processes import ending_without

with ending_without(os.getppid(), every=0.01):
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
