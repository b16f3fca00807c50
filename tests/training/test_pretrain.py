"""A run: what it leaves, that it continues to the same bits, and what it says when it cannot."""

import json
import shutil
import threading

import pytest
import torch
from safetensors.torch import load_file

from prosmin import config as configs
from prosmin.encoder import load
from prosmin.errors import ProsminError
from prosmin.training import checkpoint as checkpoints
from prosmin.training import checkpoint as saving
from prosmin.training import launch as processes
from prosmin.training import log as logbook
from prosmin.training import pretrain as pretraining
from prosmin.training.pretrain import pretrain
from tiny_methods import METHODS, tiny_method
from tiny_run import TINY, assert_same_run, metrics


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Six steps in one go."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    return pretrain(configs.resolve(recipe="demo", overrides=TINY), run)


def test_others_may_read_a_run(undisturbed):
    """All its files have the permissions that the umask grants."""
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in undisturbed.rglob("*") if path.is_file()}
    assert set(modes.values()) == {modes["metrics.jsonl"]}, modes


def test_a_lower_limit_than_the_checkpoint_leaves_the_encoder_of_that_checkpoint(tmp_path, tiny):
    run = tmp_path / "run"
    pretrain(tiny(training__max_steps="4"), run)
    (run / "encoder.json").unlink()  # as if it had been stopped at step 4
    pretrain(tiny(training__max_steps="2"), run)
    card = json.loads((run / "encoder.json").read_text())
    assert (card["step"], card["trained"]) == (4, 4)


def test_a_run_leaves_what_the_contract_names(undisturbed, tiny):
    assert configs.build(configs.read_yaml(undisturbed / "config.yaml")) == tiny()
    assert [p.name for p in sorted((undisturbed / "checkpoints").iterdir())] == [
        "step-00000004",
        "step-00000006",
    ]
    rows = metrics(undisturbed)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    for name in (
        "loss",
        "lr",
        "grad_norm",
        "target_std",
        "feature_rank",
        "scale_mean",
        "scale_min",
        "scale_max",
    ):
        assert all(isinstance(row[name], float) for row in rows), name
    card = json.loads((undisturbed / "encoder.json").read_text())
    assert card["step"] == 6
    assert card["hash"]


def test_stopped_and_continued_is_the_same_run(undisturbed, tmp_path, tiny):
    run = tmp_path / "run"
    pretrain(tiny(training__max_steps="3"), run)
    pretrain(tiny(), run)
    assert_same_run(undisturbed, run)
    assert configs.build(configs.read_yaml(run / "config.yaml")) == tiny()  # tells of the six steps
    pretrain(tiny(training__max_steps="2"), run)  # has them behind it
    assert configs.build(configs.read_yaml(run / "config.yaml")) == tiny()


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"prosmin"}))  # which the tests about it train
def test_every_method_continues_to_the_same_bits(tmp_path, name):
    whole = pretrain(tiny_method(name), tmp_path / "whole")
    pretrain(tiny_method(name, training__max_steps="1"), tmp_path / "halves")
    halves = pretrain(tiny_method(name), tmp_path / "halves")
    assert_same_run(whole, halves)
    assert len(metrics(halves)) == 4
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    uncertainty = load(halves).uncertainty(images)
    assert uncertainty.shape == (5,)
    assert bool((uncertainty > 0).all())  # a variance between views


def test_stochastic_depth_continues_to_the_same_bits(tmp_path, tiny):
    vit = {"backbone__name": "vit_tiny_patch16_224", "backbone__patch_size": "8", "backbone__width": "24"}
    vit |= {"backbone__depth": "2", "backbone__heads": "2", "backbone__drop_path": "0.5", "training__batch_size": "8"}
    whole = pretrain(tiny(**vit), tmp_path / "whole")
    pretrain(tiny(**vit, training__max_steps="3"), tmp_path / "halves")
    assert_same_run(whole, pretrain(tiny(**vit), tmp_path / "halves"))


