"""The background of an encoder: every encoder has one, runs and saved encoders store it, damage is noticed."""

import shutil
from pathlib import Path

import pytest
import torch

import prosmin
from coloured import coloured
from prosmin.data.sources.photos import open_photos
from prosmin.encoder import load, shipped, untrained
from prosmin.encoder.background import FILE, SAMPLE, make_background, read_background, write_background
from prosmin.encoder.file import REFERENCE
from prosmin.encoder.space import fit_space
from prosmin.errors import ProsminError
from prosmin.training.pretrain import pretrain
from published_layouts import timm_weights
from tiny_methods import METHODS, tiny_method

WRITTEN = Path(__file__).parents[1] / "written_by_0_1_0"


def pixels(images: torch.Tensor) -> torch.Tensor:
    """Features of an encoder that need no network: 12 pixels."""
    return images[:, :, 5:25:10, 5:25:10].flatten(1).float() / 255


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """The folder of a run of 4 steps of 16 images."""
    return pretrain(tiny_method("prosmin"), tmp_path_factory.mktemp("background") / "run")


class TestMaking:
    def test_photographs_stand_for_images_of_all_kinds(self):
        expected = fit_space(pixels(open_photos("train").images[::5]))
        found = make_background(pixels, None)
        assert found.sample is None
        for one, other in zip(found.space, expected, strict=True):
            assert torch.equal(one, other)

    def test_of_training_images_one_counts_for_three_photographs(self):
        """However many there are, and from all of them if they are sorted."""
        photos = pixels(open_photos("train").images[::5])
        few, many = torch.rand(2, 50, 12), torch.arange(3000.0)[:, None].repeat(1, 12)
        for sample, some in ((few[0], few[0]), (many, many[torch.linspace(0, 2999, 224).round().long()])):
            expected = fit_space(torch.cat([photos, some]))
            found = make_background(pixels, sample)
            torch.testing.assert_close(found.space.mean, expected.mean)
            assert torch.equal(found.sample, sample)

    def test_an_empty_sample_leaves_the_photographs(self):
        assert torch.equal(
            make_background(pixels, torch.empty(0, 12)).space.mean, make_background(pixels, None)[0].mean
        )


class TestFile:
    def test_it_is_read_as_it_was_written(self, tmp_path):
        for sample in (None, pixels(coloured(20, side=32).images)):
            written = make_background(pixels, sample)
            write_background(tmp_path, written, encoder="a")
            found = read_background(tmp_path, encoder="a")
            assert all(torch.equal(one, other) for one, other in zip(found.space, written.space, strict=True))
            if sample is None:
                assert found.sample is None
            else:
                torch.testing.assert_close(found.sample, sample, rtol=2**-11, atol=1e-7)  # stored in float16
                assert found.sample.dtype == torch.float32

    def test_of_other_weights_or_missing(self, tmp_path):
        assert read_background(tmp_path, encoder="a") is None
        write_background(tmp_path, make_background(pixels, None), encoder="a")
        assert read_background(tmp_path, encoder="b") is None

    def test_damage_is_named(self, trained, tmp_path):
        shutil.copytree(trained, tmp_path / "run")
        file = tmp_path / "run" / FILE
        whole = file.read_bytes()
        for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:50], b""):
            file.write_bytes(damaged)
            with pytest.raises(ProsminError, match=r"background\.safetensors (was changed|cannot be loaded)"):
                load(tmp_path / "run")
        file.unlink()
        assert load(tmp_path / "run").background.sample is None

    @pytest.mark.parametrize(("factor", "shift"), [(1e5, 0), (1, 1e3), (1e-8, 0), (0, 3.3)])
    def test_features_that_float16_would_change(self, factor, shift, tmp_path):
        """Too large, with a large common part, too small, constant: infinity or few bits would move neighbours."""
        sample = factor * pixels(coloured(20, side=32).images) + shift
        write_background(tmp_path, make_background(pixels, sample), encoder="a")
        assert torch.equal(read_background(tmp_path, encoder="a").sample, sample)


