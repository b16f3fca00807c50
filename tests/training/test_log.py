"""The log: rows, losses that are not finite, collapses, TensorBoard and Weights & Biases."""

import sys
import threading
import types

import pytest
import torch

from prosmin.errors import ProsminError
from prosmin.training import checkpoint as checkpoints
from prosmin.training import health
from prosmin.training import log as logs
from prosmin.training.log import Logbook
from prosmin.training.step import TrainingStep
from tiny_run import assert_same_run, metrics


def test_a_loss_that_is_not_finite_stops_before_the_update(train, infinite_loss, tmp_path, capsys):
    infinite_loss(step=4, images=1)  # counted from 0
    with pytest.raises(ProsminError, match=r"Step 5 .*not finite for 1 image: [^,]+\. .*step-00000004"):
        train()
    last = 5 if torch.cuda.is_available() else 4  # the one before; on a GPU a step is checked during the next
    assert f"step {last}/6" in capsys.readouterr().out.splitlines()[-1]
    checkpoint, damaged = checkpoints.load_newest(tmp_path / "run/checkpoints")
    assert checkpoint.step == 4
    assert not damaged
    assert all(bool(torch.isfinite(t).all()) for t in checkpoint.model.values())


@pytest.mark.parametrize(
    ("fields", "precision", "clip"),
    [
        ({}, "", " optimizer.clip"),
        (
            {"compute__precision": "bf16-mixed", "optimizer__clip": "null"},
            "--compute.precision 32-true",
            "set optimizer.clip",
        ),
    ],
)
def test_advice_on_a_loss_that_is_not_finite_fits_the_run(train, infinite_loss, fields, precision, clip):
    infinite_loss(step=0, images=16)
    with pytest.raises(ProsminError, match=r"not finite for 16 images: .* and 11 more\. No checkpoint") as stopped:
        train(**fields)
    advice = str(stopped.value).partition("No checkpoint")[2]
    assert "Lower optimizer.lr" in advice
    assert clip in advice
    assert precision in advice
    assert precision or "precision" not in advice


def test_a_checkpoint_that_is_being_written_counts_when_a_run_stops(train, monkeypatch, infinite_loss):
    """Step 2 is not finite while the checkpoint of steps 0 and 1 is being written."""
    infinite_loss(step=2, images=16)
    stopping, write, stop = threading.Event(), checkpoints.write, logs.stop_if_not_finite

    def noticed(*arguments, advice):
        return stop(*arguments, advice=lambda: (stopping.set(), advice())[1])

    def slow(folder, checkpoint, *, keep):
        assert stopping.wait(timeout=60)
        return write(folder, checkpoint, keep=keep)

    monkeypatch.setattr(logs, "stop_if_not_finite", noticed)
    monkeypatch.setattr(checkpoints, "write", slow)
    with pytest.raises(ProsminError, match="step-00000002 is intact"):
        train(training__checkpoint_every="2")


def test_two_errors_are_both_reported(train, monkeypatch, infinite_loss, capsys):
    """The disk is full at step 2, and then the loss of step 2 is not finite or something else fails."""

    def full(*arguments):
        raise OSError(28, "No space left on device")

    def fails(*arguments, **options):
        raise ProsminError("something else")

    infinite_loss(step=2, images=16)
    monkeypatch.setattr(checkpoints, "save_file", full)
    monkeypatch.setattr(checkpoints.Saver, "check", lambda saver: None)  # the error is not known yet in step 2
    with pytest.raises(ProsminError, match=r"(?s)not finite for 16 images.*step 2 cannot be written.*No space left"):
        train()
    monkeypatch.setattr(logs, "stop_if_not_finite", lambda taken, *a, **k: fails() if taken[0][0] == 2 else None)
    with pytest.raises(ProsminError, match=r"^something else$"):
        train("other")
    assert "warning: The checkpoint of step 2 cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(("knn_every", "rows"), [("null", [2, 4, 6]), ("3", [2, 3, 4, 6])])
def test_rows_written_a_step_later_are_the_same(train, monkeypatch, knn_every, rows):
    fields = {"training__knn_every": knn_every, "training__knn_pictures": "300"}
    fields |= {"training__log_every": "2", "training__checkpoint_every": "4"}
    at_once = train("at-once", **fields)
    monkeypatch.setattr(Logbook, "at_once", False)
    seen, request = [], Logbook.request
    monkeypatch.setattr(
        Logbook, "request", lambda log, result, row: (seen.append(row["step"]), request(log, result, row))
    )
    assert_same_run(at_once, train("later", **fields))
    assert seen == rows


def test_a_step_that_is_not_finite_is_named_though_rows_are_late(train, tmp_path, monkeypatch):
    """Step 2 is not finite; the check after step 3 finds it during step 4, and no checkpoint is written."""
    monkeypatch.setattr(Logbook, "at_once", False)
    call = TrainingStep.__call__

    def broken(take, step, batch, values):
        result = call(take, step, batch, values)
        return result._replace(loss=result.loss * float("nan")) if step == 1 else result

    monkeypatch.setattr(TrainingStep, "__call__", broken)
    with pytest.raises(ProsminError, match="Step 2 "):
        train(training__log_every="3", training__checkpoint_every="5")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_collapse_stops_the_run_if_configured(train, tmp_path, monkeypatch, capsys):
    real = health.numbers
    monkeypatch.setattr(health, "numbers", lambda measured: real(measured) | {"target_std": 1e-4})
    for expected in (r"step 4 of 6.*on_collapse.*collapsing: .*step 1", r"collapsing.*on_collapse warn"):
        with pytest.raises(ProsminError, match=expected):  # the same command does not continue it
            train(training__on_collapse="stop")
        assert (tmp_path / "run/checkpoints/step-00000004").is_dir()
        assert not (tmp_path / "run/encoder.json").exists()
    train()  # continues, as on_collapse is warn
    capsys.readouterr()
    train("warned")
    assert capsys.readouterr().err.count("warning: collapsing") == 1


def test_rows_go_to_tensorboard(train):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(training__logger="tensorboard", training__max_steps="2")
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    losses = [(event.step, event.value) for event in events.Scalars("loss")]
    assert losses == [(row["step"], pytest.approx(row["loss"])) for row in metrics(run)]


def test_rows_go_to_wandb(train, monkeypatch):
    """Through its documented interface: init, log, finish."""
    seen = []
    session = types.SimpleNamespace(
        log=lambda values, step: seen.append((step, values["loss"])), finish=lambda exit_code: seen.append(exit_code)
    )
    fake = types.ModuleType("wandb")
    fake.__spec__ = types.SimpleNamespace(name="wandb")
    fake.init = lambda **settings: seen.append(settings) or session
    monkeypatch.setitem(sys.modules, "wandb", fake)
    run = train("my run", training__logger="wandb", training__max_steps="2")
    assert seen[0]["id"] == seen[0]["name"] == "my run"
    assert seen[0]["config"]["training"]["max_steps"] == 2
    assert seen[1:] == [(row["step"], row["loss"]) for row in metrics(run)] + [0]


def test_a_missing_logger_is_named_with_its_package(train, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ProsminError, match=r"training\.logger is wandb.*'prosmin\[wandb\]'"):
        train(training__logger="wandb")
    assert not (tmp_path / "run").exists()
