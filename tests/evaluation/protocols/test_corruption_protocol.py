"""The protocol corruption: its numbers by hand, where its images come from, what it says about itself."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from PIL import Image

from prosmin.data.corruptions.generate import corrupt
from prosmin.data.corruptions.parameters import COMMON, EXTRA, SEVERITIES, parameters_of
from prosmin.data.image_sets import Pictures, load_pictures
from prosmin.encoder import set_statistics, untrained
from prosmin.errors import ProsminError, UsageError
from prosmin.evaluation import corrupted
from prosmin.evaluation.context import Context
from prosmin.evaluation.metrics.calibration import classification_metrics
from prosmin.evaluation.metrics.corruption_error import (
    ALEXNET,
    ALEXNET_CLEAN,
    mean_corruption_error,
    relative_mean_corruption_error,
)
from prosmin.evaluation.options import Options, as_arguments, read_by, read_options
from prosmin.evaluation.protocols import corruption, linear


@pytest.fixture(scope="module")
def sets():
    train, test = load_pictures("photos@train"), load_pictures("photos@test")
    return {
        "train": train.subset(torch.arange(0, len(train), 12)),
        "test": test.subset(torch.arange(0, len(test), 8)),
    }


@pytest.fixture
def context(sets, tiny):
    encoder = set_statistics(untrained(tiny()), sets["train"])

    def build(**options) -> Context:
        return Context(encoder, sets, options=Options(**options))

    return build


def test_mean_corruption_error_by_hand():
    errors = dict.fromkeys(COMMON, 0.5)
    # 0.5 / 15 * (1/.886428 + 1/.894468 + 1/.922640 + ... + 1/.606500), added up with a pocket calculator's digits
    inverses = (
        1.128123, 1.117983, 1.083846, 1.219691, 1.210261, 1.272349, 1.252568, 1.153647,
        1.209816, 1.220518, 1.771190, 1.172053, 1.547854, 1.393068, 1.648805,
    )  # fmt: skip
    assert mean_corruption_error(errors) == pytest.approx(0.5 * sum(inverses) / 15, rel=1e-6)
    assert mean_corruption_error(errors) == pytest.approx(0.6467257, rel=1e-6)
    two = errors | {"gaussian_noise": 0.886428 / 2, "fog": 0.819324 * 2}
    change = (0.5 - 0.5 * 1.128123 + 2 - 0.5 * 1.220518) / 15
    assert mean_corruption_error(two) == pytest.approx(0.6467257 + change, rel=1e-6)


def test_alexnet_itself_has_one():
    assert mean_corruption_error(ALEXNET) == pytest.approx(1.0)
    assert relative_mean_corruption_error(ALEXNET, ALEXNET_CLEAN) == pytest.approx(1.0)
    # An encoder that loses half as much as AlexNet everywhere, from whatever clean error.
    half = {name: 0.2 + (error - ALEXNET_CLEAN) / 2 for name, error in ALEXNET.items()}
    assert relative_mean_corruption_error(half, 0.2) == pytest.approx(0.5)
    with pytest.raises(ProsminError, match="fifteen corruptions; missing: fog"):
        mean_corruption_error({name: 0.1 for name in COMMON if name != "fog"})


def _cells(names, severities):
    return {
        (name, severity): {"error": 0.1 * severity + 0.01 * i, "nll": float(severity), "ece": 0.01 * i}
        for i, name in enumerate(names)
        for severity in severities
    }


def test_the_summary_by_hand():
    clean = {"error": 0.05, "nll": 0.5, "ece": 0.01}
    metrics = corruption.summary(_cells(COMMON + EXTRA, SEVERITIES), clean, imagenet=True)
    assert metrics["mean_error"] == pytest.approx(0.3 + 0.07)  # severities 1..5, places 0..14
    assert metrics["mean_error_severity_5"] == pytest.approx(0.5 + 0.07)
    assert metrics["nll_severity_3"] == pytest.approx(3.0)
    assert metrics["ece_severity_1"] == pytest.approx(0.07)
    assert metrics["mean_error_extra"] == pytest.approx(0.3 + 0.165)  # places 15..18
    assert metrics["clean_error"] == 0.05
    by_name = {name: 0.3 + 0.01 * i for i, name in enumerate(COMMON)}
    assert metrics["mce"] == pytest.approx(sum(by_name[n] / ALEXNET[n] for n in COMMON) / 15)
    assert metrics["relative_mce"] == pytest.approx(
        sum((by_name[n] - 0.05) / (ALEXNET[n] - 0.4348) for n in COMMON) / 15
    )


def test_alexnet_s_errors_are_used_for_all_of_imagenet_c_or_not_at_all():
    clean = {"error": 0.05, "nll": 0.5, "ece": 0.01}
    for names, severities, imagenet in (
        (COMMON, SEVERITIES, False),
        (COMMON[1:], SEVERITIES, True),
        (COMMON, (1, 3, 5), True),
        (EXTRA, SEVERITIES, True),
    ):
        metrics = corruption.summary(_cells(names, severities), clean, imagenet=imagenet)
        assert not {"mce", "relative_mce"} & set(metrics)
        assert ("mean_error" in metrics) == (names != EXTRA)


def test_measures_are_those_of_the_linear_protocol():
    random = torch.Generator().manual_seed(0)
    probabilities = torch.softmax(3 * torch.randn(500, 7, generator=random), dim=1)
    labels = torch.randint(7, (500,), generator=random)
    ours, theirs = corruption.measure(probabilities, labels), classification_metrics(probabilities, labels)
    assert ours["error"] == pytest.approx(1 - theirs["top1"])
    assert ours["nll"] == pytest.approx(theirs["nll"])
    assert ours["ece"] == pytest.approx(theirs["ece"])


def test_the_probe_of_the_linear_protocol_is_not_fitted_again(context, monkeypatch):
    here = context(corruptions=("contrast",), severities=(1,))
    clean = linear.run(here).metrics
    monkeypatch.setattr("prosmin.evaluation.context.linear_probe", lambda *_, **__: pytest.fail("a second fit"))
    assert corruption.run(here).metrics["clean_nll"] == pytest.approx(clean["nll"], rel=1e-12)


def test_a_run_names_all_it_did_and_repeats_itself(context):
    chosen = {"corruptions": ("contrast", "gaussian_noise", "spatter"), "severities": (5, 1)}
    result = corruption.run(context(**chosen))
    table = result.curves["corruption"]
    assert table["names"] == ["contrast", "gaussian_noise", "spatter"]
    assert table["severities"] == [1, 5]
    assert np.array(table["error"]).shape == np.array(table["ece"]).shape == (3, 2)
    common, extra = np.array(table["error"])[:2], np.array(table["error"])[2:]
    assert result.metrics["mean_error"] == pytest.approx(common.mean())
    assert result.metrics["mean_error_severity_5"] == pytest.approx(common[:, 1].mean())
    assert result.metrics["mean_error_extra"] == pytest.approx(extra.mean())
    assert table["nll"][0][0] < table["nll"][0][1]  # three twentieths of the contrast hurt more than three quarters
    assert result.metrics["clean_error"] == table["clean"]["error"] < result.metrics["mean_error"]
    assert result.settings["source"] == "generated"
    assert result.settings["generators"] == dict.fromkeys(("contrast", "gaussian_noise", "spatter"), "torch")
    assert result.settings["parameters"] == "cifar-10-c"  # of images of 32 pixels
    assert result.settings["left_out"] == {}
    json.dumps([result.metrics, result.settings, result.curves])
    again = corruption.run(context(**chosen))
    assert again.metrics == result.metrics


def test_stored_sets_give_what_generating_gives(context, sets, tmp_path):
    """The same corrupted images through CIFAR-10-C's files, ImageNet-C's folders and memory."""
    names, severities = ("fog", "pixelate"), (2, 4)
    test = sets["test"]
    arrays, folders = tmp_path / "arrays", tmp_path / "folders"
    arrays.mkdir()
    for name in names:
        made = [corrupt(test, name, severity, seed=0, parameters="cifar-10-c") for severity in SEVERITIES]
        np.save(arrays / f"{name}.npy", np.concatenate([m.images.permute(0, 2, 3, 1).numpy() for m in made]))
        for severity in severities:
            _write_folders(made[severity - 1], folders / name / str(severity))
    for name in names:
        (folders / name / "1").mkdir(exist_ok=True)
    np.save(arrays / "labels.npy", np.tile(test.labels.numpy(), 5))
    generated = corruption.run(context(corruptions=names, severities=severities))
    for root, layout in ((arrays, "CIFAR-C"), (folders, "ImageNet-C")):
        stored = corruption.run(
            context(corrupted=f"folder:{root}", corruptions=(*names, "frost"), severities=severities)
        )
        assert stored.settings["layout"] == layout
        assert stored.settings["generators"] == dict.fromkeys(names, "stored")
        assert stored.settings["left_out"] == {"frost": "not in the set"}
        assert stored.metrics == pytest.approx(generated.metrics, abs=1e-6)  # folders have another order
    with pytest.raises(ProsminError, match=r"snow; it has: fog, pixelate"):
        corruption.run(context(corrupted=f"folder:{arrays}", corruptions=("snow",)))


def _write_folders(pictures: Pictures, root) -> None:
    """Without loss: what is inside a file counts, not how it is called."""
    for name in pictures.classes:
        (root / name).mkdir(parents=True)
    for i, (image, label) in enumerate(zip(pictures.images, pictures.labels.tolist(), strict=True)):
        path = root / pictures.classes[label] / f"{i}.JPEG"
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path, "PNG")


def _enlarged(pictures: Pictures, factor: int) -> Pictures:
    images = pictures.images.repeat_interleave(factor, dim=2).repeat_interleave(factor, dim=3)
    return dataclasses.replace(pictures, images=images, sizes=factor * pictures.sizes)


def test_a_cut_picture_is_not_cut_again(tiny, sets, monkeypatch):
    """With a corruption that does nothing, the framed images are as good as the originals, but for rounding."""
    config = tiny()
    config = dataclasses.replace(config, views=dataclasses.replace(config.views, crop_share=0.5))
    large = {name: _enlarged(pictures, 3) for name, pictures in sets.items()}  # 96 px, seen 48, reduced to 32
    encoder = set_statistics(untrained(config), large["train"])
    monkeypatch.setattr(corrupted, "corrupt", lambda pictures, name, severity, **rest: pictures)
    context = Context(encoder, large, options=Options(corruptions=("fog",), severities=(1,)))
    result = corruption.run(context)
    assert result.settings["pixels"] == 32
    assert result.metrics["mean_nll"] == pytest.approx(result.metrics["clean_nll"], rel=0.01)
    assert encoder.config.views.crop_share == 0.5  # the encoder itself is left alone
    monkeypatch.setattr(corruption, "seeing_all", lambda encoder: encoder)
    assert corruption.run(context).metrics["mean_nll"] > 1.1 * result.metrics["clean_nll"]


def _asked_for(context: Context, monkeypatch) -> tuple[str, corrupted.Corrupted]:
    """The parameters that images are made with, and what is said of them."""
    asked = []

    def listen(pictures, name, severity, **rest):
        asked.append(rest["parameters"])
        return pictures

    monkeypatch.setattr(corrupted, "corrupt", listen)
    opened = corrupted.open_corrupted(context)
    opened.read("fog", 1, lambda done: None)
    return asked[0], opened


@pytest.mark.parametrize(
    ("size", "choice", "used"),
    [
        (32, "auto", "cifar-10-c"),
        (64, "auto", "cifar-10-c"),
        (65, "auto", "imagenet-c"),
        (32, "imagenet-c", "imagenet-c"),
        (65, "cifar-10-c", "cifar-10-c"),
    ],
)
def test_severities_are_by_what_the_encoder_sees_or_as_chosen(size, choice, used, tiny, sets, monkeypatch):
    config = tiny()
    config = dataclasses.replace(config, views=dataclasses.replace(config.views, global_size=size))
    few = {name: _enlarged(pictures.subset(torch.arange(4)), 3) for name, pictures in sets.items()}  # 96 px
    context = Context(untrained(config), few, options=Options(corruption_parameters=choice))
    asked, opened = _asked_for(context, monkeypatch)
    assert asked == used
    assert (opened.settings["parameters"], opened.settings["pixels"]) == (used, size)


@pytest.mark.parametrize("choice", ["imagenet-c", "cifar-10-c", "auto"])
def test_alexnet_s_errors_are_never_those_of_generated_pictures(choice, context, monkeypatch):
    assert not _asked_for(context(corruption_parameters=choice), monkeypatch)[1].imagenet


def test_a_result_of_other_parameters_is_another_result():
    options = Options(corruption_parameters="imagenet-c")
    assert read_by(options, "corruption") != read_by(Options(), "corruption")
    assert read_by(options, "knn") == read_by(Options(), "knn")
    assert as_arguments(options, "corruption") == "--corruption-parameters imagenet-c"
    assert read_options({"corruption_parameters": "imagenet-c"}) == options


def test_parameters_are_known_by_the_name_they_had_once():
    assert parameters_of({"parameters": "ImageNet-C's, at the size the encoder sees"}) == "imagenet-c"
    assert parameters_of({"parameters": "cifar-10-c"}) == "cifar-10-c"
    assert parameters_of({"source": "stored"}) is None


def test_imagenet_c_s_severities_do_more_harm_at_32_pixels(context):
    chosen = {"corruptions": ("gaussian_noise", "contrast"), "severities": (1, 5)}
    mild, strong = (
        corruption.run(context(**chosen, corruption_parameters=parameters)).metrics
        for parameters in ("cifar-10-c", "imagenet-c")
    )
    assert mild["clean_error"] == strong["clean_error"]
    assert mild["mean_nll"] < strong["mean_nll"]


def test_the_reference_package_can_be_asked_for(context):
    pytest.importorskip("imagecorruptions")
    chosen = {"corruptions": ("brightness",), "severities": (5,), "corruption_generator": "imagecorruptions"}
    found = corruption.run(context(**chosen, corruption_parameters="imagenet-c"))
    assert found.settings["generators"] == {"brightness": "imagecorruptions"}
    assert found.settings["parameters"] == "imagenet-c"
    assert "imagecorruptions-imaug" in found.settings["versions"]
    # Brightness draws nothing: torch's version of it makes the same errors but for a grey level here and there.
    own = corruption.run(context(corruptions=("brightness",), severities=(5,), corruption_parameters="imagenet-c"))
    assert found.metrics["mean_nll"] == pytest.approx(own.metrics["mean_nll"], rel=1e-2)
    # Severities far stronger than those it would have had are never slipped in with it.
    with pytest.raises(UsageError, match=r"32 px .*cifar-10-c.*--corruption-parameters imagenet-c"):
        corrupted.check_corrupted(context(**chosen))


def test_what_would_stop_it_is_found_before(context, tiny, sets, tmp_path):
    corrupted.check_corrupted(context())
    small = dataclasses.replace(tiny(), views=dataclasses.replace(tiny().views, crop_share=0.75))
    with pytest.raises(ProsminError, match=r"24 x 24 pixels.* 32 pixels"):
        corrupted.check_corrupted(Context(untrained(small), sets))
    with pytest.raises(ProsminError, match=str(tmp_path)):
        corrupted.check_corrupted(context(corrupted=f"folder:{tmp_path}"))


def test_wrong_options_are_sentences():
    with pytest.raises(UsageError, match="'rain'"):
        Options(corruptions=("fog", "rain"))
    with pytest.raises(UsageError, match=r"\[0, 1\]"):
        Options(severities=(0, 1))
    with pytest.raises(UsageError, match="fog"):
        Options(corruptions=("fog", "fog"))
    with pytest.raises(UsageError, match=r"'cifar'.*auto, imagenet-c, cifar-10-c"):
        Options(corruption_parameters="cifar")
    with pytest.raises(UsageError, match=r"--corruption-parameters is .*--corrupted folder:x"):
        Options(corruption_parameters="imagenet-c", corrupted="folder:x")
    with pytest.raises(UsageError, match=r"--corruption-generator is .*--corrupted folder:x"):
        Options(corruption_generator="imagecorruptions", corrupted="folder:x")
    with pytest.raises(UsageError, match=r"'imagecorruptions'.*cifar-10-c.*torch"):
        Options(corruption_generator="imagecorruptions", corruption_parameters="cifar-10-c")