class TestOfAnEncoder:
    @pytest.mark.parametrize("method", METHODS)
    def test_every_method_has_one(self, method, images, belonging):
        encoder = untrained(tiny_method(method))
        space, sample = encoder.background
        assert sample is None
        dim = encoder.features(images).shape[1]
        assert space.mean.shape == (dim,)
        assert space.matrix.shape == (dim, dim)
        assert encoder.background is encoder.background  # computed once
        assert encoder.fit_reference(belonging).ood_score(images).isfinite().all()

    def test_an_encoder_of_timm_has_one_and_keeps_it(self, images, belonging, tmp_path):
        encoder = load(f"timm:test_vit@{timm_weights(tmp_path)}", device="cpu")
        encoder.batch_size = 64
        expected = encoder.background
        assert encoder.known.images is None
        assert (encoder.save(tmp_path / "saved") / FILE).exists()
        found = load(tmp_path / "saved", device="cpu").background
        assert all(torch.equal(one, other) for one, other in zip(found.space, expected.space, strict=True))
        assert encoder.fit_reference(belonging).ood_score(images).isfinite().all()

    def test_saving_does_not_compute_one(self, tmp_path):
        assert not (untrained(tiny_method("prosmin")).save(tmp_path / "saved") / FILE).exists()

    def test_other_weights_have_another(self, trained, images):
        """Neither the untrained networks nor the target carry the features of the online network."""
        encoder = load(trained, device="cpu")
        assert encoder.known.images is not None
        for other in (encoder.untrained(), encoder.of_target()):
            assert other.known.images is None
            assert not torch.equal(other.background.space.mean, encoder.background.space.mean)

    def test_the_shipped_encoder_has_one_with_a_sample(self):
        for name in shipped.shipped_names():
            encoder = load(name, device="cpu")
            sample = encoder.background.sample
            assert len(sample) == SAMPLE
            assert sample.isfinite().all()
            assert encoder.known.images.k == 10


class TestOfARun:
    def test_pretrain_stores_features_of_training_images(self, trained):
        encoder = load(trained, device="cpu")
        space, sample = read_background(trained, encoder=encoder.card["hash"])
        assert len(sample) == 4 * 16  # as many as it has seen, of 3,360
        every = encoder.features("photos@train")
        nearest = torch.cdist(sample, every).min(1)
        assert nearest.values.max() < 1e-2 * every.norm(dim=1).mean()
        assert len(nearest.indices.unique()) == 64
        expected = make_background(encoder.features, sample).space
        # the sample in the file is rounded to float16
        torch.testing.assert_close(space.mean, expected.mean, rtol=1e-3, atol=1e-4)

    def test_uncertainty_is_measured_against_them(self, trained, images):
        encoder = load(trained, device="cpu")
        assert encoder.known.images is encoder.known.images  # its statistics are computed once
        assert "training images" in encoder.scores["uncertainty"]
        assert "ood_score" not in encoder.scores
        expected = encoder.known.images.uncertainty(encoder.features(images))
        torch.testing.assert_close(encoder.uncertainty(images), expected)
        assert not torch.allclose(encoder.uncertainty(images), encoder.forecast_uncertainty(images))

    def test_a_copy_keeps_them(self, trained, images, tmp_path):
        encoder = load(trained, device="cpu")
        again = load(encoder.save(tmp_path / "copy"), device="cpu")
        assert torch.equal(again.uncertainty(images), encoder.uncertainty(images))


class TestOfEarlierVersions:
    @pytest.fixture
    def run(self, tmp_path) -> Path:
        shutil.copytree(WRITTEN / "run", tmp_path / "run")
        return tmp_path / "run"

    def test_without_a_reference_the_forecast_says_how_uncertain(self, run):
        scores = prosmin.load(run, device="cpu").scores
        assert scores.keys() == {"uncertainty"}
        assert "forecast" in scores["uncertainty"]

    def test_a_reference_of_them_keeps_its_score_and_says_so(self, run, belonging, tmp_path):
        shutil.copy(WRITTEN / REFERENCE, run / REFERENCE)
        encoder = prosmin.load(run, device="cpu")
        assert "not whitened" in encoder.scores["ood_score"]
        assert "forecast" in encoder.scores["uncertainty"]
        expected = encoder.ood_score(belonging)
        again = prosmin.load(encoder.save(tmp_path / "copy"), device="cpu")
        assert again.scores == encoder.scores
        assert torch.equal(again.ood_score(belonging), expected)
        assert "half-whitened" in encoder.fit_reference(belonging).scores["ood_score"]
