"""Corruptions: ours against imagecorruptions-imaug and by hand, what they depend on, and sets as published."""

import dataclasses
import hashlib
import io
import itertools
import os
import subprocess
import sys
from unittest import mock

import imagecorruptions
import numpy as np
import pytest
import scipy.stats
import torch
from imagecorruptions import corruptions as library
from PIL import Image
from skimage import data as photographs

from prosmin.data.corruptions import generate, reference, weather
from prosmin.data.corruptions.generate import TORCH, corrupt, framed, generators
from prosmin.data.corruptions.parameters import ALL, CIFAR_10_C, COMMON, EXTRA, IMAGENET_C, PARAMETERS, SEVERITIES
from prosmin.data.corruptions.primitives import Draws, to_bytes, to_unit
from prosmin.data.corruptions.stored import open_stored
from prosmin.data.image_sets import Pictures, load_pictures, pack
from prosmin.errors import ProsminError, UsageError

FIXED = (
    "defocus_blur", "zoom_blur", "gaussian_blur", "brightness", "contrast", "saturate", "pixelate", "jpeg_compression",
)  # fmt: skip
RANDOM = tuple(name for name in TORCH if name not in FIXED)


def as_pictures(images: list[torch.Tensor]) -> Pictures:
    packed, sizes = pack(images)
    names = tuple(str(i) for i in range(len(images)))
    return Pictures(
        images=packed, sizes=sizes, labels=torch.arange(len(images)), classes=names, keys=names, spec="test"
    )


@pytest.fixture(scope="module")
def patches():
    """32 px, from every photograph."""
    return load_pictures("photos@test").subset(torch.arange(0, 840, 40))


@pytest.fixture(scope="module")
def oblong():
    """Height and width differ, neither a power of two, with black, white and grey parts."""
    whole = torch.from_numpy(photographs.astronaut()).permute(2, 0, 1)
    cuts = [whole[:, 30:90, 180:226].clone(), whole[:, 400:460, 100:146].clone()]
    cuts[0][:, :8] = 0
    cuts[0][:, 8:16] = 255
    cuts[0][:, 16:24] = 77
    return as_pictures(cuts)


def pixels(pictures: Pictures) -> np.ndarray:
    return pictures.images.permute(0, 2, 3, 1).numpy()


def by_library(pictures: Pictures, name: str, severity: int) -> np.ndarray:
    return np.stack([imagecorruptions.corrupt(picture, severity, name) for picture in pixels(pictures)])


def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.abs(a.astype(int) - b.astype(int))


@pytest.mark.parametrize("name", FIXED)
def test_what_is_not_random_is_the_library_s(name, patches, oblong):
    """One grey level: the library cuts off 127.9999 where exact arithmetic has 128, and we do not."""
    for pictures in (patches.subset(torch.arange(0, 21, 3)), oblong):
        for severity in SEVERITIES:
            ours = pixels(corrupt(pictures, name, severity, seed=0))
            gap = difference(ours, by_library(pictures, name, severity))
            assert gap.max() <= 1
            assert gap.mean() < 0.15
    if name in ("pixelate", "jpeg_compression"):  # bytes to bytes: nothing to cut off
        assert gap.max() == 0


# Each gives the library, for one image, the numbers that our draws gave for it.


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
def test_with_the_same_numbers_the_random_ones_are_the_library_s(name, severity, oblong, monkeypatch):
    """One grey level, as above; frost two: OpenCV enlarges its photographs with weights of eleven bits."""
    if name == "glass_blur":  # the loop itself: numba's has random numbers of its own
        monkeypatch.setattr(library, "_shuffle_pixels_njit_glass_blur", library._shuffle_pixels_njit_glass_blur.py_func)
    ours = pixels(corrupt(oblong, name, severity, seed=3))
    for i, picture in enumerate(pixels(oblong)):
        draws = Draws(3, name, severity, torch.tensor([i]))
        with mock.patch.multiple(np.random, **SHARED[name](draws, picture.shape[:2], severity)):
            theirs = imagecorruptions.corrupt(picture, severity, name)
        assert difference(ours[i], theirs).max() <= (2 if name == "frost" else 1)
        assert difference(ours[i], picture).mean() > 1  # something happened


