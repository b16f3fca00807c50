"""Encoders and images for the tests of `prosmin calibrate`, and a training of a second."""

from pathlib import Path

import pytest
import timm
import torch

from embedding import write_parquet
from prosmin.calibrate import heads
from prosmin.encoder import untrained
from tiny_methods import tiny_method

IMAGES = 120


@pytest.fixture(autouse=True)
def one_thread():
    """The bits of a sum depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def short_training(monkeypatch):
    monkeypatch.setattr(heads, "STEPS", 100)
    monkeypatch.setattr(heads, "WARM_UP", 10)


@pytest.fixture(scope="session")
def weights(tmp_path_factory) -> Path:
    """Weights of a small network of timm, as another program saved them."""
    file = tmp_path_factory.mktemp("weights") / "network.pth"
    with torch.random.fork_rng():
        torch.manual_seed(7)
        torch.save(timm.create_model("test_resnet", num_classes=3).state_dict(), file)
    return file


@pytest.fixture(scope="session")
def foreign(weights) -> str:
    return f"timm:test_resnet@{weights}"


@pytest.fixture(scope="session")
def dino(tmp_path_factory) -> Path:
    """The folder of an encoder of DINO."""
    return untrained(tiny_method("dino", views__global_size="16")).save(tmp_path_factory.mktemp("dino") / "run")


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> str:
    return write_parquet(tmp_path_factory.mktemp("calibration") / "images.parquet", IMAGES, seed=1)
