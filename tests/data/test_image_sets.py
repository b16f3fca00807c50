"""Sets larger than memory: the same labels, features and results as from memory; only damaged images are left out."""

import dataclasses
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from coloured import COLOURS, coloured
from prosmin import config as configs
from prosmin.data import image_sets as module
from prosmin.data.image_sets import (
    Pictures,
    Streamed,
    in_memory,
    joined,
    load_pictures,
    open_pictures,
    pack,
    streamed,
    where_it_fits,
)
from prosmin.data.sources import open_source
from prosmin.encoder import PRECISIONS, Encoder, untrained
from prosmin.encoder.detectors import SURPRISES
from prosmin.errors import ProsminError
from prosmin.evaluation import run as suite
from prosmin.evaluation.batches import training_batches
from prosmin.evaluation.context import PIXELS, TRAINED, UNTRAINED, UNTRAINED_SET, Context, FeatureCache
from prosmin.evaluation.forecasts import BETWEEN_VIEWS, view_scores
from prosmin.evaluation.metrics.calibration import Predictions
from prosmin.evaluation.options import Options
from prosmin.evaluation.probes.finetune import Classifier, _predict
from prosmin.evaluation.protocols import transfer
from prosmin.training.pretrain import pretrain
from tiny_run import TINY

CLASSES = ("blue", "green", "red")
DAMAGED = 7  # the place of an image that cannot be read


def write_pictures(root, count, *, seed):
    """Images of three colours in class folders, of many sizes from 33 px on: any canvas is larger than most.

    Every fifth lies in a wrong folder: probes of classes that can be told apart without error take long to fit.
    """
    random = np.random.default_rng(seed)
    for i in range(count):
        label = i % 3
        height, width = random.integers(33, 60, 2)
        noise = random.integers(-70, 71, (height, width, 3))
        path = root / ("red", "green", "blue")[(label + (i % 5 == 0)) % 3] / f"{i:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((COLOURS[label].numpy() + noise).clip(0, 255).astype(np.uint8)).save(path)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streamed")
    for name, count in (("train", 210), ("val", 12), ("test", 45), ("strange", 20)):
        write_pictures(folder / name, count, seed=count)
    return folder


@pytest.fixture
def damaged(root, tmp_path):
    """The training images, one of them damaged."""
    files = sorted(root.glob("train/*/*"))
    for i, file in enumerate(files):
        path = tmp_path / "damaged" / file.parent.name / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no image" if i == DAMAGED else file.read_bytes())
    return f"folder:{tmp_path}/damaged"


def stream(spec: str) -> Streamed:
    pictures = open_pictures(spec, limit=1000)
    assert isinstance(pictures, Streamed)
    return pictures


class TestSet:
    def test_sets_that_fit_are_decoded_and_others_streamed(self, root):
        spec = f"folder:{root}/test"
        whole, large = open_pictures(spec), stream(spec)
        assert isinstance(whole, Pictures)
        assert (len(large), large.keys, large.classes, large.spec) == (45, whole.keys, CLASSES, spec)
        assert torch.equal(large.labels, whole.labels)
        assert [large.key(i) for i in (0, 44)] == [whole.keys[0], whole.keys[44]]
        assert torch.equal(in_memory(large).images, whole.images)

    def test_subsets_are_in_the_order_asked_for(self, root):
        spec = f"folder:{root}/test"
        order = torch.tensor([30, 2, 2, 17])
        some, same = in_memory(stream(spec).subset(order)), load_pictures(spec).subset(order)
        assert some.keys == same.keys
        assert torch.equal(some.labels, same.labels)
        for i, (height, width) in enumerate(same.sizes.tolist()):  # the canvas is that of the subset
            assert torch.equal(some.images[i, :, :height, :width], same.images[i, :, :height, :width])
        red = stream(spec).labels == 2
        assert stream(spec).subset(red).subset(torch.tensor([0])).keys == (load_pictures(spec).subset(red).keys[0],)

    def test_the_hash_depends_on_the_bytes(self, root, damaged):
        spec = f"folder:{root}/train"
        assert stream(spec).content_hash() == stream(spec).content_hash() != stream(damaged).content_hash()
        order = torch.arange(209, -1, -1)
        assert stream(spec).subset(order).content_hash() != stream(spec).content_hash()
        patches = open_source("photos@ood")  # tensors, not bytes
        assert streamed([patches]).content_hash() == streamed([patches]).content_hash()

    def test_several_sources_are_one_set(self, root):
        sources = [open_source(f"folder:{root}/{name}") for name in ("val", "test")]
        both = streamed(sources)
        parts = [load_pictures(source.spec) for source in sources]
        whole = joined(parts)
        assert both.spec == whole.spec == f"folder:{root}/val + folder:{root}/test"
        assert both.keys == whole.keys
        assert torch.equal(both.labels, whole.labels)
        assert torch.equal(in_memory(both).sizes, whole.sizes)

    def test_decoded_sets_of_other_sizes_are_joined_pixel_by_pixel(self):
        small, large = coloured(3, side=8), coloured(4, side=16)
        whole = joined([small, large])
        assert whole.images.shape == (7, 3, 16, 16)
        assert torch.equal(whole.images[:3, :, :8, :8], small.images)
        assert not whole.images[:3, :, 8:].any()
        assert torch.equal(whole.images[3:], large.images)
        assert whole.sizes.tolist() == [[8, 8]] * 3 + [[16, 16]] * 4
        assert whole.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
        assert joined([small, dataclasses.replace(large, labels=None)]).labels is None

    def test_images_that_do_not_fit_into_memory_are_named(self, root, monkeypatch):
        pictures = stream(f"folder:{root}/test")
        monkeypatch.setattr(module, "main_memory", lambda: 3000)
        assert where_it_fits(pictures) is pictures
        with pytest.raises(ProsminError, match=r"45 images of folder:.*/test"):
            in_memory(pictures)