@pytest.mark.parametrize("severity", SEVERITIES)
def test_impulse_noise_with_the_same_numbers_is_the_library_s(severity, oblong):
    class Served(np.random.Generator):
        def random(self, size):
            return _last(next(numbers))

    ours = pixels(corrupt(oblong, "impulse_noise", severity, seed=3))
    for i, picture in enumerate(pixels(oblong)):
        draws = Draws(3, "impulse_noise", severity, torch.tensor([i]))
        numbers = iter(draws.uniform("noise", 2, 3, *picture.shape[:2])[0])
        seed = Served(np.random.PCG64(0))
        theirs = imagecorruptions.corrupt(picture, severity, "impulse_noise", seed=seed)
        assert difference(ours[i], theirs).max() <= 1  # of a value left alone, the library cuts off 76.999


SPREAD = {
    "motion_blur": (0.6, 3.0), "fog": (1.0, 6.0), "snow": (1.0, 6.0), "frost": (1.5, 15.0), "spatter": (1.5, 3.0),
}  # fmt: skip
"""About four times what two seeds of the library differ by: one draw decides a whole image. Others: (0.3, 0.5)."""


@pytest.mark.parametrize("name", RANDOM)
def test_with_numbers_of_their_own_both_do_as_much_harm(name):
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


@pytest.mark.parametrize("parameters", PARAMETERS)
@pytest.mark.parametrize("name", TORCH)
def test_the_result_follows_from_seed_and_place_alone(name, parameters, patches, monkeypatch):
    def corrupt(*args, **rest):
        return generate.corrupt(*args, parameters=parameters, **rest)

    whole = corrupt(patches, name, 3, seed=5).images
    monkeypatch.setattr(generate, "_CPU_VALUES", 5 * 3 * 32 * 32)  # batches of 5
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    again = corrupt(patches, name, 3, seed=5).images
    torch.set_num_threads(threads)
    assert torch.equal(whole, again)
    twice = patches.subset(torch.zeros(6, dtype=torch.int64))
    copies = corrupt(twice, name, 3, seed=5).images
    assert torch.equal(copies[0], whole[0])
    if name in RANDOM:
        assert not torch.equal(copies[0], copies[1])
        assert not torch.equal(corrupt(patches, name, 3, seed=6).images, whole)
    else:
        assert torch.equal(copies[0], copies[5])


_HASHES = """
import hashlib, torch
from prosmin.data.corruptions.generate import TORCH, corrupt
from prosmin.data.image_sets import load_pictures
images = load_pictures("photos@test").subset(torch.arange(0, 840, 40))
names = [(name, "torch", parameters) for name in TORCH for parameters in ("imagenet-c", "cifar-10-c")]
names += [(name, "imagecorruptions", "imagenet-c") for name in ("spatter", "fog", "impulse_noise")]
for name, generator, parameters in names:
    made = corrupt(pictures, name, 4, seed=2, generator=generator, parameters=parameters)
    print(name, generator, parameters, hashlib.sha256(made.images.numpy().tobytes()).hexdigest())
"""


def test_another_process_makes_the_same_bytes(patches):
    ran = subprocess.run(
        [sys.executable, "-c", _HASHES],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split() for line in ran.stdout.splitlines()]
    assert len(rows) == 2 * len(TORCH) + 3
    for name, generator, parameters, digest in rows:
        made = corrupt(patches, name, 4, seed=2, generator=generator, parameters=parameters)
        assert hashlib.sha256(made.images.numpy().tobytes()).hexdigest() == digest, name


def test_the_library_s_do_not_depend_on_the_number_of_processes(patches, monkeypatch):
    np.random.seed(11)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    for name in ("impulse_noise", "glass_blur"):  # whose generators are their own
        first, second = (corrupt(patches, name, 2, seed=0, generator="imagecorruptions").images for _ in range(2))
        assert torch.equal(first, second)
    alone = corrupt(patches, "spatter", 2, seed=0, generator="imagecorruptions").images
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    monkeypatch.setattr(reference, "_FEW", 0)
    monkeypatch.setattr(reference, "_CHUNK", 4 * 32 * 32)
    heard: list[int] = []
    made = corrupt(patches, "spatter", 2, seed=0, generator="imagecorruptions", workers=2, progress=heard.append)
    assert torch.equal(made.images, alone)
    assert heard == [4, 4, 4, 4, 4, 1]


