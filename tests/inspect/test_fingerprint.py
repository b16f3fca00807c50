"""Fingerprints: their length, what they keep of an image and what does not change them."""

import numpy as np
import pytest
import torch

from prosmin.inspect.fingerprint import COLOUR_SIDE, LENGTH, SIDE, fingerprint


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (7, 5), (32, 32), (512, 768)])
def test_every_size_gives_a_fingerprint_of_the_same_length(size: tuple[int, int]) -> None:
    found = fingerprint(torch.randint(256, (3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)))
    assert found.shape == (LENGTH,)
    assert found.dtype == np.uint8


def test_brightness_and_colours_are_those_of_the_image() -> None:
    picture = torch.zeros(3, 64, 96, dtype=torch.uint8)
    picture[:, :, 48:] = 200  # black on the left, grey on the right
    picture[0, 32:, :48] = 255  # red at the bottom left
    found = fingerprint(picture)
    brightness = found[: SIDE**2].reshape(SIDE, SIDE)
    blue, red = found[SIDE**2 :].reshape(2, COLOUR_SIDE, COLOUR_SIDE)
    assert brightness[0, 0] == 0
    assert brightness[0, -1] == 200
    assert brightness[-1, 0] == 76  # 0.299 * 255
    assert red[-1, 0] == 255
    assert blue[-1, 0] < 128
    assert (blue[0, 0], red[0, 0]) == (128, 128)  # no colour


def test_the_layout_in_memory_does_not_matter() -> None:
    picture = torch.randint(256, (3, 40, 50), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    by_pixel = picture.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    assert np.array_equal(fingerprint(picture), fingerprint(by_pixel))


def test_a_mirrored_image_has_the_mirrored_fingerprint() -> None:
    picture = torch.randint(256, (3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    brightness = fingerprint(picture)[: SIDE**2].reshape(SIDE, SIDE)
    mirrored = fingerprint(picture.flip(-1))[: SIDE**2].reshape(SIDE, SIDE)
    assert np.abs(brightness[:, ::-1].astype(int) - mirrored).max() <= 1  # rounding