def test_moments_come_back_in_the_layout_of_their_parameters(tmp_path):
    """A fused optimizer, as on a GPU, refuses moments that lie otherwise than their convolution's weights."""

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
    path = checkpoints.write(
        tmp_path, checkpoints.snapshot(model, optimizer, step=1, fingerprint="", pictures={}), keep=1
    )
    again, fresh = network()
    checkpoints.restore(checkpoints.load(path), again, fresh)
    for moment in ("exp_avg", "exp_avg_sq"):
        kept, restored = optimizer.state[model.weight][moment], fresh.state[again.weight][moment]
        assert torch.equal(kept, restored)
        assert restored.stride() == again.weight.stride() != again.weight.contiguous().stride()
    step(model, optimizer)
    step(again, fresh)
    assert torch.equal(model.weight, again.weight)


def test_a_run_continues_in_another_precision(tmp_path, tiny):
    """compute.* may change; moments are then kept in the format of their parameters."""
    pretrain(tiny(training__max_steps="2"), tmp_path / "run")
    run = pretrain(tiny(training__max_steps="4", compute__precision="64-true"), tmp_path / "run")
    assert [row["step"] for row in metrics(run)] == [1, 2, 3, 4]
    assert all(row["loss"] < 100 for row in metrics(run))


def test_products_are_again_what_they_were_when_training_ends(tmp_path, tiny, monkeypatch):
    """On a GPU training takes TF32; what is evaluated in the same process must not."""
    prepare, before = pretraining.prepare, torch.get_float32_matmul_precision()

    def on_gpu(*arguments):
        torch.set_float32_matmul_precision("high")
        return prepare(*arguments)

    monkeypatch.setattr(pretraining, "prepare", on_gpu)
    pretrain(tiny(training__max_steps="1"), tmp_path / "run")
    assert torch.get_float32_matmul_precision() == before != "high"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", METHODS)
def test_every_method_continues_on_a_gpu(tmp_path, name):
    """float64, so that the order of sums, which a GPU leaves open, does not matter."""
    gpu = {"compute__accelerator": "cuda", "compute__precision": "64-true"}
    whole = pretrain(tiny_method(name, **gpu), tmp_path / "whole")
    pretrain(tiny_method(name, **gpu, training__max_steps="1"), tmp_path / "halves")
    halves = pretrain(tiny_method(name, **gpu), tmp_path / "halves")
    for key, value in load_file(whole / "encoder.safetensors").items():
        found = load_file(halves / "encoder.safetensors")[key]
        torch.testing.assert_close(found, value, rtol=1e-5, atol=1e-7)


def test_a_finished_run_is_not_repeated(undisturbed, tmp_path, tiny, capsys):
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    before = (run / "encoder.safetensors").stat().st_mtime_ns
    pretrain(tiny(), run)
    assert "has finished already" in capsys.readouterr().out
    assert (run / "encoder.safetensors").stat().st_mtime_ns == before


def test_a_run_that_was_shortened_says_how_to_go_on(tmp_path, tiny, capsys):
    for _ in range(2):
        pretrain(tiny(training__max_steps="1"), tmp_path / "run")
    steps = json.loads((tmp_path / "run/encoder.json").read_text())["steps"]
    assert f"already at step 1; --training.max_steps null continues to {steps}.\n" in capsys.readouterr().out


def _cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("harm", [_cut, _flip, lambda path: path.unlink()], ids=["cut", "flipped", "missing"])
@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(undisturbed, tmp_path, tiny, capsys, harm, file):
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    (run / "encoder.json").unlink()
    (run / "encoder.safetensors").unlink()
    if file == "state.json" and harm is _flip:
        (run / "checkpoints/step-00000006/state.json").write_text('{"step": 6, "files": {"model.safetensors": "00"}}')
    else:
        harm(run / "checkpoints/step-00000006" / file)
    pretrain(tiny(), run)
    captured = capsys.readouterr()
    assert "step-00000006 is damaged" in captured.err
    assert "from step 4" in captured.out
    assert_same_run(undisturbed, run)


