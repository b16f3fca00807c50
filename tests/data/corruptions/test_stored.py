"""Corrupted sets as published: CIFAR-10-C and ImageNet-C."""

import numpy as np
import pytest
from PIL import Image

from prosmin.data.corruptions.parameters import SEVERITIES
from prosmin.data.corruptions.stored import open_stored
from prosmin.errors import ProsminError, UsageError


@pytest.fixture
def cifar_c(tmp_path):
    """A small CIFAR-10-C: 4 images per severity; the grey level is the index."""
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


def test_unusable_cifar_c_is_named(cifar_c):
    with pytest.raises(ProsminError, match=r"0 to 3.* 2 classes"):
        open_stored(f"folder:{cifar_c}", ("a", "b")).read("fog", 1)
    np.save(cifar_c / "fog.npy", np.zeros((19, 32, 32, 3), dtype=np.uint8))
    with pytest.raises(ProsminError, match=r"\(19, 32, 32, 3\).*\(20,\)"):
        open_stored(f"folder:{cifar_c}", tuple("abcd")).read("fog", 1)
    (cifar_c / "fog.npy").write_bytes(b"not an array")
    with pytest.raises(ProsminError, match=r"fog\.npy"):
        open_stored(f"folder:{cifar_c}", tuple("abcd")).read("fog", 1)


def _imagenet_c(root, folders):
    for severity in SEVERITIES:
        for number, folder in enumerate(folders):
            place = root / "snow" / str(severity) / folder
            place.mkdir(parents=True)
            level = 40 * number + severity
            Image.new("RGB", (48, 48), (level,) * 3).save(place / "ILSVRC2012_val_1.JPEG", quality=100)


def test_imagenet_c_is_read_by_folder(tmp_path):
    _imagenet_c(tmp_path, ["n00000001", "n00000002", "n00000009"])
    classes = ("n00000009", "n00000001", "n00000005", "n00000002")  # numbers are those of the data
    stored = open_stored(f"folder:{tmp_path}", classes)
    assert stored.names == ("snow",)
    second = stored.read("snow", 2)
    assert second.labels.tolist() == [1, 3, 0]
    assert second.classes == classes
    assert second.images[:, 0, 0, 0].tolist() == [2, 42, 82]
    words = open_stored(f"folder:{tmp_path}", ("tench", "goldfish", "shark"))  # ImageNet's order is that of the folders
    assert words.read("snow", 2).labels.tolist() == [0, 1, 2]
    with pytest.raises(ProsminError, match="n00000002, n00000009"):
        open_stored(f"folder:{tmp_path}", ("n00000001", "n00000004")).read("snow", 2)


def test_what_is_not_a_corrupted_set_is_named(tmp_path):
    with pytest.raises(ProsminError, match=rf"{tmp_path}.*labels\.npy"):
        open_stored(f"folder:{tmp_path}", ())
    with pytest.raises(UsageError, match=r"photos.*folder:PATH"):
        open_stored("photos", ())
    with pytest.raises(UsageError, match=r" folder:.*\?"):
        open_stored(str(tmp_path), ())
