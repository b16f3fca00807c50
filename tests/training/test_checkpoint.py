"""Checkpoints: written whole and when due, the best kept, damaged ones skipped."""

import json
import threading
import types
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from prosmin import interrupts
from prosmin.encoder.file import read_card
from prosmin.errors import ProsminError
from prosmin.training import checkpoint as checkpoints
from prosmin.training.online_knn import OnlineKnn
from prosmin.training.pretrain import pretrain
from prosmin.training.run_folder import RunFolder
from prosmin.training.step import TrainingStep
from tiny_run import assert_same_run

KNN = {"training__knn_every": "2", "training__knn_pictures": "300"}


def names(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def change_hash(path):
    path.write_text('{"step": 6, "files": {"model.safetensors": "00"}}')


DAMAGES = [(file, damage) for file in ("model", "optimizer") for damage in (cut, flip, Path.unlink)]
DAMAGES += [("state", damage) for damage in (cut, change_hash, Path.unlink)]


@pytest.mark.parametrize(("file", "damage"), DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(finished, unfinished, tiny, capsys, file, damage):
    damage(next((unfinished / "checkpoints/step-00000006").glob(f"{file}.*")))
    pretrain(tiny(), unfinished)
    captured = capsys.readouterr()
    assert "step-00000006 is damaged" in captured.err
    assert "from step 4" in captured.out
    assert_same_run(finished, unfinished)


def test_a_damaged_checkpoint_counts_neither_as_kept_nor_as_best(unfinished, tiny, capsys):
    state = unfinished / "checkpoints/step-00000006/state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"knn_top1": 0.99}))
    cut(unfinished / "checkpoints/step-00000006/model.safetensors")
    pretrain(tiny(training__max_steps="5", training__keep="1"), unfinished)
    assert "step-00000006.damaged" in capsys.readouterr().err
    assert names(unfinished) == ["step-00000005", "step-00000006.damaged"]
    assert checkpoints.best(unfinished / "checkpoints") == (None, None)
    assert checkpoints.load_newest(unfinished / "checkpoints")[0].step == 5


def test_a_checkpoint_that_cannot_be_read_now_is_not_called_damaged(unfinished, tiny, monkeypatch):
    def too_many(path):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(checkpoints, "file_hash", too_many)
    with pytest.raises(ProsminError, match=r"step-00000006 cannot be read: Too many open files"):
        pretrain(tiny(), unfinished)
    assert (unfinished / "checkpoints/step-00000006").is_dir()


def test_a_checkpoint_of_other_networks_is_refused():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    saved = checkpoints.snapshot(model, optimizer, step=7, pictures={})
    with pytest.raises(ProsminError, match=r"step 7 .*--out"):
        checkpoints.restore(saved, torch.nn.Linear(3, 2), optimizer)


def test_moments_are_restored_with_the_strides_of_their_parameters(tmp_path):
    """A fused optimizer, as on a GPU, refuses other strides than those of the weights."""

    def network():
        model = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        return model, torch.optim.AdamW(model.parameters(), fused=True)

    def step(model, optimizer):
        model(torch.arange(75.0).view(1, 3, 5, 5)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    torch.manual_seed(0)
    model, optimizer = network()
    step(model, optimizer)
    path = checkpoints.write(tmp_path, checkpoints.snapshot(model, optimizer, step=1, pictures={}), keep=1)
    again, fresh = network()
    checkpoints.restore(checkpoints.load(path), again, fresh)
    for moment in ("exp_avg", "exp_avg_sq"):
        kept, restored = optimizer.state[model.weight][moment], fresh.state[again.weight][moment]
        assert torch.equal(kept, restored)
        assert restored.stride() == again.weight.stride() != again.weight.contiguous().stride()
    step(model, optimizer)
    step(again, fresh)
    assert torch.equal(model.weight, again.weight)


def test_files_of_a_killed_process_are_removed(train):
    """Even if no later checkpoint has the same step."""
    run = train(training__max_steps="2")
    part = run / "checkpoints" / ".step-00000003.part"
    part.mkdir()
    (part / "model.safetensors").write_bytes(bytes(8))
    train()
    assert names(run) == ["step-00000004", "step-00000006"]


def test_an_interrupt_does_not_touch_what_is_being_written(tmp_path, monkeypatch):
    """What would be removed may have its final name by then, as another thread writes: it would be left empty."""
    model = torch.nn.Linear(2, 2)
    saved = checkpoints.snapshot(model, torch.optim.AdamW(model.parameters()), step=1, pictures={})
    write_files = checkpoints._write_files

    def interrupted(folder, checkpoint):
        write_files(folder, checkpoint)
        for action in list(interrupts._actions.values()):  # as a second Ctrl-C
            action()

    monkeypatch.setattr(checkpoints, "_write_files", interrupted)
    assert checkpoints.load(checkpoints.write(tmp_path, saved, keep=1)).step == 1


def test_a_full_disk_keeps_the_earlier_checkpoint(train, monkeypatch):
    run = train(training__max_steps="2")
    save_file = checkpoints.save_file

    def full(tensors, path):
        if "optimizer" in str(path):
            raise OSError(28, "No space left on device")
        save_file(tensors, path)

    monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(ProsminError, match=r"step 4 cannot be written.*No space left.*step-00000002"):
        train()
    assert names(run) == ["step-00000002"]


def test_a_full_disk_is_reported_before_the_next_checkpoint(train, monkeypatch):
    """Step 2 cannot be written; the next checkpoint would be due at the end."""

    class AtOnce:
        def submit(self, work, *arguments, **options):
            done = Future()
            try:
                done.set_result(work(*arguments, **options))
            except ProsminError as error:
                done.set_exception(error)
            return done

        def shutdown(self):
            pass

    def refuse(folder, checkpoint, *, keep):
        raise ProsminError(f"step {checkpoint.step}: no space")

    step, steps = TrainingStep.__call__, []
    monkeypatch.setattr(TrainingStep, "__call__", lambda take, *a: (steps.append(a[0]), step(take, *a))[1])
    monkeypatch.setattr(checkpoints, "ThreadPoolExecutor", lambda *a, **k: AtOnce())
    monkeypatch.setattr(checkpoints, "write", refuse)
    monkeypatch.setattr(checkpoints.Saver, "is_due", lambda saver, done: done == 2)
    with pytest.raises(ProsminError, match="step 2: no space"):
        train()
    assert steps == [0, 1]


def test_checkpoints_by_the_clock(train, monkeypatch):
    """Every step takes forty seconds: one checkpoint per minute is one every other step."""
    now, saved = [0.0], []
    step, write = TrainingStep.__call__, checkpoints.write

    def slow(*arguments):
        now[0] += 40.0
        return step(*arguments)

    monkeypatch.setattr(checkpoints, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(TrainingStep, "__call__", slow)
    monkeypatch.setattr(checkpoints, "write", lambda *a, **k: (saved.append(a[1].step), write(*a, **k)))
    train(training__checkpoint_every="100", training__checkpoint_minutes="1", training__log_every="6")
    assert saved == [2, 4, 6]


def test_training_continues_while_a_checkpoint_is_written(train, monkeypatch):
    """Step 2 is written only after step 4 is done, and still contains step 2."""
    fields = {"training__checkpoint_every": "2", "training__keep": "9"}
    usual = train("usual", **fields)
    done = threading.Event()
    step, write = TrainingStep.__call__, checkpoints.write

    def counted(take, number, batch, values):
        result = step(take, number, batch, values)
        if number == 3:
            done.set()
        return result

    def slow(folder, checkpoint, *, keep):
        assert done.wait(timeout=60), "training waits for the disk"
        return write(folder, checkpoint, keep=keep)

    monkeypatch.setattr(TrainingStep, "__call__", counted)
    monkeypatch.setattr(checkpoints, "write", slow)
    late = train("late", **fields)
    assert_same_run(usual, late)
    assert names(late) == ["step-00000002", "step-00000004", "step-00000006"]
    for name in names(late):
        first, second = (checkpoints.load(run / "checkpoints" / name) for run in (usual, late))
        assert first.model.keys() == second.model.keys()
        assert all(torch.equal(first.model[key], second.model[key]) for key in first.model)
        assert all(torch.equal(first.optimizer[key], second.optimizer[key]) for key in first.optimizer)


@pytest.fixture
def scores(monkeypatch):
    """A list of kNN scores to return in turn; the real kNN runs too, in case it changes the run."""
    real, given = OnlineKnn.__call__, []

    def scripted(self, method):
        assert 0.0 <= real(self, method)["knn_top1"] <= 1.0
        return {"knn_top1": given.pop(0)}

    monkeypatch.setattr(OnlineKnn, "__call__", scripted)
    return given


def test_the_best_checkpoint_is_kept_also_over_a_restart(train, tiny, scores):
    scores += [0.9, 0.3, 0.5]
    best = KNN | {"training__encoder": "best"}
    run = train("whole", **best, training__keep="1")
    assert names(run) == ["step-00000002", "step-00000006"]
    assert checkpoints.best(run / "checkpoints") == ("step-00000002", 0.9)
    assert read_card(run)["step"] == 2
    assert RunFolder(run).is_finished(tiny(**best))
    encoder = load_file(run / "encoder.safetensors")
    model = load_file(run / "checkpoints/step-00000002/model.safetensors")
    assert all(torch.equal(encoder[name], model[name]) for name in encoder)
    scores += [0.9, 0.0, 0.3, 0.5]  # step 3, the last of the first part, is measured too
    train("halves", **best, training__max_steps="3")
    halves = train("halves", **best)
    assert read_card(halves)["step"] == 2
    again = load_file(halves / "encoder.safetensors")
    assert all(torch.equal(encoder[name], again[name]) for name in encoder)