def test_a_damaged_checkpoint_takes_no_place_from_whole_ones(undisturbed, tmp_path, tiny, capsys):
    """Nor does it count as the best: it is set aside, though a later step than the one that comes next."""
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    (run / "encoder.json").unlink()
    state = run / "checkpoints/step-00000006/state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"knn_top1": 0.99}))
    _cut(run / "checkpoints/step-00000006/model.safetensors")
    pretrain(tiny(training__max_steps="5", training__keep="1"), run)
    assert "renamed to step-00000006.damaged" in capsys.readouterr().err
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000005", "step-00000006.damaged"]
    assert checkpoints.best(run / "checkpoints") == (None, None)
    assert checkpoints.load_newest(run / "checkpoints")[0].step == 5


def test_a_checkpoint_that_cannot_be_read_now_is_not_called_damaged(undisturbed, tmp_path, tiny, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    (run / "encoder.json").unlink()

    def too_many(path):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(checkpoints, "file_hash", too_many)
    with pytest.raises(
        ProsminError, match=r"step-00000006 cannot be read: Too many open files\. Fix that and run again"
    ):
        pretrain(tiny(), run)
    assert (run / "checkpoints/step-00000006").is_dir()


def test_given_weights_are_taken_again_where_no_checkpoint_is_whole(undisturbed, tmp_path, tiny, capsys):
    weights = str(undisturbed / "encoder.safetensors")
    config = tiny(backbone__weights=weights, optimizer__lr="0", training__max_steps="1")
    run = pretrain(config, tmp_path / "run")
    first = load_file(run / "encoder.safetensors")
    _cut(run / "checkpoints/step-00000001/model.safetensors")
    (run / "encoder.json").unlink()
    assert pretrain(config, run) == run
    second = load_file(run / "encoder.safetensors")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_goes_on_with_the_pictures_it_began_with(tmp_path, tiny, capsys):
    """More or fewer are refused, since they change its length; others under the same names are told."""
    from PIL import Image

    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for i in range(48):
        Image.new("RGB", (32, 32), (5 * i, 2 * i, 255 - i)).save(pictures / f"{i:02d}.png")
    fields = {"data__spec": f"folder:{pictures}", "training__batch_size": "16", "training__epochs": "2"}
    run = pretrain(tiny(**fields, training__max_steps="2"), tmp_path / "run")
    Image.new("RGB", (32, 32)).save(pictures / "more.png")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ProsminError, match=r"has 49 images, but had 48 when .* reached step 2\. .*another --out"):
        pretrain(tiny(**fields, training__max_steps="4"), run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    (pictures / "more.png").unlink()
    capsys.readouterr()
    pretrain(tiny(**fields, training__max_steps="4"), run)
    assert "warning" not in capsys.readouterr().err
    Image.effect_noise((32, 32), 50).convert("RGB").save(pictures / "07.png")
    pretrain(tiny(**fields, training__max_steps="6"), run)
    assert f"files of folder:{pictures} have changed since step 4" in capsys.readouterr().err


def test_another_configuration_is_refused_with_the_difference(undisturbed, tmp_path, tiny):
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    (run / "encoder.json").unlink()
    difference = r"optimizer\.lr: 0\.002 -> 0\.5"
    with pytest.raises(ProsminError, match=rf"{difference}\n.*leave the options out to continue that run"):
        pretrain(tiny(optimizer__lr="0.5"), run)


def test_a_run_that_is_refused_ends_its_connections(undisturbed, tmp_path, tiny, monkeypatch):
    """gloo's threads may else abort a process while Python ends, and its status would not be 1."""
    ends = []
    monkeypatch.setattr(processes.atexit, "register", ends.append)
    monkeypatch.setattr(processes.atexit, "unregister", lambda function: ends.clear())
    with pytest.raises(ProsminError, match="another configuration"):
        pretrain(tiny(optimizer__lr="0.5"), undisturbed)
    assert ends == [processes._disconnect]
    pretrain(tiny(training__max_steps="1"), tmp_path / "run")
    assert ends == [processes._disconnect]


def test_a_finished_run_has_nothing_to_continue(undisturbed, tmp_path, tiny, capsys):
    """Another configuration is a new run; what the sentence offers works."""
    with pytest.raises(ProsminError, match=r"training\.epochs: 1 -> 2\nMore epochs.* make a new run") as refused:
        pretrain(tiny(training__epochs="2"), undisturbed)
    assert "continue" not in str(refused.value)
    weights = str(undisturbed / "encoder.safetensors")
    assert f"`--backbone.weights {weights}` starts it" in str(refused.value)
    pretrain(tiny(training__epochs="2", training__max_steps="1", backbone__weights=weights), tmp_path / "longer")
    assert "tensors of encoder.safetensors, an encoder of prosmin" in capsys.readouterr().out
    with pytest.raises(ProsminError, match=r"with --out\.$"):  # its weights fit no other network
        pretrain(tiny(backbone__name="resnet14_cifar"), undisturbed)


@pytest.fixture
def forty(tmp_path):
    """Fields of a run on 40 images."""
    from PIL import Image

    for i in range(40):
        Image.new("RGB", (8, 8), (6 * i, 2 * i, 255 - i)).save(tmp_path / f"{i:02d}.png")
    return {"data__spec": f"folder:{tmp_path}", "views__global_size": "8", "views__local": "0"}


def test_steps_are_counted_as_they_are_taken(tmp_path, tiny, capsys, forty):
    small = forty | {"training__batch_size": "40"}
    pretrain(tiny(**small, training__epochs="2", training__max_steps="1"), tmp_path / "run")
    said = capsys.readouterr().out
    assert said.startswith("40 images, 1 step per epoch, 1 in total (limited by training.max_steps)\nstep 1/1 ")
    assert "; 1 step, encoder in " in said
    assert "\n1 step is too few to learn useful features" in said
    pretrain(tiny(**small | {"training__max_steps": "null", "training__batch_size": "20"}), tmp_path / "whole")
    said = capsys.readouterr().out
    assert said.startswith("40 images, 2 steps per epoch, 2 in total\n")
    assert "\n2 steps are too few" in said


def test_epochs_that_end_before_max_steps_say_so(tmp_path, tiny, capsys, forty):
    pretrain(tiny(**forty, training__batch_size="20", training__max_steps="5"), tmp_path / "run")
    said = capsys.readouterr().out.partition("\n")[0]
    assert said.endswith(", 2 in total, fewer than training.max_steps 5; --training.epochs 3 makes 6")


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"epochs": "1", "max_steps": "null"}, "--training.epochs 500 makes 1000, with another --out."),
        (
            {"epochs": "1", "max_steps": "1"},
            "--training.epochs 500 makes 1000, with another --out and without --training.max_steps.",
        ),
        ({"epochs": "100", "max_steps": "1"}, "the same command with --training.max_steps null continues to 200."),
    ],
)
def test_a_short_run_says_how_to_make_a_longer_one(tmp_path, tiny, capsys, forty, fields, hint):
    """The 40 images make two steps an epoch."""
    fields = {f"training__{name}": value for name, value in fields.items()}
    pretrain(tiny(**forty, training__batch_size="20", **fields), tmp_path / "run")
    assert capsys.readouterr().out.rstrip().endswith(hint)


