"""The engine beyond steps: kNN while training, the best kept, saving by the clock, loggers, given weights."""

import math
import os
import sys
import threading
import types
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from PIL import Image
from safetensors.torch import load_file
from timm.models import vision_transformer

from prosmin.encoder import load
from prosmin.encoder.file import read_card
from prosmin.errors import ProsminError, UsageError
from prosmin.models import vit as tokens
from prosmin.training import checkpoint as checkpoints
from prosmin.training import checkpoint as saving
from prosmin.training import health, launch
from prosmin.training import pretrain as pretraining
from prosmin.training.log import Logbook
from prosmin.training.online_knn import OnlineKnn
from prosmin.training.pretrain import build, check_shares, pretrain
from prosmin.training.run_folder import RunFolder
from prosmin.training.step import TrainingStep
from tiny_methods import METHODS, tiny_draws, tiny_method, tiny_views
from tiny_run import assert_same_run, metrics

KNN = {"training__knn_every": "2", "training__knn_pictures": "300"}


@pytest.fixture
def scores(monkeypatch):
    """kNN that comes out as told, in turn; the real one is called too, so that its traces would show."""
    real, told = OnlineKnn.__call__, []

    def scripted(self, method):
        measured = real(self, method)
        assert 0.0 <= measured <= 1.0
        return told.pop(0)

    monkeypatch.setattr(OnlineKnn, "__call__", scripted)
    return told


