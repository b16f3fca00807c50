"""A run: its files, that it continues to the same bits, its messages."""

import json
import math

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from timm.models import vision_transformer

from prosmin import config as configs
from prosmin.encoder import load
from prosmin.errors import ProsminError, UsageError
from prosmin.models import vit as tokens
from prosmin.training import pretrain as pretraining
from prosmin.training.pretrain import build, check_shares, pretrain
from tiny_methods import METHODS, tiny_draws, tiny_method, tiny_views
from tiny_run import assert_same_run, metrics


def read_config(run):
    return configs.build(configs.read_yaml(run / "config.yaml"))


def read_card(run):
    return json.loads((run / "encoder.json").read_text())


def test_files_of_a_run(finished, tiny):
    assert read_config(finished) == tiny()
    assert [p.name for p in sorted((finished / "checkpoints").iterdir())] == ["step-00000004", "step-00000006"]
    rows = metrics(finished)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    for name in ("loss", "lr", "grad_norm", "target_std", "feature_rank", "scale_mean", "scale_min", "scale_max"):
        assert all(isinstance(row[name], float) for row in rows), name
    assert read_card(finished)["step"] == 6
    assert read_card(finished)["hash"]
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in finished.rglob("*") if path.is_file()}
    assert set(modes.values()) == {modes["metrics.jsonl"]}, "all files follow the umask"


def test_stopped_and_continued_is_the_same_run(finished, train, tiny):
    train(training__max_steps="3")
    run = train()
    assert_same_run(finished, run)
    assert read_config(run) == tiny()
    train(training__max_steps="2")  # fewer steps than it has
    assert read_config(run) == tiny()


def test_max_steps_below_the_checkpoint_keeps_the_encoder_of_the_checkpoint(train):
    run = train(training__max_steps="4")
    (run / "encoder.json").unlink()  # as if it had been stopped at step 4
    train(training__max_steps="2")
    assert (read_card(run)["step"], read_card(run)["trained"]) == (4, 4)


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"prosmin"}))  # other tests train prosmin
def test_every_method_continues_to_the_same_bits(tmp_path, name):
    whole = pretrain(tiny_method(name), tmp_path / "whole")
    pretrain(tiny_method(name, training__max_steps="1"), tmp_path / "halves")
    halves = pretrain(tiny_method(name), tmp_path / "halves")
    assert_same_run(whole, halves)
    assert len(metrics(halves)) == 4
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    uncertainty = load(halves).forecast_uncertainty(images)
    assert uncertainty.shape == (5,)
    assert bool((uncertainty > 0).all())  # a variance between views
    assert torch.equal(load(halves).uncertainty(images), load(whole).uncertainty(images))  # against the same sample


def test_stochastic_depth_continues_to_the_same_bits(train):
    vit = {"backbone__name": "vit_tiny_patch16_224", "backbone__patch_size": "8", "backbone__width": "24"}
    vit |= {"backbone__depth": "2", "backbone__heads": "2", "backbone__drop_path": "0.5", "training__batch_size": "8"}
    whole = train("whole", **vit)
    train("halves", **vit, training__max_steps="3")
    assert_same_run(whole, train("halves", **vit))


def test_a_run_continues_in_another_precision(train):
    """Moments are then kept in the format of their parameters."""
    train(training__max_steps="2")
    run = train(training__max_steps="4", compute__precision="64-true")
    assert [row["step"] for row in metrics(run)] == [1, 2, 3, 4]
    assert all(row["loss"] < 100 for row in metrics(run))


COORDINATES = {"loss__norm": "coordinate", "loss__estimator": "ustat", "loss__samples": "4"}
GPU_CASES = {
    **{name: (name, {"vit": name != "dino"}) for name in METHODS},
    "resnet": ("prosmin", {}),
    "double": ("prosmin", {"compute__precision": "64-true"}),
    "not a graph": ("ibot", {"compute__graph": "false"}),
    "bf16": ("prosmin", {"vit": True, "compute__precision": "bf16-mixed"}),
    "coordinates": ("prosmin", COORDINATES),
    "pairs": ("prosmin", COORDINATES | {"loss__beta": "1.5"}),
    "blocks": ("ibot", {"compute__compile": "blocks", "compute__precision": "bf16-mixed"}),
    "whole": ("prosmin", {"compute__compile": "whole", "loss__identification": "0.5"}),
    "measured": ("mocov3", {"training__knn_every": "3", "training__knn_pictures": "300"}),
}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("name", "changes"), GPU_CASES.values(), ids=GPU_CASES)
def test_a_deterministic_run_on_a_gpu_continues_to_the_same_bits(tmp_path, name, changes):
    """Stopped before and after its step is recorded as a CUDA graph; the recorded steps are not the same ones."""
    asked = {"compute__deterministic": "true", "compute__graph": "true"} | changes
    settings = {"compute__accelerator": "cuda", "training__max_steps": "10"} | asked
    whole = pretrain(tiny_method(name, **settings), tmp_path / "whole")
    for steps in ("3", "9", "10"):
        parts = pretrain(tiny_method(name, **settings | {"training__max_steps": steps}), tmp_path / "parts")
    assert_same_run(whole, parts)
    assert len(metrics(parts)) == 10