def test_a_folder_of_other_files_is_left_alone(tmp_path, tiny):
    for i in range(7):
        (tmp_path / f"{i}.jpg").write_bytes(b"mine")
    before = sorted(tmp_path.iterdir())
    shown = r"0\.jpg, 1\.jpg, 2\.jpg, 3\.jpg, 4\.jpg and 2 more\. Give a new or empty folder"
    with pytest.raises(ProsminError, match=rf"is not a run folder and not empty: it contains {shown}"):
        pretrain(tiny(), tmp_path)
    assert sorted(tmp_path.iterdir()) == before
    for path in before:
        path.unlink()
    (tmp_path / "checkpoints" / "step-00000002").mkdir(parents=True)
    with pytest.raises(ProsminError, match=r"has checkpoints but no config\.yaml"):
        pretrain(tiny(), tmp_path)


def test_a_folder_that_was_made_for_the_run_is_taken(tmp_path, tiny):
    (tmp_path / ".gitkeep").write_text("")
    (tmp_path / "slurm-17.out").write_text("")
    pretrain(tiny(training__max_steps="1"), tmp_path)
    assert (tmp_path / "encoder.json").is_file()


def test_too_few_pictures_are_refused(tmp_path, tiny):
    with pytest.raises(ProsminError, match=r"fewer than training\.batch_size 99999"):
        pretrain(tiny(training__batch_size="99999"), tmp_path / "run")


