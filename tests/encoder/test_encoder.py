"""The encoder a user loads: its reference, its results, and its use in programs."""

import json
import multiprocessing
import pickle
import threading

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from prosmin.data.views import typical_view
from prosmin.encoder import load, untrained
from prosmin.encoder.encoder import _suitable_batch
from prosmin.encoder.neighbourhood import Neighbourhood
from prosmin.encoder.neighbours import nearest
from prosmin.errors import ProsminError
from published_layouts import timm_weights
from tiny_methods import METHODS, tiny_method


@pytest.fixture(scope="module")
def places(tmp_path_factory, belonging):
    """A run, an encoder of timm, and each of them saved with a reference."""
    root = tmp_path_factory.mktemp("places")
    places = [untrained(tiny_method("prosmin")).save(root / "run"), f"timm:test_vit@{timm_weights(root)}"]
    return [*places, *(load(at).fit_reference(belonging).save(root / f"saved-{i}") for i, at in enumerate(places))]


def test_repr(encoder, tmp_path):
    text = "Encoder(method: prosmin, backbone: resnet8_cifar, step: 0, device: cpu, features: 64)"
    assert repr(encoder) == text
    card = json.loads((encoder.save(tmp_path / "saved") / "encoder.json").read_text())
    (tmp_path / "saved" / "encoder.json").write_text(json.dumps(card | {"step": 7}))
    assert repr(load(tmp_path / "saved", device="cpu")) == text.replace("step: 0", "step: 7")
    save_file(timm.create_model("test_vit", num_classes=0).state_dict(), tmp_path / "weights.safetensors")
    other = repr(load(f"timm:test_vit@{tmp_path / 'weights.safetensors'}", device="cpu"))
    assert other.startswith("Encoder(method: none of ours, backbone: test_vit, step: unknown, ")


def test_what_is_observed_of_the_typical_view(encoder, images):
    sizes = torch.tensor(images.shape[2:]).expand(len(images), 2)
    typical = typical_view(images, sizes, encoder.config.views)
    found = encoder.observe(images)
    torch.testing.assert_close(found, encoder.method.observe(typical), rtol=1e-4, atol=1e-5)
    assert found.shape == encoder(images).mean.shape
    with pytest.raises(ProsminError, match=r"prosmin calibrate.*method\.name prosmin"):
        untrained(tiny_method("dino")).observe(images)


class TestReference:
    def test_an_image_of_the_reference_is_not_its_own_neighbour(self, tmp_path, images, belonging):
        """In whatever form it comes, also after loading; copies in the reference change nothing."""
        encoder = untrained(tiny_method("prosmin")).fit_reference(belonging)
        features, new = (encoder.background.space(encoder.features(some)) for some in (belonging, images))
        similarities, _ = nearest(features, features, 4, exclude_self=True)  # of 12 images a third
        expected = (2 - 2 * similarities).sqrt().mean(1)
        # a distance is the root of 2 - 2 cosine, which keeps half of the digits near 0
        torch.testing.assert_close(encoder.ood_score(belonging), expected, rtol=1e-3, atol=1e-4)
        Image.fromarray(belonging[3].permute(1, 2, 0).numpy()).save(tmp_path / "x.png")
        for place in (encoder, load(encoder.save(tmp_path / "saved"), device="cpu")):
            torch.testing.assert_close(place.ood_score(tmp_path / "x.png")[0], expected[3], rtol=1e-3, atol=1e-4)
        similarities, _ = nearest(features, new, 4)
        torch.testing.assert_close(
            encoder.ood_score(images), (2 - 2 * similarities).sqrt().mean(1), rtol=1e-3, atol=1e-4
        )
        before = encoder.ood_score(belonging), encoder.uncertainty(images)
        encoder.fit_reference(belonging.repeat(3, 1, 1, 1))
        after = encoder.ood_score(belonging), encoder.uncertainty(images)
        torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-3)

    def test_uncertainty_is_that_of_the_reference(self, images, belonging):
        """An image of the reference is not its own neighbour; without a reference, the forecast's uncertainty."""
        encoder = untrained(tiny_method("prosmin"))
        assert torch.equal(encoder.uncertainty(images), encoder.forecast_uncertainty(images))
        before = encoder.scores
        encoder.fit_reference(belonging)
        known = Neighbourhood(
            features=encoder.features(belonging), space=encoder.background.space, groups=torch.arange(12)
        )
        for given, groups in ((images, None), (belonging, torch.arange(12))):
            expected = known.uncertainty(encoder.features(given), groups)
            torch.testing.assert_close(encoder.uncertainty(given), expected, rtol=1e-3, atol=1e-3)
        assert before.keys() == {"uncertainty"}
        assert encoder.scores.keys() == {"uncertainty", "ood_score"}
        assert encoder.scores["uncertainty"] != before["uncertainty"]
        assert "4 nearest reference" in encoder.scores["ood_score"]

    def test_a_few_images_may_be_unreadable(self, folder):
        (folder / "3.png").write_text("no image")
        for i in range(5, 12):
            Image.new("RGB", (40, 40), (20 * i, 0, 0)).save(folder / f"{i}.png")
        generous = untrained(tiny_method("prosmin", data__max_bad="0.2"))
        generous.fit_reference(folder)
        assert generous.ood_score(folder / "0.png").shape == (1,)
        with pytest.raises(ProsminError, match=r"1 of 12[^$]*0\.01[^$]*3\.png"):
            untrained(tiny_method("prosmin")).fit_reference(folder)

    def test_few_images_are_refused_and_the_reference_before_stays(self, belonging, folder):
        encoder = untrained(tiny_method("prosmin")).fit_reference(belonging[:10])
        expected = encoder.ood_score(belonging)
        for few, count in ((belonging[:9], 9), (folder, 5), (belonging[:1].repeat(20, 1, 1, 1), 1)):
            with pytest.raises(ProsminError, match=rf"{count} different readable images; allowed: 10 or more"):
                encoder.fit_reference(few)
        assert torch.equal(encoder.ood_score(belonging), expected)


