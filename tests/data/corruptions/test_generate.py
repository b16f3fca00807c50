"""Corruptions depend only on seed and position; caching, processes and wrong requests."""

import dataclasses
import hashlib
import os
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import torch

from optional import need_imagecorruptions
from packed_images import as_pictures, difference, pixels
from prosmin.data.corruptions import generate, reference, weather
from prosmin.data.corruptions.generate import TORCH, corrupt, framed, generators
from prosmin.data.corruptions.parameters import ALL, CIFAR_10_C, IMAGENET_C, PARAMETERS, SEVERITIES
from prosmin.data.corruptions.primitives import to_bytes, to_unit
from prosmin.errors import ProsminError, UsageError

FIXED = (
    "defocus_blur", "zoom_blur", "gaussian_blur", "brightness", "contrast", "saturate", "pixelate", "jpeg_compression",
)  # fmt: skip


@pytest.mark.parametrize("parameters", PARAMETERS)
@pytest.mark.parametrize("name", TORCH)
def test_the_result_depends_only_on_seed_and_position(name, parameters, patches, monkeypatch):
    if name == "frost":
        need_imagecorruptions()

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
    if name not in FIXED:
        assert not torch.equal(copies[0], copies[1])
        assert not torch.equal(corrupt(patches, name, 3, seed=6).images, whole)
    else:
        assert torch.equal(copies[0], copies[5])


_HASHES = """
import hashlib, torch
from prosmin.data.corruptions.generate import TORCH, corrupt
from prosmin.data.image_sets import load_pictures
pictures = load_pictures("photos@test").subset(torch.arange(0, 840, 40))
names = [(name, "torch", parameters) for name in TORCH for parameters in ("imagenet-c", "cifar-10-c")]
names += [(name, "imagecorruptions", "imagenet-c") for name in ("spatter", "fog", "impulse_noise")]
for name, generator, parameters in names:
    made = corrupt(pictures, name, 4, seed=2, generator=generator, parameters=parameters)
    print(name, generator, parameters, hashlib.sha256(made.images.numpy().tobytes()).hexdigest())
"""


def test_another_process_makes_the_same_bytes(patches):
    need_imagecorruptions()
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


def test_the_library_gives_the_same_in_any_number_of_processes(patches, monkeypatch):
    need_imagecorruptions()
    np.random.seed(11)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    for name in ("impulse_noise", "glass_blur"):  # which have their own generators
        first, second = (corrupt(patches, name, 2, seed=0, generator="imagecorruptions").images for _ in range(2))
        assert torch.equal(first, second)
    alone = corrupt(patches, "spatter", 2, seed=0, generator="imagecorruptions").images
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    monkeypatch.setattr(reference, "_FEW", 0)
    monkeypatch.setattr(reference, "_CHUNK", 4 * 32 * 32)
    done: list[int] = []
    made = corrupt(patches, "spatter", 2, seed=0, generator="imagecorruptions", workers=2, progress=done.append)
    assert torch.equal(made.images, alone)
    assert done == [4, 4, 4, 4, 4, 1]


def test_an_error_names_the_status_of_a_process_that_ends(patches, monkeypatch):
    need_imagecorruptions()
    monkeypatch.setattr(reference, "_FEW", 0)
    monkeypatch.setattr(reference, "_CHUNK", 4 * 32 * 32)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ProsminError, match="status 1"):
        corrupt(patches, "spatter", 1, seed=0, generator="imagecorruptions", workers=2)


@pytest.mark.parametrize("generator", generate.GENERATORS)
def test_a_spatter_without_drops_is_the_clean_image(generator):
    """The library divides 0 by 0 and returns black."""
    if generator == "imagecorruptions":
        need_imagecorruptions()
    grey = as_pictures([torch.full((3, 32, 32), 128, dtype=torch.uint8)] * 150)
    made = corrupt(grey, "spatter", 1, seed=0, generator=generator).images
    dry = made.flatten(1).eq(128).all(1).sum()
    assert 1 <= dry < 30
    assert int(made.min()) >= 127


@pytest.mark.parametrize("name", ["gaussian_noise", "motion_blur", "frost", "spatter"])
def test_padding_is_not_corrupted(name, patches, oblong):
    if name == "frost":
        need_imagecorruptions()
    small, large = patches.subset(torch.arange(3)), oblong
    mixed = as_pictures([small.images[0], large.images[1], small.images[2]])
    made = corrupt(mixed, name, 2, seed=0)
    assert torch.equal(made.sizes, mixed.sizes)
    alone = corrupt(small, name, 2, seed=0).images
    assert torch.equal(made.images[0, :, :32, :32], alone[0])
    assert torch.equal(made.images[2, :, :32, :32], alone[2])
    assert torch.equal(made.images[1, :, :60, :46], corrupt(large, name, 2, seed=0).images[1])
    assert not made.images[0, :, 32:].any()
    assert not made.images[0, :, :, 32:].any()


def test_results_are_cached(patches, tmp_path, monkeypatch):
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


def test_without_the_library_only_frost_is_missing_and_named(patches, monkeypatch):
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


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        ({"name": "rain"}, "'rain'.*gaussian_noise"),
        ({"severity": 6}, r"\[6\].*1, 2, 3, 4, 5"),
        ({"generator": "cv2"}, "'cv2'.*imagenet-c: torch, imagecorruptions"),
        ({"generator": "imagecorruptions", "parameters": "cifar-10-c"}, "'imagecorruptions'.*cifar-10-c: torch"),
        ({"parameters": "auto"}, "'auto'.*: imagenet-c, cifar-10-c"),
    ],
)
def test_wrong_requests_are_named(patches, request_, named):
    with pytest.raises(UsageError, match=named):
        corrupt(**({"pictures": patches, "name": "fog", "severity": 1, "seed": 0} | request_))


def test_too_small_images_are_named():
    tiny = as_pictures([torch.zeros(3, 28, 28, dtype=torch.uint8)])
    with pytest.raises(ProsminError, match=r"28 pixels.*32"):
        corrupt(tiny, "fog", 1, seed=0)


def test_rounding_errors_do_not_lower_a_level():
    """Blurs of uniform parts and other devices are off by a few last bits."""
    levels = torch.arange(256, dtype=torch.uint8)
    for hair in (0.0, 3e-7, -3e-7):
        assert torch.equal(to_bytes(to_unit(levels) * (1 + hair)), levels)
    assert to_bytes(torch.tensor([-1.0, 0.5, 0.9999, 2.0])).tolist() == [0, 127, 254, 255]  # truncated, not rounded


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("parameters", PARAMETERS)
@pytest.mark.parametrize("name", TORCH)
def test_a_gpu_gives_the_same_to_one_grey_level(name, parameters, patches, oblong):
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


def test_framing_crops_and_reduces_but_never_enlarges(tiny):
    views = dataclasses.replace(tiny().views, crop_share=0.5)  # 32 px views
    noise = torch.randint(256, (3, 100, 80), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    flat = torch.full((3, 120, 200), 9, dtype=torch.uint8)
    seen = framed(as_pictures([noise[:, :60, :50], flat]), views)
    assert seen.sizes.tolist() == [[25, 25], [32, 32]]
    assert torch.equal(seen.images[0, :, :25, :25], noise[:, 17:42, 12:37])
    assert seen.images[1].unique().tolist() == [9]