def test_training_restores_the_matmul_precision(train, monkeypatch):
    """Training on a GPU uses TF32; an evaluation later in the same process must not."""
    prepare, before = pretraining.prepare, torch.get_float32_matmul_precision()

    def on_gpu(*arguments):
        torch.set_float32_matmul_precision("high")
        return prepare(*arguments)

    monkeypatch.setattr(pretraining, "prepare", on_gpu)
    train(training__max_steps="1")
    assert torch.get_float32_matmul_precision() == before != "high"


def test_a_finished_run_is_not_repeated(train, capsys):
    run = train(training__max_steps="1")
    before = (run / "encoder.safetensors").stat().st_mtime_ns
    capsys.readouterr()
    train(training__max_steps="1")
    printed = capsys.readouterr().out
    assert "finished already at step 1" in printed
    assert f"--training.max_steps null continues to {read_card(run)['steps']}" in printed
    assert (run / "encoder.safetensors").stat().st_mtime_ns == before


def test_a_run_interrupted_before_its_background_is_not_finished(finished, train, monkeypatch):
    """Otherwise the same command would say that it has finished, and its encoder would have other scores for ever."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pretraining, "store_background", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train()
    run = train()
    assert files(run) == files(finished)
    first, second = (load_file(each / "background.safetensors") for each in (finished, run))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)  # its metadata have no fixed order


def files(run):
    return sorted(str(path.relative_to(run)) for path in run.rglob("*"))


def test_a_run_continues_only_with_its_own_images(train, image_folder, capsys):
    """Another number of images is an error, since it changes the length; changed files are a warning."""
    images = image_folder(48)
    fields = {"data__spec": f"folder:{images}", "training__batch_size": "16", "training__epochs": "2"}
    run = train(**fields, training__max_steps="2")
    Image.new("RGB", (32, 32)).save(images / "more.png")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ProsminError, match=r"49 .*48 .*step 2.* --out"):
        train(**fields, training__max_steps="4")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    (images / "more.png").unlink()
    capsys.readouterr()
    train(**fields, training__max_steps="4")
    assert "warning" not in capsys.readouterr().err
    Image.effect_noise((32, 32), 50).convert("RGB").save(images / "07.png")
    train(**fields, training__max_steps="6")
    warning = capsys.readouterr().err
    assert f"folder:{images}" in warning
    assert "step 4" in warning


def test_a_run_stopped_by_unreadable_images_continues_if_more_are_allowed(train, image_folder):
    images = image_folder(48)
    (images / "20.png").write_bytes(b"not an image")
    fields = {"data__spec": f"folder:{images}", "compute__resident_gib": "0", "training__batch_size": "16"}
    with pytest.raises(ProsminError, match=r"1 of 48 [\s\S]*--data\.max_bad"):
        train(**fields)
    assert metrics(train(**fields, data__max_bad="0.05"))[-1]["bad_pictures"] == 1


@pytest.mark.parametrize(
    ("fields", "length", "hint"),
    [
        (
            {"batch_size": "40", "epochs": "2", "max_steps": "1"},
            "40 images, 1 step per epoch, 1 in total (limited by training.max_steps)",
            "--training.epochs 1000 makes 1000, with another --out and without --training.max_steps.",
        ),
        (
            {"max_steps": "null"},
            "40 images, 2 steps per epoch, 2 in total",
            "--training.epochs 500 makes 1000, with another --out.",
        ),
        (
            {"max_steps": "5"},
            "2 in total, fewer than training.max_steps 5; --training.epochs 3 makes 6",
            "with another --out.",
        ),
        ({"epochs": "100", "max_steps": "1"}, "training.max_steps", "--training.max_steps null continues to 200."),
    ],
)
def test_length_of_a_run_and_how_to_train_longer(train, image_folder, capsys, fields, length, hint):
    fields = {f"training__{name}": value for name, value in ({"batch_size": "20"} | fields).items()}
    spec = f"folder:{image_folder(40, size=8)}"
    run = train(**fields, data__spec=spec, views__global_size="8", views__local="0")
    printed = capsys.readouterr().out
    assert length in printed.partition("\n")[0]
    assert printed.rstrip().endswith(hint)
    done = read_card(run)["trained"]
    assert f"step {done}/{done} " in printed
    assert ("1 step is too few" if done == 1 else f"{done} steps are too few") in printed


def test_training_starts_from_given_weights(train, capsys):
    weights = train("first", training__max_steps="1") / "encoder.safetensors"
    fields = {"backbone__weights": str(weights), "optimizer__lr": "0", "training__seed": "1"}
    second = train("second", **fields, training__max_steps="1")
    assert str(weights) in capsys.readouterr().out
    one, two = load_file(weights), load_file(second / "encoder.safetensors")
    for name in one:
        if name.startswith("online.backbone") and "running" not in name and "num_batches" not in name:
            assert torch.equal(one[name], two[name]), name
            assert torch.equal(one[name], two[name.replace("online", "target", 1)]), name
    assert not torch.equal(one["predictor.mean.weight"], two["predictor.mean.weight"])
    weights.unlink()
    train("second", **fields)  # continues without the file
    with pytest.raises(ProsminError, match=r"encoder\.safetensors"):
        train("third", backbone__weights=str(weights))
    assert not (second.parent / "third").exists()


def test_given_weights_are_used_again_if_no_checkpoint_is_intact(finished, train, capsys):
    weights = str(finished / "encoder.safetensors")
    fields = {"backbone__weights": weights, "optimizer__lr": "0", "training__max_steps": "1"}
    run = train(**fields)
    first = load_file(run / "encoder.safetensors")
    (run / "checkpoints/step-00000001/model.safetensors").write_bytes(b"")
    (run / "encoder.json").unlink()
    train(**fields)
    second = load_file(run / "encoder.safetensors")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_encoder_of_a_run_loads_and_a_changed_file_is_refused(finished, unfinished):
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    encoder = load(finished)
    features, mean, scale = encoder(images)
    assert (features.shape, mean.shape, scale.shape) == ((3, 64), (3, 8), (3, 8))
    assert encoder.uncertainty(images).shape == (3,)
    with pytest.raises(ProsminError, match="fit_reference"):
        encoder.ood_score(images)
    with pytest.raises(ProsminError, match=r"uint8 \(N, 3, H, W\)"):
        encoder(images.float())
    (unfinished / "encoder.json").write_bytes((finished / "encoder.json").read_bytes())
    content = bytearray((finished / "encoder.safetensors").read_bytes())
    content[len(content) // 2] ^= 1
    (unfinished / "encoder.safetensors").write_bytes(content)
    with pytest.raises(ProsminError, match=r"encoder\.safetensors"):
        load(unfinished)
    with pytest.raises(ProsminError, match="nothing"):
        load(unfinished / "nothing")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"training__batch_size": "99999"}, r"training\.batch_size 99999"),
        # BatchNorm and the spread of one image are undefined.
        ({"training__batch_size": "1", "heads__dim": "1"}, r"training\.batch_size is 1, "),
        ({"training__batch_size": "16", "training__accumulate": "16"}, r"te 16 .*a multiple of 16, at least 32"),
        ({"training__batch_size": "32", "training__accumulate": "3"}, r"training\.accumulate 3 .*a multiple of 3"),
    ],
)
def test_batch_sizes_that_cannot_be_trained_are_refused(train, tmp_path, fields, words):
    with pytest.raises(ProsminError, match=words):
        train(**fields)
    assert not (tmp_path / "run").exists()


def test_two_images_per_process_are_enough(train, tiny):
    with pytest.raises(UsageError, match=r"training\.batch_size is 4, which 4 processes .*accumulate 1 "):
        check_shares(tiny(training__batch_size="4", heads__dim="4").training, processes=4)
    rows = metrics(train(training__batch_size="2", heads__dim="2", training__max_steps="2"))
    assert all(math.isfinite(value) for row in rows for value in row.values())


def test_parts_are_refused_if_the_loss_compares_images(tmp_path):
    for fields in ({"name": "mocov3"}, {"name": "prosmin", "loss__rule": "kernel", "loss__estimator": "ustat"}):
        with pytest.raises(UsageError, match=r"training\.accumulate is 2"):
            pretrain(tiny_method(**fields, training__accumulate="2"), tmp_path / "run")
        assert not (tmp_path / "run").exists()
    with pytest.warns(UserWarning, match="BatchNorm"):
        pretrain(tiny_method("prosmin", training__accumulate="2", training__max_steps="1"), tmp_path / "run")


def test_activation_checkpointing_gives_the_same_weights(tmp_path):
    settings = {"vit": True, "compute__precision": "64-true", "backbone__drop_path": "0.5"}
    plain = pretrain(tiny_method("prosmin", **settings), tmp_path / "plain")
    again = pretrain(tiny_method("prosmin", **settings, compute__checkpoint_activations="true"), tmp_path / "again")
    assert_same_run(plain, again)
    with pytest.raises(UsageError, match="checkpoint_activations"):  # not a ViT
        pretrain(tiny_method("prosmin", compute__checkpoint_activations="true"), tmp_path / "resnet")


@pytest.mark.parametrize("name", METHODS)
def test_activation_checkpointing_covers_all_online_views(name, monkeypatch):
    passes, plain = [], vision_transformer.checkpoint_seq

    def counted(blocks, x, **options):
        passes.append(len(x))
        return plain(blocks, x, **options)

    for module in (vision_transformer, tokens):
        monkeypatch.setattr(module, "checkpoint_seq", counted)
    config = tiny_method(name, vit=True, compute__checkpoint_activations="true")
    views = tiny_views(config)
    build(config)(views, tiny_draws())
    assert passes == [group.shape[0] * group.shape[1] for group in views.groups]
