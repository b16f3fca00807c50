"""Corruptions: ours against imagecorruptions-imaug, what they depend on, and sets as published."""

import dataclasses
import hashlib
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

from prosmin.data.corruptions import blur, generate, reference, weather
from prosmin.data.corruptions.draws import Draws
from prosmin.data.corruptions.framing import framed
from prosmin.data.corruptions.generate import TORCH, corrupt, generators
from prosmin.data.corruptions.levels import to_bytes, to_unit
from prosmin.data.corruptions.names import ALL, COMMON, EXTRA, SEVERITIES
from prosmin.data.corruptions.stored import open_stored
from prosmin.data.pictures import Pictures, load_pictures, pack
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


# Each gives the library, for one picture, the numbers that our draws gave for it.


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


def _elastic(draws, shape, severity):
    fields = iter(draws.uniform("field", 2, *shape)[0].double().numpy())
    return {"uniform": lambda low, high, size: low + (high - low) * next(fields)}


def _glass(draws, shape, severity):
    _, reach, passes = blur.GLASS[severity - 1]
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


SPREAD = {"motion_blur": (0.6, 3.0), "fog": (1.0, 6.0), "snow": (1.0, 6.0), "frost": (1.5, 15.0)}
"""About four times what two seeds of the library differ by: one draw decides a whole picture. Others: (0.3, 0.5)."""


@pytest.mark.parametrize("name", RANDOM)
def test_with_numbers_of_their_own_both_do_as_much_harm(name):
    """Peak signal-to-noise ratio in dB and mean level of 84 pictures, by severity."""
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


@pytest.mark.parametrize("name", TORCH)
def test_the_result_follows_from_seed_and_place_alone(name, patches, monkeypatch):
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
from prosmin.data.pictures import load_pictures
pictures = load_pictures("photos@test").subset(torch.arange(0, 840, 40))
names = [(name, "torch") for name in TORCH] + [(n, "imagecorruptions") for n in ("spatter", "fog", "impulse_noise")]
for name, generator in names:
    made = corrupt(pictures, name, 4, seed=2, generator=generator)
    print(name, generator, hashlib.sha256(made.images.numpy().tobytes()).hexdigest())
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
    assert len(rows) == len(TORCH) + 3
    for name, generator, digest in rows:
        made = corrupt(patches, name, 4, seed=2, generator=generator)
        assert hashlib.sha256(made.images.numpy().tobytes()).hexdigest() == digest, name


def test_the_library_s_do_not_depend_on_the_number_of_processes(patches, monkeypatch):
    np.random.seed(11)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    for name in ("impulse_noise", "glass_blur"):  # whose generators are their own
        first, second = (corrupt(patches, name, 2, seed=0, generator="imagecorruptions").images for _ in range(2))
        assert torch.equal(first, second)
    alone = corrupt(patches, "spatter", 2, seed=0).images
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    monkeypatch.setattr(reference, "_FEW", 0)
    monkeypatch.setattr(reference, "_CHUNK", 4 * 32 * 32)
    heard: list[int] = []
    made = corrupt(patches, "spatter", 2, seed=0, workers=2, progress=heard.append)
    assert torch.equal(made.images, alone)
    assert heard == [4, 4, 4, 4, 4, 1]


def test_a_process_that_ends_is_a_sentence(patches, monkeypatch):
    monkeypatch.setattr(reference, "_FEW", 0)
    monkeypatch.setattr(reference, "_CHUNK", 4 * 32 * 32)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ProsminError, match="process that corrupts pictures ended"):
        corrupt(patches, "spatter", 1, seed=0, workers=2)


def test_a_spatter_without_drops_is_the_clean_picture():
    """The library divides 0 by 0 and returns black."""
    grey = as_pictures([torch.full((3, 32, 32), 128, dtype=torch.uint8)] * 150)
    made = corrupt(grey, "spatter", 1, seed=0).images
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
    for other in ({"seed": 1}, {"severity": 3}, {"pictures": changed}):
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
    assert set(left_out) == {"frost", "spatter"}
    assert all("imagecorruptions-imaug" in reason for reason in left_out.values())
    assert set(made) == set(ALL) - set(left_out)
    assert set(made.values()) == {"torch"}


def test_wrong_requests_are_sentences(patches):
    with pytest.raises(UsageError, match=r"no corruption 'rain'; there are: gaussian_noise"):
        corrupt(patches, "rain", 1, seed=0)
    with pytest.raises(UsageError, match=r"severities are \[6\]; give one or more of 1"):
        corrupt(patches, "fog", 6, seed=0)
    with pytest.raises(UsageError, match=r"generator of spatter is 'torch'; allowed: imagecorruptions"):
        corrupt(patches, "spatter", 1, seed=0, generator="torch")
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
@pytest.mark.parametrize("name", TORCH)
def test_a_gpu_makes_the_same_within_a_grey_level(name, patches, oblong):
    for pictures in (patches, oblong):
        for severity in SEVERITIES:
            on_cpu, on_gpu = (pixels(corrupt(pictures, name, severity, seed=0, device=d)) for d in ("cpu", "cuda"))
            assert difference(on_cpu, on_gpu).max() <= 1


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
    """CIFAR-10-C in small: 4 pictures a severity; the level is the place."""
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