def test_a_process_that_ends_is_a_sentence(patches, monkeypatch):
    monkeypatch.setattr(reference, "_FEW", 0)
    monkeypatch.setattr(reference, "_CHUNK", 4 * 32 * 32)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ProsminError, match="process that corrupts images ended"):
        corrupt(patches, "spatter", 1, seed=0, generator="imagecorruptions", workers=2)


@pytest.mark.parametrize("generator", generate.GENERATORS)
def test_a_spatter_without_drops_is_the_clean_picture(generator):
    """The library divides 0 by 0 and returns black."""
    grey = as_pictures([torch.full((3, 32, 32), 128, dtype=torch.uint8)] * 150)
    made = corrupt(grey, "spatter", 1, seed=0, generator=generator).images
    dry = made.flatten(1).eq(128).all(1).sum()
    assert 1 <= dry < 30
    assert int(made.min()) >= 127


def test_pictures_of_many_sizes_are_corrupted_within_their_own(patches, oblong):
    small, large = patches.subset(torch.arange(3)), oblong
    mixed = as_pictures([small.images[0], large.images[1], small.images[2]])
    for name in ("gaussian_noise", "motion_blur", "frost", "spatter"):
        made = corrupt(mixed, name, 2, seed=0)
        assert torch.equal(made.sizes, mixed.sizes)
        alone = corrupt(small, name, 2, seed=0).images
        assert torch.equal(made.images[0, :, :32, :32], alone[0])
        assert torch.equal(made.images[2, :, :32, :32], alone[2])
        assert torch.equal(made.images[1, :, :60, :46], corrupt(large, name, 2, seed=0).images[1])
        assert not made.images[0, :, 32:].any()
        assert not made.images[0, :, :, 32:].any()


