"""Severity curves of encoders whose uncertainty is known; the crops."""

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor, nn

from coloured import coloured
from prosmin.data.image_sets import Pictures
from prosmin.encoder import Encoder
from prosmin.evaluation.severity import crops, severity_curves
from prosmin.methods.output import Embedding


class Smoothness(nn.Module):
    """A fake method whose scale falls with the differences between neighbouring pixels, or, rough, rises with them."""

    def __init__(self, *, rough: bool = False, scaled: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.rough, self.scaled = rough, scaled

    def encode(self, x: Tensor) -> Embedding:
        steps = (x[..., 1:] - x[..., :-1]).abs().mean((1, 2, 3))[:, None] + 1e-3
        scale = steps if self.rough else 1 / steps
        return Embedding(scale, scale, scale if self.scaled else None)


def encoder(tiny, **kind: bool) -> Encoder:
    return Encoder(Smoothness(**kind), tiny())


@pytest.fixture
def pictures() -> Pictures:
    return coloured(24, side=32)


def test_curves_follow_what_the_uncertainty_is(tiny, pictures):
    curves, left_out, _ = severity_curves(encoder(tiny), pictures, seed=0)
    assert left_out == {}
    for kind, rising in (("crop", True), ("blur", True), ("noise", False)):
        curve = curves[kind]
        means = curve["mean"] if rising else curve["mean"][::-1]
        assert curve["severity"] == [0, 1, 2, 3, 4, 5]
        assert all(low < high for low, high in itertools.pairwise(means)), kind
        assert abs(curve["spearman"]) > 0.95
        assert (curve["spearman"] > 0) == rising
        assert all(
            low <= mean <= high for low, mean, high in zip(curve["low"], curve["mean"], curve["high"], strict=True)
        )
    assert len({curve["mean"][0] for curve in curves.values()}) == 1  # severity 0 is the image as it is
    rough, *_ = severity_curves(encoder(tiny, rough=True), pictures, seed=0)
    assert rough["noise"]["spearman"] > 0.95
    assert rough["blur"]["spearman"] < -0.95


def test_an_uncertainty_that_never_moves_has_correlation_0(tiny, pictures, monkeypatch):
    monkeypatch.setattr(Encoder, "uncertainty", lambda self, images: torch.zeros(len(images)))
    curves, *_ = severity_curves(encoder(tiny), pictures, seed=0)
    assert [curve["spearman"] for curve in curves.values()] == [0, 0, 0]


def test_small_pictures_leave_blur_and_noise_out(tiny):
    curves, left_out, _ = severity_curves(encoder(tiny), coloured(6, side=20), seed=0)
    assert list(curves) == ["crop"]
    assert set(left_out) == {"blur", "noise"}
    assert "20 pixels" in left_out["blur"]


def test_a_method_without_a_scale_has_curves_too(tiny, pictures):
    curves, *_ = severity_curves(encoder(tiny, scaled=False), pictures.subset(torch.arange(4)), seed=0)
    assert set(curves) == {"crop", "blur", "noise"}


def test_crops_keep_their_share_of_the_area_and_lie_within_the_picture(tiny):
    # A ramp of 1000 columns: the range of grey levels in a crop tells its width.
    ramp = torch.linspace(0, 250, 1000).to(torch.uint8).expand(8, 3, 600, 1000)
    pictures = Pictures(
        images=ramp.contiguous(),
        sizes=torch.tensor([[600, 1000]] * 8),
        labels=None,
        classes=(),
        keys=tuple("abcdefgh"),
        spec="ramps",
    )
    views = tiny(views__ratio="[1.0,1.0]").views
    for area in (0.4, 0.1):
        images = crops(pictures, area, views, seed=0).images.float()
        assert images.shape[2:] == (views.global_size, views.global_size)
        width = (images[:, 0, 0].amax(1) - images[:, 0, 0].amin(1)) / 250
        # A square of area a * 600 * 1000; the outer pixels of the view lie half a pixel, 1/32 of a crop, inside.
        expected = (area * 600 * 1000) ** 0.5 / 1000
        torch.testing.assert_close(width, torch.full((8,), expected), atol=expected / 16, rtol=0)
        assert len(set(images[:, 0, 0, 0].tolist())) > 4  # random places
    again = crops(pictures, 0.1, views, seed=0).images
    assert torch.equal(again.float(), images)
    assert not torch.equal(crops(pictures, 0.1, views, seed=1).images, again)


def test_a_crop_is_held_against_the_whole_picture(tiny, monkeypatch):
    """An uncertainty that is right about every crop has a rank correlation of 1, wherever the encoder looks."""
    ramp = torch.linspace(0, 250, 320).to(torch.uint8).expand(4, 3, 180, 320).contiguous()
    sizes = torch.tensor([[180, 320]] * 4)
    pictures = Pictures(images=ramp, sizes=sizes, labels=None, classes=(), keys=tuple("abcd"), spec="ramps")
    narrow = Encoder(Smoothness(), tiny(views__crop_share="0.8"))

    def hidden(self: Encoder, images: Pictures) -> Tensor:
        row = images.images[:, 0, 0].float()
        return row.amin(1) - row.amax(1)

    monkeypatch.setattr(Encoder, "uncertainty", hidden)
    curve = severity_curves(narrow, pictures, seed=0).curves["crop"]
    assert curve["spearman"] == pytest.approx(1.0)
    assert curve["strength"][0] == 1.0
    # All columns of a wide image; the outer pixels of a view of 32 lie half a pixel inside.
    assert curve["mean"][0] == pytest.approx(-250 * 31 / 32, abs=3)


def test_nothing_is_cut_twice(tiny, monkeypatch):
    """An encoder that looks at the centre of an image sees all of a crop and of a corrupted image."""
    pictures = coloured(24, side=40)
    narrow = Encoder(Smoothness(), tiny(views__crop_share="0.8"))  # 32 of 40 pixels
    clean = narrow.uncertainty(pictures).double().mean().item()
    curves, *_ = severity_curves(narrow, pictures, seed=0)
    assert curves["blur"]["mean"][0] == pytest.approx(clean, abs=1e-5)
    asked = []

    def record(self: Encoder, images: Pictures) -> Tensor:
        asked.append((self.config.views.crop_share, images.images.shape[-1]))
        return torch.zeros(len(images))

    monkeypatch.setattr(Encoder, "uncertainty", record)
    severity_curves(narrow, pictures, seed=0)
    assert asked == [(1.0, 32)] * 17
    assert narrow.config.views.crop_share == 0.8


def test_severities_are_those_that_leave_something_of_small_pictures(tiny, pictures):
    found = severity_curves(encoder(tiny), pictures, seed=0)
    assert found.parameters == "cifar-10-c"
    assert found.curves["noise"]["strength"] == [0.0, 0.04, 0.06, 0.08, 0.09, 0.10]
    larger = dataclasses.replace(tiny(), views=dataclasses.replace(tiny().views, global_size=96))
    assert severity_curves(Encoder(Smoothness(), larger), coloured(4, side=96), seed=0).parameters == "imagenet-c"