class TestContext:
    def contexts(self, tiny, root, train, folder):
        """From memory and from streams, the latter with a cache."""
        encoder = untrained(tiny())
        encoder.batch_size = 32
        specs = {"train": train, "test": f"folder:{root}/test"}
        memory = Context(encoder, {name: open_pictures(spec) for name, spec in specs.items()})
        streams = {name: stream(spec) for name, spec in specs.items()}
        return memory, Context(encoder, streams, cache=FeatureCache(folder / "cache", "e" * 32))

    def test_features_scores_and_labels_equal_those_from_memory(self, tiny, root, damaged, tmp_path, capsys):
        """The batches contain the same images; with more padding only sums of zeros differ."""
        memory, large = self.contexts(tiny, root, damaged, tmp_path)
        assert len(memory.sets["train"]) == 209
        large.settle()
        broken = memory.sets["train"].bad[0].partition(": ")[0]
        printed = capsys.readouterr().err
        assert printed.startswith(f"unreadable images left out of {damaged}: 1\n  {broken}\n")
        assert large.sets["train"].keys == memory.sets["train"].keys
        assert torch.equal(large.labels("train"), memory.labels("train"))
        assert torch.equal(large.held_out, memory.held_out)
        for subject in (TRAINED, UNTRAINED, UNTRAINED_SET, PIXELS):
            for name in ("train", "test"):
                got, expected = large.features(name, subject), memory.features(name, subject)
                # The damaged image leaves its batch one short, and products of another size round differently.
                torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-4)
        torch.testing.assert_close(large.uncertainty("train"), memory.uncertainty("train"), atol=1e-5, rtol=1e-5)
        for name, scores in large.view_scores("test").items():
            expected = memory.view_scores("test")[name]
            atol = 1e-3 * expected.abs().mean().item()  # an untrained whitened head enlarges rounding
            torch.testing.assert_close(scores, expected, atol=atol, rtol=1e-3)

    def test_the_next_command_reads_the_cache(self, tiny, root, damaged, tmp_path, monkeypatch):
        _, first = self.contexts(tiny, root, damaged, tmp_path)
        first.settle()
        _, second = self.contexts(tiny, root, damaged, tmp_path)
        monkeypatch.setattr(Encoder, "summarise", lambda self, batch: pytest.fail("embedded again"))
        second.settle()
        assert second.sets["train"].keys == first.sets["train"].keys
        assert torch.equal(second.features("train"), first.features("train"))

    def test_too_many_damaged_images_are_an_error(self, tiny, root, damaged, tmp_path):
        _, large = self.contexts(tiny, root, damaged, tmp_path)
        large.sets["train"] = dataclasses.replace(large.sets["train"], max_bad=0.001)
        with pytest.raises(ProsminError, match=r"At least 1 of 210 images in .*damaged cannot be read"):
            large.settle()
        assert not (tmp_path / "cache").exists()

    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_scores_of_views_equal_those_of_the_encoder(self, tiny, precision):
        encoder, pictures = untrained(tiny()).to("cpu", precision=precision), coloured(40, side=32)
        encoder.batch_size = 16
        views = torch.stack([view.mean for view in encoder.views(pictures, seed=3)])
        got = view_scores(encoder, pictures, seed=3)
        torch.testing.assert_close(got[BETWEEN_VIEWS], views.var(0).mean(1), atol=0, rtol=1e-4)  # they are small
        assert {"mean_log_scale", "total_variance", "cross_view_energy", *SURPRISES} < set(got)
        fewer = view_scores(encoder, pictures, seed=3, count=3)
        torch.testing.assert_close(fewer[BETWEEN_VIEWS], views[:3].var(0).mean(1), atol=0, rtol=1e-4)


def test_training_sees_the_same_views_and_labels(tiny, root):
    spec, views = f"folder:{root}/val", tiny().views
    settings = {"size": 5, "epochs": 2, "seed": 1, "device": torch.device("cpu")}
    whole = training_batches(load_pictures(spec), views, **settings)
    large = training_batches(stream(spec), views, **settings)
    steps = 0
    for a, b in zip(whole, large, strict=True):
        assert a.step == b.step == steps
        assert torch.equal(a.index, b.index)
        torch.testing.assert_close(a.views, b.views, atol=1e-5, rtol=1e-5)
        steps += 1
    assert steps == 4


