"""An encoder and images for the tests of encoders."""

import pytest
import torch
from PIL import Image

from coloured import coloured
from prosmin.encoder import Encoder, untrained
from tiny_methods import tiny_method


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return untrained(tiny_method("prosmin"))


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return coloured(5, side=40).images


@pytest.fixture(scope="module")
def belonging() -> torch.Tensor:
    """Enough for a reference."""
    return coloured(12, seed=1, side=40).images


@pytest.fixture
def float64_default():
    """As in a program that computes in float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def folder(tmp_path, images):
    """The five images as PNG files in a folder."""
    (tmp_path / "five").mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / "five" / f"{i}.png")
    return tmp_path / "five"