def test_what_was_made_is_kept_and_read_back(patches, tmp_path, monkeypatch):
    made = corrupt(patches, "fog", 2, seed=0, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("fog-2-")

    def refuse(images, severity, draws):
        raise AssertionError("made again")

    monkeypatch.setitem(TORCH, "fog", refuse)
    assert torch.equal(corrupt(patches, "fog", 2, seed=0, cache=tmp_path).images, made.images)
    changed = dataclasses.replace(patches, images=patches.images.clone().bitwise_xor_(1))
    for other in ({"seed": 1}, {"severity": 3}, {"pictures": changed}, {"parameters": "cifar-10-c"}):
        with pytest.raises(AssertionError, match="made again"):
            corrupt(**({"pictures": patches, "name": "fog", "severity": 2, "seed": 0, "cache": tmp_path} | other))
    monkeypatch.undo()
    file.write_bytes(file.read_bytes()[:1000])
    assert torch.equal(corrupt(patches, "fog", 2, seed=0, cache=tmp_path).images, made.images)
    assert list(tmp_path.iterdir()) == [file]


def test_without_the_library_the_rest_is_made_and_what_is_missing_is_named(patches, monkeypatch):
    monkeypatch.setattr(reference, "version", lambda: None)
    weather.frost_files.cache_clear()
    with mock.patch("importlib.util.find_spec", return_value=None):
        made, left_out = generators(ALL)
        with pytest.raises(ProsminError, match=r"pip install 'prosmin\[corruptions\]'"):
            corrupt(patches, "frost", 1, seed=0)
    assert set(left_out) == {"frost"}
    assert "imagecorruptions-imaug" in left_out["frost"]
    assert set(made) == set(ALL) - set(left_out)
    assert set(made.values()) == {"torch"}


def test_wrong_requests_are_sentences(patches):
    with pytest.raises(UsageError, match=r"no corruption 'rain'; there are: gaussian_noise"):
        corrupt(patches, "rain", 1, seed=0)
    with pytest.raises(UsageError, match=r"severities are \[6\]; give one or more of 1"):
        corrupt(patches, "fog", 6, seed=0)
    with pytest.raises(UsageError, match=r"is 'cv2'; allowed with parameters imagenet-c: torch, imagecorruptions\."):
        corrupt(patches, "fog", 1, seed=0, generator="cv2")
    with pytest.raises(UsageError, match=r"is 'imagecorruptions'; allowed with parameters cifar-10-c: torch\."):
        corrupt(patches, "fog", 1, seed=0, generator="imagecorruptions", parameters="cifar-10-c")
    with pytest.raises(UsageError, match=r"parameters of corruptions are 'auto'; allowed: imagenet-c, cifar-10-c\."):
        corrupt(patches, "fog", 1, seed=0, parameters="auto")
    tiny = as_pictures([torch.zeros(3, 28, 28, dtype=torch.uint8)])
    with pytest.raises(ProsminError, match="28 pixels; corruptions are defined from 32"):
        corrupt(tiny, "fog", 1, seed=0)


def test_a_level_a_hair_too_low_is_not_the_level_below():
    """Blurs of flat parts and other devices miss whole levels by a few last bits."""
    levels = torch.arange(256, dtype=torch.uint8)
    for hair in (0.0, 3e-7, -3e-7):
        assert torch.equal(to_bytes(to_unit(levels) * (1 + hair)), levels)
    assert to_bytes(torch.tensor([-1.0, 0.5, 0.9999, 2.0])).tolist() == [0, 127, 254, 255]  # cut off, not rounded


def test_the_names_are_the_library_s():
    assert list(COMMON) == imagecorruptions.get_corruption_names("common")
    assert list(EXTRA) == imagecorruptions.get_corruption_names("validation")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("parameters", PARAMETERS)
@pytest.mark.parametrize("name", TORCH)
def test_a_gpu_makes_the_same_within_a_grey_level(name, parameters, patches, oblong):
    for pictures in (patches, oblong):
        for severity in SEVERITIES:
            on_cpu, on_gpu = (
                pixels(corrupt(pictures, name, severity, seed=0, parameters=parameters, device=device))
                for device in ("cpu", "cuda")
            )
            assert difference(on_cpu, on_gpu).max() <= 1


def test_both_tables_have_every_corruption_at_five_severities():
    assert set(IMAGENET_C) == set(CIFAR_10_C) == set(TORCH) == set(ALL)
    for table in PARAMETERS.values():
        assert {len(strengths) for strengths in table.values()} == {5}


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
def test_cifar_10_c_s_noise_by_hand(name, severity, deviation):
    """122,880 values: two hundredths are nine standard errors of a standard deviation. Cutting off adds 0.08 levels."""
    noise = as_cifar(flat(128), name, severity).astype(float)
    assert noise.std() == pytest.approx(255 * deviation, rel=0.02)
    assert noise.mean() == pytest.approx(127.5, abs=0.5)


def test_cifar_10_c_s_levels_by_hand():
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


def test_cifar_10_c_s_pixels_are_pillow_s(patches):
    """Boxes down and boxes up, and JPEG, by Pillow itself: bytes to bytes."""
    for severity, side, quality in zip(SEVERITIES, (30, 28, 27, 24, 20), (80, 65, 58, 50, 40), strict=True):
        coarse, compressed = (as_cifar(patches, name, severity) for name in ("pixelate", "jpeg_compression"))
        for i, picture in enumerate(map(Image.fromarray, pixels(patches))):
            boxes = picture.resize((side, side), Image.Resampling.BOX).resize((32, 32), Image.Resampling.BOX)
            assert np.array_equal(coarse[i], np.asarray(boxes))
            file = io.BytesIO()
            picture.save(file, "JPEG", quality=quality)
            assert np.array_equal(compressed[i], np.asarray(Image.open(file)))


def test_cifar_10_c_s_blurs_by_hand():
    """What becomes of one white pixel: the kernel."""
    point = torch.zeros(3, 32, 32, dtype=torch.uint8)
    point[:, 16, 16] = 255
    point = as_pictures([point])
    # A single pixel, softened by exp(-x^2 / (2 0.4^2)) = 0.04394 beside 1: 1 / 1.08787^2 in the middle.
    first = as_cifar(point, "defocus_blur", 1)[0, 15:18, 15:18, 0]
    assert first.tolist() == [[0, 9, 0], [9, 215, 9], [0, 9, 0]]
    # A cross of five, hardly softened: exp(-x^2 / (2 0.2^2)) = 3.7e-6.
    fourth = as_cifar(point, "defocus_blur", 4)[0, 15:18, 15:18, 0]
    assert fourth.tolist() == [[0, 51, 0], [51, 51, 51], [0, 51, 0]]
    # sigma 0.4: exp(-3.125) = 0.04394 again, and exp(-12.5) two pixels away, which is nothing.
    assert as_cifar(point, "gaussian_blur", 1)[0, 16, 14:19, 0].tolist() == [0, 9, 215, 9, 0]
    # Seven factors, 1.00 to 1.06, and the image itself: 1.00 twice.
    assert len(np.arange(1, *CIFAR_10_C["zoom_blur"][0])) == 7


def test_cifar_10_c_s_frost_is_a_fifth_of_five_photographs():
    black = flat(0, count=60)
    made = as_cifar(black, "frost", 2)  # 1 of the image and 0.3 of the frost
    draws = Draws(0, "frost", 2, torch.arange(60)).uniform("cut", 3).double()
    for picture, (which, down, right) in zip(made, draws.tolist(), strict=True):
        with Image.open(weather.frost_files()[int(5 * which)]) as image:
            photograph = np.asarray(image.convert("RGB"))[2::5, 2::5]
        top, left = (int(place * (n - 32)) for place, n in zip((down, right), photograph.shape, strict=False))
        cut = photograph[top : top + 32, left : left + 32]
        assert difference(picture, 0.3 * cut).max() <= 1
    large = as_cifar(flat(0, count=6, side=224), "frost", 2)  # more than a fifth of a photograph has
    assert (large.std((1, 2, 3)) > 1).all()


def test_cifar_10_c_s_elastic_moves_the_corners_then_the_pixels():
    """Severity 1 is an affine image alone: what it does to a plane of grey levels is a plane again."""
    ramp = (4 * torch.arange(32)[:, None] + 2 * torch.arange(32)).to(torch.uint8).expand(3, 32, 32)
    made = as_cifar(as_pictures([ramp] * 8), "elastic_transform", 1)[..., 0].astype(float)
    moves = Draws(0, "elastic_transform", 1, torch.arange(8)).uniform("corners", 3, 2).double().numpy() * 2 - 1
    old = np.array([[26, 26], [26, 6], [6, 6]])
    for picture, move in zip(made, 0.08 * 32 * moves, strict=True):
        # What stood at the old corners is at the new ones, which lie within the image.
        for (x, y), (new_x, new_y) in zip(old, old + move, strict=True):
            row, column = int(new_y), int(new_x)
            square = picture[row : row + 2, column : column + 2]
            v, u = new_y - row, new_x - column
            there = np.array([1 - v, v]) @ square @ np.array([1 - u, u])
            assert there == pytest.approx(4 * y + 2 * x, abs=1.01)  # cut off to whole levels
    fields = as_cifar(flat(77, count=2), "elastic_transform", 5)
    assert np.unique(fields).tolist() == [77]


UNORDERED = {
    "glass_blur": "severity 4 has one pass more and less blur than 3, which lowers the distance of pixels",
    "frost": "from severity 4 on less of both, so darker than 3",
    "elastic_transform": "from large moves of the whole to small ones everywhere",
    "spatter": "three of water, then two of mud",
    "saturate": "colour is taken away at 1 and 2 and added from 3 on",
}
"""Corruptions whose published severities are of other kinds, so that pixels alone do not order them, and why."""


@pytest.mark.parametrize("name", ALL)
def test_cifar_10_c_s_severities_rise_and_are_milder_than_imagenet_c_s(name):
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


def test_framing_cuts_and_reduces_but_never_enlarges(tiny):
    views = dataclasses.replace(tiny().views, crop_share=0.5)  # 32 px views
    noise = torch.randint(256, (3, 100, 80), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    flat = torch.full((3, 120, 200), 9, dtype=torch.uint8)
    seen = framed(as_pictures([noise[:, :60, :50], flat]), views)
    assert seen.sizes.tolist() == [[25, 25], [32, 32]]
    assert torch.equal(seen.images[0, :, :25, :25], noise[:, 17:42, 12:37])
    assert seen.images[1].unique().tolist() == [9]


@pytest.fixture
def cifar_c(tmp_path):
    """CIFAR-10-C in small: 4 images a severity; the level is the place."""
    pixels = np.arange(20, dtype=np.uint8)[:, None, None, None] * np.ones((1, 32, 32, 3), dtype=np.uint8)
    np.save(tmp_path / "fog.npy", pixels)
    np.save(tmp_path / "spatter.npy", pixels + 100)
    np.save(tmp_path / "labels.npy", np.tile(np.array([3, 1, 0, 2], dtype=np.uint8), 5))
    return tmp_path


def test_cifar_c_is_read_in_blocks(cifar_c):
    stored = open_stored(f"folder:{cifar_c}", ("a", "b", "c", "d"))
    assert stored.names == ("fog", "spatter")
    third = stored.read("fog", 3)
    assert third.images[:, 0, 0, 0].tolist() == [8, 9, 10, 11]
    assert third.images.shape == (4, 3, 32, 32)
    assert third.labels.tolist() == [3, 1, 0, 2]
    assert third.sizes.tolist() == [[32, 32]] * 4
    assert stored.read("spatter", 5).images[-1, 2, 31, 31] == 119


def test_damaged_or_strange_cifar_c_is_a_sentence(cifar_c):
    with pytest.raises(ProsminError, match=r"labels in .* run from 0 to 3, but the data has 2 classes"):
        open_stored(f"folder:{cifar_c}", ("a", "b")).read("fog", 1)
    np.save(cifar_c / "fog.npy", np.zeros((19, 32, 32, 3), dtype=np.uint8))
    with pytest.raises(ProsminError, match=r"\(19, 32, 32, 3\) and labels.npy \(20,\); allowed"):
        open_stored(f"folder:{cifar_c}", tuple("abcd")).read("fog", 1)
    (cifar_c / "fog.npy").write_bytes(b"not an array")
    with pytest.raises(ProsminError, match=r"fog.npy cannot be read as an array"):
        open_stored(f"folder:{cifar_c}", tuple("abcd")).read("fog", 1)


def _imagenet_c(root, folders):
    for severity in SEVERITIES:
        for number, folder in enumerate(folders):
            place = root / "snow" / str(severity) / folder
            place.mkdir(parents=True)
            level = 40 * number + severity
            Image.new("RGB", (48, 48), (level,) * 3).save(place / "ILSVRC2012_val_1.JPEG", quality=100)
    return open_stored


def test_imagenet_c_is_read_by_folder(tmp_path):
    _imagenet_c(tmp_path, ["n00000001", "n00000002", "n00000009"])
    classes = ("n00000009", "n00000001", "n00000005", "n00000002")  # the data's numbers count, by name
    stored = open_stored(f"folder:{tmp_path}", classes)
    assert stored.names == ("snow",)
    second = stored.read("snow", 2)
    assert second.labels.tolist() == [1, 3, 0]
    assert second.classes == classes
    assert second.images[:, 0, 0, 0].tolist() == [2, 42, 82]
    words = open_stored(f"folder:{tmp_path}", ("tench", "goldfish", "shark"))  # ImageNet's order is that of the folders
    assert words.read("snow", 2).labels.tolist() == [0, 1, 2]
    with pytest.raises(ProsminError, match="classes the data has not, such as n00000002, n00000009"):
        open_stored(f"folder:{tmp_path}", ("n00000001", "n00000004")).read("snow", 2)


def test_what_is_no_corrupted_set_is_a_sentence(tmp_path):
    with pytest.raises(ProsminError, match=r"holds no corruption: neither labels\.npy"):
        open_stored(f"folder:{tmp_path}", ())
    with pytest.raises(UsageError, match=r"photos is no folder\. Give folder:PATH"):
        open_stored("photos", ())
    with pytest.raises(UsageError, match="Did you mean folder:"):
        open_stored(str(tmp_path), ())