def test_predictions_keep_the_order(tiny, root):
    spec, encoder = f"folder:{root}/test", untrained(tiny())
    network = Classifier(encoder.method.get_submodule("online.backbone"), 3)
    torch.nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(0))
    expected = _predict(network, load_pictures(spec), encoder)
    torch.testing.assert_close(_predict(network, stream(spec), encoder), expected, atol=1e-5, rtol=1e-4)


class TestProtocols:
    def test_all_results_equal_those_from_memory(self, root, tmp_path, monkeypatch):
        run = pretrain(configs.resolve(recipe="demo", overrides=TINY), tmp_path / "run")
        options = Options(draws=1, linear_epochs=1, corruptions=("contrast", "pixelate"), severities=(2,))
        protocols = ["knn", "linear", "linear-paper", "lowshot", "ood", "corruption", "uncertainty", "pictures"]

        def measure():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                return suite.evaluate(
                    run,
                    protocols=protocols,
                    data=f"folder:{root}",
                    ood=[f"folder:{root}/strange"],
                    options=options,
                    again=True,
                )

        expected = measure()
        monkeypatch.setattr(suite, "memory_limit", lambda: 1000)
        opened = []
        monkeypatch.setattr(
            suite, "open_pictures", lambda spec, **given: opened.append(open_pictures(spec, **given)) or opened[-1]
        )
        got = measure()
        assert [type(pictures) for pictures in opened] == [Streamed] * 3
        for name in protocols:
            assert got[name]["settings"] == expected[name]["settings"], name
            assert got[name]["metrics"] == pytest.approx(expected[name]["metrics"], abs=2e-3), name

    @pytest.mark.parametrize("streams", [False, True])
    def test_transfer_learns_from_train_and_val_as_they_are(self, tiny, root, damaged, tmp_path, monkeypatch, streams):
        for name in ("val", "test"):
            (tmp_path / "set" / name).parent.mkdir(exist_ok=True)
            (tmp_path / "set" / name).symlink_to(root / name)
        (tmp_path / "set/train").symlink_to(tmp_path / "damaged")
        seen = []

        def fake(encoder, train, test, *, classes, seed, epochs):
            seen.append((train, test))
            return Predictions(logits=torch.eye(3)[test.labels], temperature=1.0, settings={})

        monkeypatch.setattr(transfer, "fine_tune", fake)
        if streams:
            monkeypatch.setattr(transfer, "open_pictures", lambda spec, max_bad: stream(spec))
        spec = f"folder:{tmp_path}/set"
        result = transfer.run(Context(untrained(tiny()), {}, options=Options(transfer=(spec,))))
        ((train, test),) = seen
        assert isinstance(train, Streamed) == isinstance(test, Streamed) == streams
        expected = [load_pictures(f"{spec}@{name}") for name in ("train", "val")]
        assert train.keys == expected[0].keys + expected[1].keys  # without the damaged one
        assert torch.equal(train.labels, torch.cat([part.labels for part in expected]))
        assert result.settings[spec]["labels"] == 209 + 12
        assert result.metrics["top1"] == 1.0


def test_padding_and_sizes():
    images, sizes = pack([torch.full((3, 2, 5), 7, dtype=torch.uint8), torch.full((3, 4, 1), 9, dtype=torch.uint8)])
    assert images.shape == (2, 3, 4, 5)
    assert sizes.tolist() == [[2, 5], [4, 1]]
    assert images.sum() == 3 * (10 * 7 + 4 * 9)
    assert images[0, :, :2].min() == 7
    assert images[1, :, :, 0].min() == 9


def test_subset_and_device():
    pictures = load_pictures("photos@test")
    part = pictures.subset(torch.tensor([5, 3]))
    assert part.keys == (pictures.keys[5], pictures.keys[3])
    assert torch.equal(part.images[1], pictures.images[3])
    assert part.labels.tolist() == [pictures.labels[5], pictures.labels[3]]
    mask = pictures.labels == 2
    assert len(pictures.subset(mask)) == int(mask.sum())
    assert pictures.to("cpu").content_hash() == pictures.content_hash()


def test_hash_depends_on_the_content():
    pictures = load_pictures("photos@test")
    images = pictures.images.clone()
    images[-1, -1, -1, -1] ^= 1
    changed = pictures.__class__(**{**vars(pictures), "images": images})
    renamed = pictures.__class__(**{**vars(pictures), "spec": "other"})
    assert changed.content_hash() != pictures.content_hash()
    assert renamed.content_hash() == pictures.content_hash()
    assert pictures.subset(torch.arange(len(pictures)).flip(0)).content_hash() != pictures.content_hash()


def test_more_than_memory_is_refused(monkeypatch):
    monkeypatch.setattr("prosmin.data.image_sets.main_memory", lambda: 1_000_000)
    with pytest.raises(ProsminError, match="photos"):
        load_pictures("photos")
