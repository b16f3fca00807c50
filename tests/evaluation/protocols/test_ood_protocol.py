"""The ood protocol: groups of sets, sets of some of the classes, and scores from which all can be computed again."""

import dataclasses
import statistics

import pytest
import torch

from coloured import coloured
from prosmin.data.image_sets import Pictures
from prosmin.encoder import Encoder
from prosmin.errors import ProsminError, UsageError
from prosmin.evaluation.context import TRAINED, Context
from prosmin.evaluation.metrics.ranking import ood_metrics
from prosmin.evaluation.options import Options, as_arguments, read_options
from prosmin.evaluation.protocol import Result
from prosmin.evaluation.protocols import ood
from prosmin.methods import build_method
from tiny_methods import tiny_method


@pytest.fixture(scope="module")
def model() -> Encoder:
    config = tiny_method("prosmin")
    return Encoder(build_method(config), config)


def other(pictures: Pictures, *classes: str) -> Pictures:
    """The images under other classes, all of them of the first."""
    return dataclasses.replace(pictures, classes=classes, labels=torch.zeros(len(pictures), dtype=torch.int64))


def run(model: Encoder, *near: str, **strange: Pictures) -> Result:
    sets = {"train": coloured(60), "test": coloured(45, seed=1), **strange}
    context = Context(model, sets, ood=tuple(strange), options=Options(near=near))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Context, "subjects", (TRAINED, "raw pixels"))
        return ood.run(context)


def inverted(count: int, seed: int) -> Pictures:
    pictures = coloured(count, seed=seed)
    return dataclasses.replace(other(pictures, "strange"), images=255 - pictures.images)


def test_near_and_far_sets_are_averaged_apart(model: Encoder) -> None:
    sets = {"a": inverted(20, 2), "b": other(coloured(25, seed=3), "noise"), "c": inverted(30, 4)}
    found = run(model, "c", "a", **sets)
    assert found.settings["near"] == ["a", "c"]
    assert found.settings["far"] == ["b"]
    for score in found.sets["a"]:
        near = statistics.fmean(found.sets[name][score]["auroc"] for name in ("a", "c"))
        assert found.metrics[f"near_auroc_{score}"] == near
        assert found.metrics[f"far_auroc_{score}"] == found.sets["b"][score]["auroc"]
    assert found.metrics["near_auroc"] == found.metrics["near_auroc_knn_distance"]
    assert found.metrics["far_fpr_at_95_tpr_in"] == found.sets["b"]["knn_distance"]["fpr_at_95_tpr_in"]
    assert found.metrics["auroc"] == statistics.fmean(row["knn_distance"]["auroc"] for row in found.sets.values())
    assert found.metrics["near_auroc"] != found.metrics["far_auroc"]
    pixels = found.baselines["raw pixels"]
    assert pixels["auroc"] == pytest.approx((2 * pixels["near_auroc"] + pixels["far_auroc"]) / 3)