@pytest.fixture
def poison(monkeypatch):
    """A function that makes the losses of some images of a step infinite."""
    from prosmin.methods.prosmin import ProSMIN

    score = ProSMIN.score

    def into(step, pictures):
        def poisoned(self, mean, scale, target, draws):
            losses = score(self, mean, scale, target, draws)
            return (
                torch.where(torch.arange(len(losses)) < pictures, losses / 0.0, losses)
                if draws.step == step
                else losses
            )

        monkeypatch.setattr(ProSMIN, "score", poisoned)

    return into


def test_a_loss_that_is_not_finite_stops_before_the_update(tmp_path, tiny, poison, capsys):
    poison(step=4, pictures=1)  # counted from 0
    run = tmp_path / "run"
    words = (
        r"Step 5 was not applied: its loss is not finite for 1 image: [^,]+\. The checkpoint step-00000004 is intact\."
    )
    with pytest.raises(ProsminError, match=words):
        pretrain(tiny(), run)
    assert "step 4/6" in capsys.readouterr().out.splitlines()[-1]  # the one before it
    checkpoint, damaged = checkpoints.load_newest(run / "checkpoints")
    assert checkpoint.step == 4
    assert not damaged
    assert all(bool(torch.isfinite(t).all()) for t in checkpoint.model.values())


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({}, "Lower optimizer.lr or optimizer.clip: a new run, which needs another --out."),
        (
            {"compute__precision": "bf16-mixed", "optimizer__clip": "null"},
            "Lower optimizer.lr or set optimizer.clip: a new run, which needs another --out. "
            "Or continue this run with --compute.precision 32-true.",
        ),
    ],
)
def test_advice_on_a_loss_that_is_not_finite_fits_the_run(tmp_path, tiny, poison, fields, advice):
    poison(step=0, pictures=16)
    with pytest.raises(ProsminError) as stopped:
        pretrain(tiny(**fields), tmp_path / "run")
    said = str(stopped.value)
    assert "not finite for 16 images: " in said
    assert said.endswith(f" and 11 more. No checkpoint was written before it. {advice}")


def test_a_checkpoint_on_its_way_counts_when_a_run_breaks(tmp_path, tiny, monkeypatch, poison):
    """Step 2 is not finite while step 2's checkpoint, of the steps 0 and 1, is being written."""
    poison(step=2, pictures=16)
    breaking, write = threading.Event(), checkpoints.write
    refuse = logbook.stop_if_not_finite

    def noticed(*arguments, advice):
        def told():
            breaking.set()
            return advice()

        return refuse(*arguments, advice=told)

    def slow(folder, taken, *, keep):
        assert breaking.wait(timeout=60)
        return write(folder, taken, keep=keep)

    monkeypatch.setattr(logbook, "stop_if_not_finite", noticed)
    monkeypatch.setattr(checkpoints, "write", slow)
    with pytest.raises(ProsminError, match="The checkpoint step-00000002 is intact"):
        pretrain(tiny(training__checkpoint_every="2"), tmp_path / "run")