def names(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_measuring_knn_changes_no_bit_of_the_run(tmp_path, tiny):
    plain, measured = pretrain(tiny(), tmp_path / "plain"), pretrain(tiny(**KNN), tmp_path / "measured")
    first, second = (load_file(run / "encoder.safetensors") for run in (plain, measured))
    assert all(torch.equal(first[name], second[name]) for name in first)
    rows = metrics(measured)
    assert [row["step"] for row in rows if "knn_top1" in row] == [2, 4, 6]
    assert [{k: v for k, v in row.items() if k != "knn_top1"} for row in rows] == metrics(plain)


def test_online_knn_is_that_of_the_finished_encoder(tmp_path, tiny):
    """The last line's kNN equals kNN of the saved encoder on the same images: no trace of training mode."""
    from prosmin.data.image_sets import load_pictures
    from prosmin.data.subsets import balanced_subset
    from prosmin.evaluation.probes.held_out import held_out_knn

    run = pretrain(tiny(**KNN), tmp_path / "run")
    train = load_pictures("photos")
    chosen = train.subset(balanced_subset(train.labels, 300 / len(train), seed=0))
    assert metrics(run)[-1]["knn_top1"] == held_out_knn(load(run), chosen)["knn_top1"]


def test_the_best_is_kept_beside_the_last(tmp_path, tiny, scores):
    scores += [0.9, 0.3, 0.5]
    config = tiny(**KNN, training__keep="1", training__encoder="best")
    run = pretrain(config, tmp_path / "run")
    assert names(run) == ["step-00000002", "step-00000006"]
    assert checkpoints.best(run / "checkpoints") == ("step-00000002", 0.9)
    assert read_card(run)["step"] == 2
    assert RunFolder(run).is_finished(config)
    saved, best = load_file(run / "encoder.safetensors"), load_file(run / "checkpoints/step-00000002/model.safetensors")
    assert all(torch.equal(saved[name], best[name]) for name in saved)


def test_the_best_survives_stopping_and_continuing(tmp_path, tiny, scores):
    scores += [0.9, 0.3, 0.5]
    whole = pretrain(tiny(**KNN, training__encoder="best"), tmp_path / "whole")
    scores += [0.9, 0.0, 0.3, 0.5]  # step 3, where it is stopped, is measured too
    pretrain(tiny(**KNN, training__encoder="best", training__max_steps="3"), tmp_path / "halves")
    halves = pretrain(tiny(**KNN, training__encoder="best"), tmp_path / "halves")
    first, second = (load_file(run / "encoder.safetensors") for run in (whole, halves))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert read_card(halves)["step"] == 2


def test_without_labels_or_without_knn_there_is_no_best(tmp_path, tiny):
    for i in range(40):
        Image.new("RGB", (32, 32), (i, 2 * i, 255 - i)).save(tmp_path / f"{i}.png")
    with pytest.raises(UsageError, match=r"knn_every is 2, but folder:.* has no labels"):
        pretrain(tiny(**KNN, data__spec=f"folder:{tmp_path}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match=r"training\.encoder.*training\.knn_every"):
        tiny(training__encoder="best")


def test_pictures_of_which_none_can_be_held_out_are_refused_before_the_first_step(tmp_path, tiny):
    for i in range(40):
        (tmp_path / f"set/{i:02d}").mkdir(parents=True)
        Image.new("RGB", (32, 32), (i, 2 * i, 255 - i)).save(tmp_path / f"set/{i:02d}/x.png")
    with pytest.raises(UsageError, match=r"of the 40 labelled images of folder:.* no tenth can be held out"):
        pretrain(tiny(**KNN, data__spec=f"folder:{tmp_path}/set"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_knn_in_double_precision_and_in_a_thread(tmp_path, tiny):
    """Signals can be caught in the main thread alone; a run elsewhere does without."""
    config = tiny(**KNN, compute__precision="64-true", compute__accelerator="cpu", training__max_steps="2")
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(pretrain, config, tmp_path / "run").result()
    assert "knn_top1" in (run / "metrics.jsonl").read_text()


def test_minutes_save_between_the_steps_that_do(tmp_path, tiny, monkeypatch):
    """Every step takes forty seconds: a checkpoint a minute comes every other step."""
    now, saved = [0.0], []
    step, write = TrainingStep.__call__, checkpoints.write

    def slow(*arguments, **options):
        now[0] += 40.0
        return step(*arguments, **options)

    monkeypatch.setattr(saving, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(TrainingStep, "__call__", slow)
    monkeypatch.setattr(checkpoints, "write", lambda *a, **k: (saved.append(a[1].step), write(*a, **k)))
    config = tiny(training__checkpoint_every="100", training__checkpoint_minutes="1", training__log_every="6")
    pretrain(config, tmp_path / "run")
    assert saved == [2, 4, 6]


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, tiny, monkeypatch):
    """The disk takes step 2's only when step 4 has been made; it holds step 2 all the same."""
    config = tiny(training__checkpoint_every="2", training__keep="9")
    usual = pretrain(config, tmp_path / "usual")
    made = threading.Event()
    step, write = TrainingStep.__call__, checkpoints.write

    def counted(stepper, number, batch, values):
        done = step(stepper, number, batch, values)
        if number == 3:
            made.set()
        return done

    def slow(folder, taken, *, keep):
        assert made.wait(timeout=60), "training waits for the disk"
        return write(folder, taken, keep=keep)

    monkeypatch.setattr(TrainingStep, "__call__", counted)
    monkeypatch.setattr(checkpoints, "write", slow)
    late = pretrain(config, tmp_path / "late")
    assert_same_run(usual, late)
    names = checkpoints.newest_names(late / "checkpoints")
    assert names == ["step-00000006", "step-00000004", "step-00000002"]
    for name in names:
        first, second = (checkpoints.load(run / "checkpoints" / name) for run in (usual, late))
        assert first.model.keys() == second.model.keys()
        assert all(torch.equal(first.model[key], second.model[key]) for key in first.model)
        assert all(torch.equal(first.optimizer[key], second.optimizer[key]) for key in first.optimizer)


def test_a_full_disk_is_told_without_waiting_for_the_next_checkpoint(tmp_path, tiny, monkeypatch):
    """The writing of step 2's has failed by the time the loop looks; the next one would be due at the end."""

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

    def refuse(folder, taken, *, keep):
        raise ProsminError(f"The checkpoint of step {taken.step} cannot be written: no space.")

    step, steps = TrainingStep.__call__, []
    monkeypatch.setattr(TrainingStep, "__call__", lambda stepper, *a: (steps.append(a[0]), step(stepper, *a))[1])
    monkeypatch.setattr(saving, "ThreadPoolExecutor", lambda *a, **k: AtOnce())
    monkeypatch.setattr(checkpoints, "write", refuse)
    monkeypatch.setattr(saving.Saver, "is_due", lambda saver, behind: behind == 2)
    with pytest.raises(ProsminError, match="step 2 cannot be written: no space"):
        pretrain(tiny(), tmp_path / "run")
    assert steps == [0, 1]


@pytest.mark.parametrize("knn_every", ["null", "3"])
def test_lines_written_a_step_later_say_the_same(tmp_path, tiny, monkeypatch, knn_every):
    knn = {"training__knn_every": knn_every, "training__knn_pictures": "300"}
    config = tiny(training__log_every="2", training__checkpoint_every="4", **knn)
    at_once = pretrain(config, tmp_path / "at-once")
    monkeypatch.setattr(Logbook, "at_once", False)
    seen = []
    ask = Logbook.request
    monkeypatch.setattr(Logbook, "request", lambda log, done, line: (seen.append(line["step"]), ask(log, done, line)))
    later = pretrain(config, tmp_path / "later")
    assert_same_run(at_once, later)
    assert seen == ([2, 4, 6] if knn_every == "null" else [2, 3, 4, 6])


def test_a_step_that_is_not_finite_is_named_when_lines_are_late(tmp_path, tiny, monkeypatch):
    """Step 2 breaks; the look after step 3 finds it, once step 4 is under way, and no later checkpoint is written."""
    monkeypatch.setattr(Logbook, "at_once", False)
    call = TrainingStep.__call__

    def broken(stepper, step, batch, values):
        done = call(stepper, step, batch, values)
        return done._replace(loss=done.loss * float("nan")) if step == 1 else done

    monkeypatch.setattr(TrainingStep, "__call__", broken)
    with pytest.raises(ProsminError, match="Step 2 was not applied"):
        pretrain(tiny(training__log_every="3", training__checkpoint_every="5"), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_collapse_stops_the_run_if_asked(tmp_path, tiny, monkeypatch, capsys):
    real = health.numbers
    monkeypatch.setattr(health, "numbers", lambda measured: real(measured) | {"target_std": 1e-4})
    run = tmp_path / "run"
    with pytest.raises(
        ProsminError, match=r"Stopped at step 4 of 6, because training\.on_collapse is stop: collapsing: .*step 1"
    ):
        pretrain(tiny(training__on_collapse="stop"), run)
    assert "step-00000004" in names(run)
    assert not (run / "encoder.json").exists()
    with pytest.raises(ProsminError, match=r"was stopped by training\.on_collapse: collapsing.*on_collapse warn"):
        pretrain(tiny(training__on_collapse="stop"), run)  # the same command does not go on with it
    assert pretrain(tiny(), run) == run  # asked to, it does
    capsys.readouterr()
    pretrain(tiny(), tmp_path / "warned")
    assert capsys.readouterr().err.count("warning: collapsing") == 1


def test_parts_are_refused_where_the_loss_spans_the_batch(tmp_path):
    for fields in ({"name": "mocov3"}, {"name": "prosmin", "loss__rule": "kernel", "loss__estimator": "ustat"}):
        config = tiny_method(**fields, training__accumulate="2")
        with pytest.raises(UsageError, match="compares the images of a batch"):
            pretrain(config, tmp_path / "run")
        assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match=r"training\.accumulate 3 cannot share evenly. Give a multiple of 3"):
        pretrain(tiny_method("prosmin", training__accumulate="3"), tmp_path / "run")
    with pytest.warns(UserWarning, match="BatchNorm sees one part"):
        pretrain(tiny_method("prosmin", training__accumulate="2", training__max_steps="1"), tmp_path / "run")


def test_one_picture_at_a_time_is_refused(tmp_path, tiny):
    """Its spread is no number, and BatchNorm has nothing to take a mean of."""
    with pytest.raises(UsageError, match=r"training\.batch_size is 1, .* would process one image at a time"):
        pretrain(tiny(training__batch_size="1"), tmp_path / "run")  # the configuration itself may be loaded
    with pytest.raises(
        UsageError, match=r"accumulate 16 would process one image at a time.*a multiple of 16, at least 32"
    ):
        pretrain(tiny(training__batch_size="16", training__accumulate="16"), tmp_path / "run")
    with pytest.raises(UsageError, match=r"4 processes with training\.accumulate 1 would process one image at a time"):
        check_shares(tiny(training__batch_size="4").training, processes=4)
    pretrain(tiny(training__batch_size="2", training__max_steps="2"), tmp_path / "run")
    assert all(math.isfinite(value) for row in metrics(tmp_path / "run") for value in row.values())


def test_an_uneven_batch_is_refused_before_a_process_is_started(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(pretraining, "make_fabric", lambda *_: pytest.fail("processes were started"))
    with pytest.raises(UsageError, match=r"is 32, which 9 processes .* cannot share evenly"):
        pretrain(tiny(compute__devices="9"), tmp_path / "run")
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "3", "WORLD_SIZE": "6"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"is 32, which 6 processes .* cannot share evenly"):
        pretrain(tiny(), tmp_path / "run")


def test_activations_computed_again_give_the_same_weights(tmp_path):
    settings = {"vit": True, "compute__precision": "64-true", "backbone__drop_path": "0.5"}
    plain = pretrain(tiny_method("prosmin", **settings), tmp_path / "plain")
    again = pretrain(tiny_method("prosmin", **settings, compute__checkpoint_activations="true"), tmp_path / "again")
    assert_same_run(plain, again)
    with pytest.raises(UsageError, match="checkpoint_activations is for ViTs"):
        pretrain(tiny_method("prosmin", compute__checkpoint_activations="true"), tmp_path / "resnet")


@pytest.mark.parametrize("name", METHODS)
def test_activations_of_every_pass_are_computed_again(name, monkeypatch):
    """Of the online network: all groups of views, of every method."""
    passes, plain = [], vision_transformer.checkpoint_seq

    def counted(blocks, x, **options):
        passes.append(len(x))
        return plain(blocks, x, **options)

    for module in (vision_transformer, tokens):
        monkeypatch.setattr(module, "checkpoint_seq", counted)
    config = tiny_method(name, vit=True, compute__checkpoint_activations="true")
    method = build(config)
    views = tiny_views(config)
    method(views, tiny_draws())
    groups = [group for group in views if group is not None]
    assert passes == [group.shape[0] * group.shape[1] for group in groups]


def test_more_devices_than_there_are_is_told(tmp_path, tiny, monkeypatch):
    def refuse(**_):
        raise MisconfigurationException("You requested gpu: [0, 1]\n But your machine only has: [0]")

    monkeypatch.setattr(launch, "Fabric", refuse)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    with pytest.raises(UsageError, match=r"2 devices is not available: .*only has: \[0\] `prosmin doctor` lists"):
        pretrain(tiny(compute__devices="2"), tmp_path / "run")
    assert "LOCAL_WORLD_SIZE" not in os.environ  # set for the processes that were to follow, and only for them


def test_a_gpu_that_is_not_there_is_told_in_our_words(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"^compute\.accelerator is cuda, but no GPU is visible\. `prosmin doctor`"):
        pretrain(tiny(compute__accelerator="cuda"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_training_starts_from_given_weights(tmp_path, tiny, capsys):
    first = pretrain(tiny(), tmp_path / "first")
    weights = first / "encoder.safetensors"
    config = tiny(backbone__weights=str(weights), optimizer__lr="0", training__max_steps="1", training__seed="1")
    second = pretrain(config, tmp_path / "second")
    assert str(weights) in capsys.readouterr().out
    one, two = load_file(weights), load_file(second / "encoder.safetensors")
    learned = [name for name in one if name.startswith("online.backbone") and "running" not in name]
    learned = [name for name in learned if "num_batches" not in name]
    for name in learned:
        assert torch.equal(one[name], two[name]), name
        assert torch.equal(one[name], two[name.replace("online", "target", 1)]), name
    assert not torch.equal(one["predictor.mean.weight"], two["predictor.mean.weight"])
    weights.unlink()
    pretrain(
        tiny(backbone__weights=str(weights), optimizer__lr="0", training__seed="1"), tmp_path / "second"
    )  # goes on
    with pytest.raises(ProsminError, match=r"encoder\.safetensors"):
        pretrain(tiny(backbone__weights=str(weights)), tmp_path / "third")
    assert not (tmp_path / "third").exists()


def test_the_lines_go_to_tensorboard(tmp_path, tiny):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = pretrain(tiny(training__logger="tensorboard", training__max_steps="2"), tmp_path / "run")
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    losses = [(event.step, event.value) for event in events.Scalars("loss")]
    assert losses == [(row["step"], pytest.approx(row["loss"])) for row in metrics(run)]


def test_the_lines_go_to_wandb(tmp_path, tiny, monkeypatch):
    """Through its own interface as it is documented: init, log, finish."""
    seen = []
    session = types.SimpleNamespace(
        log=lambda values, step: seen.append((step, values["loss"])), finish=lambda exit_code: seen.append(exit_code)
    )
    fake = types.ModuleType("wandb")
    fake.__spec__ = types.SimpleNamespace(name="wandb")
    fake.init = lambda **settings: seen.append(settings) or session
    monkeypatch.setitem(sys.modules, "wandb", fake)
    run = pretrain(tiny(training__logger="wandb", training__max_steps="2"), tmp_path / "my run")
    assert seen[0]["id"] == seen[0]["name"] == "my run"
    assert seen[0]["config"]["training"]["max_steps"] == 2
    assert seen[1:] == [(row["step"], row["loss"]) for row in metrics(run)] + [0]


def test_a_missing_logger_says_how_to_get_it(tmp_path, tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ProsminError, match=r"pip install 'prosmin\[wandb\]'"):
        pretrain(tiny(training__logger="wandb"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
