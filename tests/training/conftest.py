"""Runs of the tiny configuration that the training tests share."""

import shutil

import pytest
import torch
from PIL import Image

from prosmin import config as configs
from prosmin.methods.prosmin import ProSMIN
from prosmin.training.pretrain import pretrain
from tiny_run import TINY


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A run of six steps; not to be changed."""
    return pretrain(configs.resolve(recipe="demo", overrides=TINY), tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def unfinished(finished, tmp_path):
    """A copy of that run, stopped before the encoder was written."""
    run = shutil.copytree(finished, tmp_path / "unfinished")
    (run / "encoder.json").unlink()
    (run / "encoder.safetensors").unlink()
    return run


@pytest.fixture
def train(tiny, tmp_path):
    """A function that trains the tiny configuration with changes, in a folder of this name."""
    return lambda name="run", **changes: pretrain(tiny(**changes), tmp_path / name)


@pytest.fixture
def image_folder(tmp_path):
    """A function that writes so many images and returns their folder."""

    def write(count, size=32):
        folder = tmp_path / "images"
        folder.mkdir()
        for i in range(count):
            Image.new("RGB", (size, size), (5 * i, 2 * i, 255 - i)).save(folder / f"{i:02d}.png")
        return folder

    return write


@pytest.fixture
def infinite_loss(monkeypatch):
    """A function that makes the losses of the first images of a step, counted from 0, infinite."""
    score = ProSMIN.score

    def apply(step, images):
        def infinite(self, mean, scale, target, draws):
            losses = score(self, mean, scale, target, draws)
            if draws.step != step:
                return losses
            return torch.where(torch.arange(len(losses), device=losses.device) < images, losses / 0.0, losses)

        monkeypatch.setattr(ProSMIN, "score", infinite)

    return apply
