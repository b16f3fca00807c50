"""Our corruptions against imagecorruptions-imaug: equal with the same random numbers, equally strong with others."""

from unittest import mock

import numpy as np
import pytest
import scipy.stats
import torch

from packed_images import difference, pixels
from prosmin.data.corruptions.generate import TORCH, corrupt
from prosmin.data.corruptions.parameters import COMMON, EXTRA, IMAGENET_C, SEVERITIES
from prosmin.data.corruptions.primitives import Draws
from prosmin.data.image_sets import Pictures, load_pictures

imagecorruptions = pytest.importorskip(
    "imagecorruptions", reason="imagecorruptions is not installed: pip install prosmin[corruptions]"
)
library = imagecorruptions.corruptions

FIXED = (
    "defocus_blur", "zoom_blur", "gaussian_blur", "brightness", "contrast", "saturate", "pixelate", "jpeg_compression",
)  # fmt: skip
RANDOM = tuple(name for name in TORCH if name not in FIXED)


def by_library(pictures: Pictures, name: str, severity: int) -> np.ndarray:
    return np.stack([imagecorruptions.corrupt(picture, severity, name) for picture in pixels(pictures)])


@pytest.mark.parametrize("name", FIXED)
def test_deterministic_corruptions_equal_the_library(name, patches, oblong):
    """To one grey level: the library truncates 127.9999 where exact arithmetic gives 128."""
    for pictures in (patches.subset(torch.arange(0, 21, 3)), oblong):
        for severity in SEVERITIES:
            ours = pixels(corrupt(pictures, name, severity, seed=0))
            gap = difference(ours, by_library(pictures, name, severity))
            assert gap.max() <= 1
            assert gap.mean() < 0.15
    if name in ("pixelate", "jpeg_compression"):  # bytes to bytes: nothing is truncated
        assert gap.max() == 0


# Each replaces the library's random numbers for one image by ours.


def _normal(draws, shape, severity):
    return {"normal": lambda size, scale, loc=0.0: loc + scale * _last(draws.normal("noise", 3, *shape)[0])}


def _poisson(draws, shape, severity):
    uniform = _last(draws.uniform("noise", 3, *shape)[0])
    return {"poisson": lambda rate: scipy.stats.poisson.ppf(uniform, rate)}


def _motion(draws, shape, severity):
    return {"uniform": lambda low, high: low + (high - low) * float(draws.uniform("angle"))}


def _fog(draws, shape, severity):
    numbers = iter(draws.uniform("plasma", 64 * 64 - 1)[0].double().tolist())

    def uniform(low, high, size):
        taken = np.array([next(numbers) for _ in range(np.prod(size))]).reshape(size)
        return low + (high - low) * taken

    return {"uniform": uniform}


def _snow(draws, shape, severity):
    noise = draws.normal("flakes", *shape)[0].double().numpy()
    return {"normal": lambda size, loc, scale: loc + scale * noise, **_motion(draws, shape, severity)}


def _frost(draws, shape, severity):
    numbers = iter(draws.uniform("cut", 3)[0].double().tolist())

    def randint(low, high=None):
        low, high = (0, low) if high is None else (low, high)
        return low + int(next(numbers) * (high - low))

    return {"randint": randint}


def _spatter(draws, shape, severity):
    noise = draws.normal("drops", *shape)[0].double().numpy()
    return {"normal": lambda size, loc, scale: loc + scale * noise}


def _elastic(draws, shape, severity):
    fields = iter(draws.uniform("field", 2, *shape)[0].double().numpy())
    return {"uniform": lambda low, high, size: low + (high - low) * next(fields)}


def _glass(draws, shape, severity):
    _, reach, passes = IMAGENET_C["glass_blur"][severity - 1]
    height, width = shape
    offsets = (draws.uniform("offsets", passes, 2, height, width)[0] * 2 * reach).long().numpy() - reach
    in_turn = iter(
        offsets[i, :, h, w]
        for i in range(passes)
        for h in range(height - reach, reach, -1)
        for w in range(width - reach, reach, -1)
    )
    return {"randint": lambda low, high, size: next(in_turn), "seed": lambda seed: None}


SHARED = {
    "gaussian_noise": _normal,
    "speckle_noise": _normal,
    "shot_noise": _poisson,
    "motion_blur": _motion,
    "fog": _fog,
    "snow": _snow,
    "frost": _frost,
    "elastic_transform": _elastic,
    "glass_blur": _glass,
    "spatter": _spatter,
}


def _last(channels: torch.Tensor) -> np.ndarray:
    return channels.permute(1, 2, 0).double().numpy()


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_random_corruptions_with_the_same_numbers_equal_the_library(name, severity, oblong, monkeypatch):
    """To one grey level, as above; frost to two: OpenCV enlarges its photographs with weights of eleven bits."""
    if name == "glass_blur":  # without numba, which has its own random numbers
        monkeypatch.setattr(library, "_shuffle_pixels_njit_glass_blur", library._shuffle_pixels_njit_glass_blur.py_func)
    ours = pixels(corrupt(oblong, name, severity, seed=3))
    for i, picture in enumerate(pixels(oblong)):
        draws = Draws(3, name, severity, torch.tensor([i]))
        with mock.patch.multiple(np.random, **SHARED[name](draws, picture.shape[:2], severity)):
            theirs = imagecorruptions.corrupt(picture, severity, name)
        assert difference(ours[i], theirs).max() <= (2 if name == "frost" else 1)
        assert difference(ours[i], picture).mean() > 1  # something happened


@pytest.mark.parametrize("severity", SEVERITIES)
def test_impulse_noise_with_the_same_numbers_equals_the_library(severity, oblong):
    class Served(np.random.Generator):
        def random(self, size):
            return _last(next(numbers))

    ours = pixels(corrupt(oblong, "impulse_noise", severity, seed=3))
    for i, picture in enumerate(pixels(oblong)):
        draws = Draws(3, "impulse_noise", severity, torch.tensor([i]))
        numbers = iter(draws.uniform("noise", 2, 3, *picture.shape[:2])[0])
        seed = Served(np.random.PCG64(0))
        theirs = imagecorruptions.corrupt(picture, severity, "impulse_noise", seed=seed)
        assert difference(ours[i], theirs).max() <= 1  # the library truncates 76.999


SPREAD = {
    "motion_blur": (0.6, 3.0), "fog": (1.0, 6.0), "snow": (1.0, 6.0), "frost": (1.5, 15.0), "spatter": (1.5, 3.0),
}  # fmt: skip
"""About four times the difference between two seeds of the library, where one draw affects a whole image."""


@pytest.mark.parametrize("name", RANDOM)
def test_random_corruptions_are_as_strong_as_the_library(name):
    """Peak signal-to-noise ratio in dB and mean level of 84 images, by severity."""
    pictures = load_pictures("photos@test").subset(torch.arange(0, 840, 10))
    clean = pixels(pictures).astype(float)
    ratio_apart, level_apart = SPREAD.get(name, (0.3, 0.5))
    for severity in (1, 3, 5):
        ours, theirs = (
            pixels(corrupt(pictures, name, severity, seed=1, generator=generator)).astype(float)
            for generator in ("torch", "imagecorruptions")
        )
        ratio = [10 * np.log10(255**2 / ((x - clean) ** 2).mean()) for x in (ours, theirs)]
        assert abs(ratio[0] - ratio[1]) < ratio_apart
        assert abs(ours.mean() - theirs.mean()) < level_apart


def test_the_names_are_those_of_the_library():
    assert list(COMMON) == imagecorruptions.get_corruption_names("common")
    assert list(EXTRA) == imagecorruptions.get_corruption_names("validation")
