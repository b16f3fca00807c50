"""A run that is killed or stopped at any moment continues to the bits of an uninterrupted one."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from prosmin.training.loop import StopRequest
from started import Started, wait_until
from tiny_run import TINY, assert_same_run, last_step

STEPS = "60"


def words(run):
    fields = TINY | {"training.max_steps": STEPS, "training.batch_size": "16"}
    fields |= {"training.knn_every": "9", "training.knn_pictures": "100"}
    options = [word for name, value in fields.items() for word in (f"--{name}", value)]
    return ["pretrain", "--recipe", "demo", "--out", str(run), *options]


def start(run):
    return Started(words(run))


def start_program(run):
    """In a new interpreter, as from a shell."""
    return subprocess.Popen(
        [sys.executable, "-m", "prosmin", *words(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background processes ignore it
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    run = tmp_path_factory.mktemp("faults") / "run"
    process = start_program(run)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return run


def test_a_run_killed_eight_times_ends_with_the_same_bits(uninterrupted, tmp_path):
    """At moments from a fixed seed; every other time while a checkpoint is being written."""
    run, moments, kills = tmp_path / "run", random.Random(0), 0
    for attempt in range(8):
        before = last_step(run)
        process = start(run)
        if attempt % 2:
            part = run / "checkpoints"
            wait_until(lambda part=part: part.is_dir() and any(p.suffix == ".part" for p in part.iterdir()), process)
        else:
            goal = before + moments.randint(1, 3)
            wait_until(lambda goal=goal: last_step(run) >= goal, process)
            time.sleep(moments.random() * 0.02)
        if process.poll() is None:
            process.kill()
            kills += 1
        process.communicate()
    assert kills == 8  # each attempt does a few steps only
    process = start(run)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert_same_run(uninterrupted, run)


def test_a_run_stopped_by_a_signal_saves_and_continues(uninterrupted, tmp_path):
    """Each start is stopped by another signal, and the next continues where it stopped."""
    run, stopped = tmp_path / "run", 0
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        process = start(run) if number == signal.SIGUSR1 else start_program(run)
        wait_until(lambda goal=stopped + 3: last_step(run) >= goal, process)
        process.send_signal(number)
        output, _ = process.communicate()
        assert process.returncode == (130 if number == signal.SIGINT else 1), (number.name, output)
        assert "The same command continues" in output, number.name
        assert "Traceback" not in output, number.name
        assert not stopped or f"from step {stopped}" in output, number.name
        stopped = last_step(run)
        assert (run / f"checkpoints/step-{stopped:08d}").is_dir(), number.name
    process = start(run)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert f"from step {stopped}" in output
    assert_same_run(uninterrupted, run)


@pytest.fixture
def handled():
    """A function that says how Ctrl-C is handled during the test: in the background the suite ignores it."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_after_the_last_step_is_not_lost(handled):
    """The loop no longer looks at it, and what comes after the loop may take minutes."""
    handled(signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), StopRequest():
        os.kill(os.getpid(), signal.SIGINT)
    with StopRequest() as stop:  # of a scheduler, which gives time to finish
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.name == "SIGTERM"


def test_an_ignored_signal_stays_ignored(handled):
    """As Ctrl-C in a job that a script starts in the background."""
    handled(signal.SIG_IGN)
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.name is None
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.name == "SIGTERM"
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_an_error_of_the_loop_remains_the_error_after_ctrl_c(handled):
    handled(signal.default_int_handler)

    def failing():
        with StopRequest():
            os.kill(os.getpid(), signal.SIGINT)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
