"""CIFAR-10-C's parameters, checked by hand."""

import io
import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from optional import need_imagecorruptions
from packed_images import as_pictures, difference, pixels
from prosmin.data.corruptions import weather
from prosmin.data.corruptions.generate import corrupt
from prosmin.data.corruptions.parameters import ALL, CIFAR_10_C, SEVERITIES
from prosmin.data.corruptions.primitives import Draws
from prosmin.data.image_sets import Pictures, load_pictures


@pytest.fixture(scope="module")
def patches():
    """32 px, from every photograph."""
    return load_pictures("photos@test").subset(torch.arange(0, 840, 40))


def as_cifar(pictures: Pictures, name: str, severity: int) -> np.ndarray:
    return pixels(corrupt(pictures, name, severity, seed=0, parameters="cifar-10-c"))


def flat(level: int, *, count: int = 40, side: int = 32) -> Pictures:
    return as_pictures([torch.full((3, side, side), level, dtype=torch.uint8)] * count)


@pytest.mark.parametrize(
    ("name", "severity", "deviation"),
    [
        ("gaussian_noise", 1, 0.04),
        ("gaussian_noise", 5, 0.10),
        ("speckle_noise", 3, 0.12 * 128 / 255),  # in proportion to the level
        ("shot_noise", 1, (128 / 255 / 500) ** 0.5),  # Poisson: the mean over the photons, under the root
        ("shot_noise", 5, (128 / 255 / 50) ** 0.5),
    ],
)
def test_noise(name, severity, deviation):
    """122,880 values: 2 % are nine standard errors of a standard deviation. Truncation adds 0.08 levels."""
    noise = as_cifar(flat(128), name, severity).astype(float)
    assert noise.std() == pytest.approx(255 * deviation, rel=0.02)
    assert noise.mean() == pytest.approx(127.5, abs=0.5)


def test_levels():
    for severity, share in zip(SEVERITIES, (0.01, 0.02, 0.03, 0.05, 0.07), strict=True):
        lost = as_cifar(flat(128), "impulse_noise", severity) != 128
        assert lost.mean() == pytest.approx(share, rel=0.15)  # of 1,229 values and more: five standard errors
    for severity, more in zip(SEVERITIES, (12.75, 25.5, 38.25, 51.0, 76.5), strict=True):  # 255 times 0.05 and so on
        assert np.unique(as_cifar(flat(100, count=1), "brightness", severity)) == [int(100 + more)]
    halves = torch.full((3, 32, 32), 60, dtype=torch.uint8)
    halves[:, :16] = 160  # of mean 110
    for severity, distance in zip(SEVERITIES, (37.5, 25, 20, 15, 7.5), strict=True):  # 50 times 0.75 and so on
        levels = np.unique(as_cifar(as_pictures([halves]), "contrast", severity)).tolist()
        assert levels == [int(110 - distance), int(110 + distance)]


def test_pixelation_and_jpeg_equal_pillow(patches):
    for severity, side, quality in zip(SEVERITIES, (30, 28, 27, 24, 20), (80, 65, 58, 50, 40), strict=True):
        coarse, compressed = (as_cifar(patches, name, severity) for name in ("pixelate", "jpeg_compression"))
        for i, picture in enumerate(map(Image.fromarray, pixels(patches))):
            boxes = picture.resize((side, side), Image.Resampling.BOX).resize((32, 32), Image.Resampling.BOX)
            assert np.array_equal(coarse[i], np.asarray(boxes))
            file = io.BytesIO()
            picture.save(file, "JPEG", quality=quality)
            assert np.array_equal(compressed[i], np.asarray(Image.open(file)))