def test_distance_and_scale_are_added_in_units_of_training(model: Encoder) -> None:
    sets = {"train": coloured(60), "test": coloured(45, seed=1), "a": inverted(20, 2)}
    context = Context(model, sets, ood=("a",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Context, "subjects", (TRAINED, "raw pixels"))
        found = ood.run(context)
    scale = context.log_scale("train")
    bank = torch.nn.functional.normalize(context.features("train"), dim=1)
    distances = (2 - 2 * bank @ bank.T).clamp_min(0).sqrt().fill_diagonal_(0)
    chords = distances.sort(1).values[:, 2]  # k = 2, not itself
    for name, prefix in (("test", "in"), ("a", "out/a")):
        distance = torch.from_numpy(found.arrays[f"{prefix}/knn_distance"])
        expected = (distance - chords.mean()) / chords.std(correction=0)
        expected += (context.log_scale(name) - scale.mean()) / scale.std(correction=0)
        score = torch.from_numpy(found.arrays[f"{prefix}/distance_and_scale"])
        # Cosines near 1 lose digits in float32: 1e-7 of 1 - cosine is 3e-4 of a distance.
        torch.testing.assert_close(score, expected, rtol=0, atol=0.02)


def test_the_score_of_embed_is_measured_too(model: Encoder) -> None:
    found = run(model, a=inverted(20, 2))
    own = Encoder(model.method, model.config).fit_reference(coloured(60))
    for prefix, pictures in (("in", coloured(45, seed=1)), ("out/a", inverted(20, 2))):
        score = torch.from_numpy(found.arrays[f"{prefix}/{ood.EMBED}"])
        torch.testing.assert_close(score, own.ood_score(pictures), rtol=1e-3, atol=1e-3)
    assert found.settings["default_score"] == "knn_distance"
    assert "auroc" in found.sets["a"][ood.EMBED]


def test_without_near_sets_there_are_no_groups(model: Encoder) -> None:
    found = run(model, a=inverted(20, 2))
    assert not any(name.startswith(("near", "far")) for name in found.metrics)
    assert found.settings["in_distribution"] == "test"
    assert not {"near", "far", "in_distribution_of_sets"} & found.settings.keys()
    all_near = run(model, "a", a=inverted(20, 2))
    assert "near_auroc" in all_near.metrics
    assert "far_auroc" not in all_near.metrics


def test_a_near_set_that_was_not_given_is_named(model: Encoder) -> None:
    with pytest.raises(UsageError, match="--near names b; allowed: sets that --ood gives, here a"):
        run(model, "b", a=inverted(20, 2))


def test_the_option_is_read_and_written_as_a_list() -> None:
    options = read_options({"near": "folder:a, folder:b"})
    assert options.near == ("folder:a", "folder:b")
    assert as_arguments(options, "ood") == "--near folder:a,folder:b"
    assert as_arguments(options, "knn") == ""


def test_a_set_of_some_of_the_classes_is_held_against_test_pictures_of_these(model: Encoder) -> None:
    """As ImageNet-O, whose 200 classes are of ImageNet's thousand."""
    some = dataclasses.replace(inverted(20, 2), classes=("blue", "red"))
    found = run(model, some=some, all=inverted(20, 3))
    labels = coloured(45, seed=1).labels
    mask = torch.from_numpy(found.arrays["in_mask/some"])
    assert torch.equal(mask, labels != 1)  # red, green, blue: 0, 1, 2
    assert found.settings["in_distribution_of_sets"] == {"some": "the 30 test images of its 2 classes"}
    # Everything can be computed again from the scores that are kept.
    for name, inside in (("some", mask), ("all", torch.ones(45, dtype=torch.bool))):
        for score, row in found.sets[name].items():
            ins, outs = (torch.from_numpy(found.arrays[key]) for key in (f"in/{score}", f"out/{name}/{score}"))
            assert ood_metrics(ins[inside], outs) == row


@pytest.mark.parametrize(
    ("own", "test"),
    [
        (("red", "green", "blue"), ("red", "green", "blue")),  # all of them
        (("red", "strange"), ("red", "green", "blue")),  # others too
        ((), ("red", "green", "blue")),  # without classes
        (("0", "1"), ("0", "1", "2")),  # numbers are names of nothing
    ],
)
def test_other_sets_are_held_against_all_test_pictures(
    model: Encoder, own: tuple[str, ...], test: tuple[str, ...]
) -> None:
    strange = dataclasses.replace(coloured(10, seed=2), classes=own, labels=None if not own else torch.zeros(10).long())
    sets = {"test": dataclasses.replace(coloured(45, seed=1), classes=test), "a": strange}
    assert ood.of_its_classes(Context(model, sets, ood=("a",)), "a") is None


def test_a_set_of_one_picture_is_a_sentence(model: Encoder) -> None:
    with pytest.raises(ProsminError, match="2 or more images"):
        run(model, a=inverted(1, 2))
