"""The feature cache: embedded once, read whole or not at all, never of another encoder or other pixels."""

import dataclasses

import pytest
import torch
from safetensors import SafetensorError

from prosmin.data.image_sets import load_pictures
from prosmin.encoder import Encoder, untrained
from prosmin.evaluation import context as cache_module
from prosmin.evaluation.context import PIXELS, TRAINED, UNTRAINED, UNTRAINED_SET, Context, FeatureCache


@pytest.fixture(scope="module")
def pictures():
    return load_pictures("photos@test").subset(torch.arange(0, 840, 60))


@pytest.fixture
def calls(monkeypatch):
    """The sizes of the batches that were embedded, one a set here."""
    seen = []
    embed = Encoder.summarise

    def count(self, batch):
        seen.append(len(batch.index))
        return embed(self, batch)

    monkeypatch.setattr(Encoder, "summarise", count)
    return seen


def make_context(config, pictures, folder, *, key="a" * 32):
    return Context(untrained(config), {"train": pictures, "test": pictures}, cache=FeatureCache(folder, key))


def files(folder):
    return sorted(folder.glob("*.safetensors"))


TENSORS = {"features": torch.arange(6.0).view(2, 3), "log_scale": torch.tensor([0.5, -1.0])}


class TestFiles:
    def test_what_was_written_is_read(self, tmp_path):
        cache = FeatureCache(tmp_path, "encoder")
        cache.write(TENSORS, "trained", "pixels")
        read = cache.read("trained", "pixels")
        assert all(torch.equal(read[name], tensor) for name, tensor in TENSORS.items())
        assert cache.read("trained", "other pixels") is None
        assert FeatureCache(tmp_path, "other").read("trained", "pixels") is None

    @pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
    def test_a_damaged_file_is_not_read(self, tmp_path, damage):
        cache = FeatureCache(tmp_path, "encoder")
        cache.write(TENSORS, "x")
        (path,) = files(tmp_path)
        data = bytearray(path.read_bytes())
        data[-2] ^= 0x10  # within a number: the sizes still fit
        path.write_bytes({"cut": bytes(data[:-5]), "flipped": bytes(data), "empty": b""}[damage])
        assert cache.read("x") is None

    def test_features_of_a_replaced_encoder_are_removed(self, tmp_path):
        FeatureCache(tmp_path, "old").write(TENSORS, "x")
        new = FeatureCache(tmp_path, "new")
        new.write(TENSORS, "x")
        new.write(TENSORS, "y")
        assert len(files(tmp_path)) == 2

    def test_where_nothing_can_be_written_the_work_goes_on(self, tmp_path, capsys):
        (tmp_path / "cache").write_text("a file where the folder should be")
        cache = FeatureCache(tmp_path / "cache", "encoder")
        cache.write(TENSORS, "x")
        cache.write(TENSORS, "y")
        assert cache.read("x") is None
        said = capsys.readouterr().err
        assert said.startswith("warning: features ")
        assert said.count("cannot be written") == 1

    def test_a_full_disk_is_a_sentence(self, tmp_path, capsys, monkeypatch):
        def full(tensors, path, metadata):
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

        monkeypatch.setattr(cache_module, "save_file", full)
        FeatureCache(tmp_path, "encoder").write(TENSORS, "x")
        assert "cannot be written: No space left on device. Free some space" in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []


class TestContext:
    def test_the_second_command_embeds_nothing(self, tiny, pictures, tmp_path, calls):
        config = tiny()
        first = make_context(config, pictures, tmp_path)
        expected = {subject: first.features("test", subject) for subject in first.subjects}
        assert set(expected) == {TRAINED, UNTRAINED, UNTRAINED_SET, PIXELS}
        done = len(calls)
        assert done == 4  # one of them to set the statistics by; raw pixels pass through no encoder
        second = make_context(config, pictures, tmp_path)
        for subject, features in expected.items():
            assert torch.equal(second.features("test", subject), features)
        second.uncertainty("test")
        assert len(calls) == done

    def test_uncertainty_is_the_encoder_s(self, tiny, pictures, tmp_path):
        context = make_context(tiny(), pictures, tmp_path)
        torch.testing.assert_close(context.uncertainty("test"), context.encoder.uncertainty(pictures))
        twin = make_context(tiny(heads__scale="zero"), pictures, tmp_path, key="b" * 32)
        expected = twin.encoder.uncertainty(pictures)  # far below the usual tolerance
        torch.testing.assert_close(twin.uncertainty("test"), expected, rtol=1e-3, atol=0)

    def test_other_pixels_views_and_weights_are_embedded(self, tiny, pictures, tmp_path, calls):
        make_context(tiny(), pictures, tmp_path).features("test")
        images = pictures.images.clone()
        images[0, 0, 0, 0] ^= 1
        make_context(tiny(), dataclasses.replace(pictures, images=images), tmp_path).features("test")
        make_context(tiny(views__crop_share="0.9"), pictures, tmp_path).features("test")
        make_context(tiny(), pictures, tmp_path, key="c" * 32).features("test")
        assert len(calls) == 4

    def test_a_damaged_file_is_made_again(self, tiny, pictures, tmp_path, calls):
        features = make_context(tiny(), pictures, tmp_path).features("test")
        (path,) = files(tmp_path)
        whole = path.read_bytes()
        path.write_bytes(whole[:-4])
        assert torch.equal(make_context(tiny(), pictures, tmp_path).features("test"), features)
        assert path.read_bytes() == whole
        assert len(calls) == 2