def test_a_run_that_unreadable_pictures_stopped_goes_on_as_its_sentence_says(tmp_path, tiny):
    """They are found while it runs; allowing more of them is not another run."""
    from PIL import Image

    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for i in range(48):
        Image.new("RGB", (32, 32), (5 * i, 2 * i, 255 - i)).save(pictures / f"{i:02d}.png")
    (pictures / "20.png").write_bytes(b"no image")
    fields = {"data__spec": f"folder:{pictures}", "compute__resident_gib": "0", "training__batch_size": "16"}
    with pytest.raises(ProsminError, match=r"1 of 48 .*or allow more with --data\.max_bad SHARE"):
        pretrain(tiny(**fields), tmp_path / "run")
    run = pretrain(tiny(**fields, data__max_bad="0.05"), tmp_path / "run")
    assert metrics(run)[-1]["bad_pictures"] == 1


def test_two_troubles_are_both_told(tmp_path, tiny, monkeypatch, poison, capsys):
    """A disk that is full by step 2, a loss that is no number in step 2, and images that end the run after it."""

    def full(*arguments):
        raise OSError(28, "No space left on device")

    poison(step=2, pictures=16)
    monkeypatch.setattr(checkpoints, "save_file", full)
    monkeypatch.setattr(saving.Saver, "check", lambda saver: None)  # it is not known yet when step 2 is made
    with pytest.raises(ProsminError, match=r"(?s)not finite for 16 images.*step 2 cannot be written.*No space left"):
        pretrain(tiny(), tmp_path / "run")

    def broken(*arguments, **options):
        raise ProsminError("something else")

    monkeypatch.setattr(logbook, "stop_if_not_finite", lambda taken, *a, **k: broken() if taken[0][0] == 2 else None)
    with pytest.raises(ProsminError, match=r"^something else$"):
        pretrain(tiny(), tmp_path / "other")
    assert "warning: The checkpoint of step 2 cannot be written" in capsys.readouterr().err


def test_what_a_killed_process_had_half_written_is_removed(tmp_path, tiny):
    """Also where no later step has its name: one by the clock comes at another step the next time."""
    run = pretrain(tiny(training__max_steps="2"), tmp_path / "run")
    half = run / "checkpoints" / ".step-00000003.part"
    half.mkdir()
    (half / "model.safetensors").write_bytes(bytes(8))
    pretrain(tiny(), run)
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["step-00000004", "step-00000006"]


def test_a_full_disk_leaves_the_earlier_checkpoint_whole(tmp_path, tiny, monkeypatch):
    run = tmp_path / "run"
    pretrain(tiny(training__max_steps="2"), run)
    real = checkpoints.save_file

    def full(tensors, path):
        if "optimizer" in str(path):
            raise OSError(28, "No space left on device")
        real(tensors, path)

    monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(ProsminError, match=r"step 4 cannot be written.*No space left.*step-00000002 is intact"):
        pretrain(tiny(), run)
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step-00000002"]


def test_the_encoder_of_a_run_loads_and_refuses_a_changed_file(undisturbed, tmp_path):
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    encoder = load(undisturbed)
    features, mean, scale = encoder(images)
    assert (features.shape, mean.shape, scale.shape) == ((3, 64), (3, 24), (3, 24))
    assert encoder.uncertainty(images).shape == (3,)
    with pytest.raises(ProsminError, match="fit_reference"):
        encoder.ood_score(images)
    with pytest.raises(ProsminError, match=r"uint8 \(N, 3, H, W\)"):
        encoder(images.float())
    copy = tmp_path / "copy"
    shutil.copytree(undisturbed, copy)
    _flip(copy / "encoder.safetensors")
    with pytest.raises(ProsminError, match="does not fit its card"):
        load(copy)
    with pytest.raises(ProsminError, match="not a run folder"):
        load(tmp_path / "nothing")