def test_blurs_of_one_white_pixel():
    point = torch.zeros(3, 32, 32, dtype=torch.uint8)
    point[:, 16, 16] = 255
    point = as_pictures([point])
    # A single pixel, softened by exp(-x^2 / (2 0.4^2)) = 0.04394 beside 1: 1 / 1.08787^2 in the middle.
    first = as_cifar(point, "defocus_blur", 1)[0, 15:18, 15:18, 0]
    assert first.tolist() == [[0, 9, 0], [9, 215, 9], [0, 9, 0]]
    # A cross of five, hardly softened: exp(-x^2 / (2 0.2^2)) = 3.7e-6.
    fourth = as_cifar(point, "defocus_blur", 4)[0, 15:18, 15:18, 0]
    assert fourth.tolist() == [[0, 51, 0], [51, 51, 51], [0, 51, 0]]
    # sigma 0.4: exp(-3.125) = 0.04394 again, and exp(-12.5) two pixels away, negligible.
    assert as_cifar(point, "gaussian_blur", 1)[0, 16, 14:19, 0].tolist() == [0, 9, 215, 9, 0]
    # Seven factors, 1.00 to 1.06, and the image itself: 1.00 twice.
    assert len(np.arange(1, *CIFAR_10_C["zoom_blur"][0])) == 7


def test_frost_is_a_fifth_of_five_photographs():
    need_imagecorruptions()
    black = flat(0, count=60)
    made = as_cifar(black, "frost", 2)  # 1 of the image and 0.3 of the frost
    draws = Draws(0, "frost", 2, torch.arange(60)).uniform("cut", 3).double()
    for picture, (which, down, right) in zip(made, draws.tolist(), strict=True):
        with Image.open(weather.frost_files()[int(5 * which)]) as image:
            photograph = np.asarray(image.convert("RGB"))[2::5, 2::5]
        top, left = (int(place * (n - 32)) for place, n in zip((down, right), photograph.shape, strict=False))
        cut = photograph[top : top + 32, left : left + 32]
        assert difference(picture, 0.3 * cut).max() <= 1
    large = as_cifar(flat(0, count=6, side=224), "frost", 2)  # larger than a fifth of a photograph
    assert (large.std((1, 2, 3)) > 1).all()


def test_elastic_moves_the_corners_then_the_pixels():
    """Severity 1 is only an affine map, which maps a plane of grey levels to a plane."""
    ramp = (4 * torch.arange(32)[:, None] + 2 * torch.arange(32)).to(torch.uint8).expand(3, 32, 32)
    made = as_cifar(as_pictures([ramp] * 8), "elastic_transform", 1)[..., 0].astype(float)
    moves = Draws(0, "elastic_transform", 1, torch.arange(8)).uniform("corners", 3, 2).double().numpy() * 2 - 1
    old = np.array([[26, 26], [26, 6], [6, 6]])
    for picture, move in zip(made, 0.08 * 32 * moves, strict=True):
        # The levels of the old corners are at the new ones, which lie within the image.
        for (x, y), (new_x, new_y) in zip(old, old + move, strict=True):
            row, column = int(new_y), int(new_x)
            square = picture[row : row + 2, column : column + 2]
            v, u = new_y - row, new_x - column
            there = np.array([1 - v, v]) @ square @ np.array([1 - u, u])
            assert there == pytest.approx(4 * y + 2 * x, abs=1.01)  # truncated to whole levels
    fields = as_cifar(flat(77, count=2), "elastic_transform", 5)
    assert np.unique(fields).tolist() == [77]


UNORDERED = {
    "glass_blur": "severity 4 has one pass more and less blur than 3, which lowers the distance of pixels",
    "frost": "from severity 4 on less of both, so darker than 3",
    "elastic_transform": "from large moves of the whole to small ones everywhere",
    "spatter": "three of water, then two of mud",
    "saturate": "colour is taken away at 1 and 2 and added from 3 on",
}
"""Corruptions whose published severities differ in kind, so that pixel differences do not rise, and why."""


@pytest.mark.parametrize("name", ALL)
def test_severities_rise_and_are_milder_than_those_of_imagenet_c(name):
    if name == "frost":
        need_imagecorruptions()
    pictures = load_pictures("photos@test").subset(torch.arange(0, 840, 10))
    clean = pixels(pictures)

    def harm(severity: int, parameters: str) -> float:
        made = pixels(corrupt(pictures, name, severity, seed=1, parameters=parameters))
        return float(np.sqrt((difference(made, clean) ** 2).mean()))

    harms = [harm(severity, "cifar-10-c") for severity in SEVERITIES]
    if name not in UNORDERED:
        assert all(one < other for one, other in itertools.pairwise(harms))
        assert harms[0] < harm(1, "imagenet-c")
    assert min(harms) > 1
    assert harms[4] < harm(5, "imagenet-c")