@pytest.mark.parametrize("value", [0, -1, "a", 2.5, None, True])
def test_counts_are_integers(images, value):
    encoder = untrained(tiny_method("prosmin"))
    with pytest.raises(ProsminError, match=rf"batch size is {value!r}; allowed: .*1 or more"):
        encoder.batch_size = value
    if value is not True:
        with pytest.raises(ProsminError, match=rf"views is {value!r}; allowed: .*1 or more"):
            encoder.views(images, count=value)
    encoder.batch_size = np.int64(3)
    assert encoder.batch_size == 3


@pytest.mark.parametrize("device", ["gpu", f"cuda:{torch.cuda.device_count()}", None])
def test_an_unknown_device(encoder, device):
    with pytest.raises(ProsminError, match=rf"device '{device}'.*: cpu"):
        encoder.to(device)
    assert encoder.device.type == "cpu"


@pytest.mark.parametrize("method", METHODS)
def test_features_do_not_need_the_heads(method, images, belonging, monkeypatch):
    encoder = untrained(tiny_method(method))
    expected = encoder(images).features
    monkeypatch.setattr(encoder.method, "encode", None)
    assert torch.equal(encoder.features(images), expected)
    assert encoder.fit_reference(belonging).ood_score(images).shape == (5,)


def test_bf16(encoder, images):
    narrow = untrained(encoder.config).to("cpu", precision="bf16-mixed")
    found, expected = narrow.features(images), encoder.features(images)
    assert found.dtype == torch.float32
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)  # eight bits of mantissa through eight layers
    with pytest.raises(ProsminError, match=r"'16-true'.*32-true, bf16-mixed"):
        encoder.to("cpu", precision="16-true")


def test_results_can_be_trained_on_and_changed_in_place(encoder, images):
    """Inference tensors would refuse both."""
    found = [
        encoder.features(images),
        encoder.uncertainty(images),
        *encoder(images),
        *encoder.views(images, count=2)[0],
    ]
    for values in found:
        weight = torch.ones(values.shape[-1], requires_grad=True)
        (values * weight).square().mean().backward()
        assert weight.grad is not None
        values -= values.mean()


def test_batch_size_follows_the_view():
    sizes = [_suitable_batch(3 * side**2, torch.device("cpu")) for side in (32, 96, 224, 1024)]
    assert sizes == [128, 16, 16, 16]


class TestInPrograms:
    def test_it_can_be_pickled(self, places, images):
        for kind in (*map(load, places), untrained(tiny_method("dino"))):
            again = pickle.loads(pickle.dumps(kind))
            assert torch.equal(again.features(images), kind.features(images))
            assert torch.equal(again.untrained().features(images), kind.untrained().features(images))
            assert (again.card, again.config) == (kind.card, kind.config)
        for place in places[2:]:
            kind = load(place)
            assert torch.equal(pickle.loads(pickle.dumps(kind)).ood_score(images), kind.ood_score(images))

    def test_it_can_be_sent_to_a_spawned_process(self, encoder, images):
        with multiprocessing.get_context("spawn").Pool(1, torch.set_num_threads, (1,)) as pool:
            found = pool.apply(encoder.features, (images.numpy().transpose(0, 2, 3, 1),))
        torch.testing.assert_close(found, encoder.features(images))

    @pytest.mark.parametrize("at", range(4))
    def test_the_default_dtype_does_not_matter(self, places, images, belonging, at, float64_default):
        def numbers():
            kind = load(places[at], device="cpu")
            yield from (kind(images).mean, kind.features(images), kind.uncertainty(images))
            yield from (kind.untrained().features(images), kind.views(images, count=1)[0].mean)
            yield kind.fit_reference(belonging).ood_score(images)

        found = list(numbers())
        assert torch.get_default_dtype() == torch.float64
        torch.set_default_dtype(torch.float32)
        for one, other in zip(found, numbers(), strict=True):
            assert one.dtype == torch.float32
            assert torch.equal(one, other)

    def test_threads_leave_the_default_dtype_as_it_was(self, encoder, images, float64_default):
        """The first thread to leave must not change it for the others."""
        expected, failed = encoder.features(images), []

        def work():
            try:
                for _ in range(10):
                    assert torch.equal(encoder.features(images), expected)
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert torch.get_default_dtype() == torch.float64
