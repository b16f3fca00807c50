"""What an encoder knows: which images others are compared with, how they are recognised, and what the scores are."""

import pytest
import torch
from torch import Tensor

import prosmin
from coloured import coloured
from prosmin.encoder import known as knowledge
from prosmin.encoder import untrained
from prosmin.encoder.background import Background
from prosmin.encoder.detectors import KnnDistance
from prosmin.encoder.known import Known
from prosmin.encoder.neighbourhood import Neighbourhood
from prosmin.encoder.space import fit_space
from prosmin.errors import ProsminError
from tiny_methods import tiny_method

ROWS = torch.arange(40)


def gaussian(count: int, *, seed: int) -> Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))


SPACE = fit_space(gaussian(100, seed=0))


def carrying(sample: Tensor) -> Known:
    return Known(Background(SPACE, sample), None)


class TestImages:
    def test_those_of_the_reference_precede_the_training_images(self):
        known = carrying(gaussian(40, seed=1))
        assert torch.equal(known.images.features, gaussian(40, seed=1))
        known.fit(gaussian(50, seed=2), torch.arange(50), space=SPACE)
        assert torch.equal(known.images.features, gaussian(50, seed=2))
        assert Known(Background(SPACE, None), None).images is Known(None, None).images is None

    def test_copies_in_the_sample_count_once(self):
        for repeats in (1, 2):
            assert torch.equal(carrying(gaussian(40, seed=1).repeat(repeats, 1)).images.features, gaussian(40, seed=1))
        assert carrying(gaussian(9, seed=1).repeat(5, 1)).images is None

    def test_copies_in_a_reference_count_once(self):
        known = Known(None, None)
        known.fit(gaussian(40, seed=1).repeat(2, 1), ROWS.repeat(2), space=SPACE)
        assert torch.equal(known.images.features, gaussian(40, seed=1))
        with pytest.raises(ProsminError, match="9 different readable images; allowed: 10 or more"):
            known.fit(gaussian(90, seed=1), torch.arange(90) % 9, space=SPACE)


class TestUncertainty:
    def of_images_that_are_not_their_own_neighbours(self, features: Tensor) -> Tensor:
        return Neighbourhood(features=features, space=SPACE, groups=ROWS).uncertainty(features, ROWS)

    def test_known_images_are_recognised_by_their_features(self):
        features = gaussian(40, seed=1)
        fitted = Known(None, None)
        fitted.fit(features, ROWS, space=SPACE)
        expected = self.of_images_that_are_not_their_own_neighbours(features)
        for known, contents in ((carrying(features), None), (carrying(features), 7 + ROWS), (fitted, None)):
            torch.testing.assert_close(known.uncertainty(features, contents), expected)
        assert not torch.allclose(known.images.uncertainty(features), expected, atol=0.1)

    def test_images_of_a_reference_are_recognised_by_their_pixels(self):
        features = gaussian(40, seed=1)
        known = carrying(gaussian(40, seed=2))
        known.fit(features, 100 + ROWS, space=SPACE)
        expected = self.of_images_that_are_not_their_own_neighbours(features)
        torch.testing.assert_close(known.uncertainty(features, 100 + ROWS), expected)
        assert torch.equal(known.uncertainty(features, ROWS), known.images.uncertainty(features))  # other images

    def test_a_reference_without_pixels(self):
        known = Known(None, Neighbourhood(features=gaussian(40, seed=1), space=SPACE))
        features = gaussian(5, seed=2)
        assert torch.equal(known.uncertainty(features), known.images.uncertainty(features))

    def test_an_encoder_recognises_training_images_as_it_does_those_of_a_reference(self):
        encoder = untrained(tiny_method("prosmin"))
        pictures = coloured(60)
        sample = encoder.features(pictures)
        encoder.known.background = Background(encoder.background.space, sample.half().float())
        found = encoder.uncertainty(pictures)
        assert encoder.known.images.recognise(sample).tolist() == list(range(60))
        assert encoder.known.images.recognise(encoder.features(coloured(60, seed=1))).tolist().count(-1) > 50
        expected = encoder.fit_reference(pictures).uncertainty(pictures)
        assert torch.corrcoef(torch.stack([found, expected]))[0, 1] > 0.99


class TestScores:
    def test_they_say_whose_images_are_compared(self):
        assert Known(None, None).scores == {}
        known = carrying(gaussian(40, seed=1))
        assert known.scores.keys() == {"uncertainty"}
        assert "training images" in known.scores["uncertainty"]
        known.reference = KnnDistance(bank=gaussian(40, seed=2), k=2)  # of an early version: only for the OOD score
        assert "training images" in known.scores["uncertainty"]
        assert "not whitened" in known.scores["ood_score"]
        known.fit(gaussian(50, seed=2), torch.arange(50), space=SPACE)
        assert "reference images" in known.scores["uncertainty"]
        assert "half-whitened" in known.scores["ood_score"]

    def test_the_definition_changes_with_the_images_and_with_the_formula(self, monkeypatch):
        assert Known(None, None).definition is None
        one, other = gaussian(40, seed=1), gaussian(40, seed=2)
        assert carrying(one).definition == carrying(one).definition != carrying(other).definition
        before = carrying(one).definition
        monkeypatch.setattr(knowledge, "UNCERTAINTY", "another one")
        assert carrying(one).definition != before


def test_an_encoder_can_be_copied_with_what_it_knows(belonging, images, tmp_path):
    encoder = untrained(tiny_method("prosmin")).fit_reference(belonging)
    again = prosmin.load(encoder.save(tmp_path / "saved"), device="cpu")
    assert again.known.definition == encoder.known.definition
    assert torch.equal(again.uncertainty(images), encoder.uncertainty(images))
