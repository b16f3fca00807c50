"""No image that is held out is trained on, nor is a copy of one."""

import shutil
from itertools import combinations

import pytest
import torch

from embedding import write_folder
from prosmin.calibrate import Request, calibrate, run


@pytest.fixture
def given(monkeypatch):
    """The evaluation views, in whitened coordinates, of the images that each step of a calibration is given."""
    found = {}
    fit_directions, fit_heads, judge = run.fit_directions, run.fit_heads, run.judge

    def directions(parts):
        made = fit_directions(parts)
        found["directions"] = (torch.cat(list(parts()))[:, 0] - made.centre) @ made.axes
        return made

    def heads(train, chosen, **more):
        found["train"], found["choice"] = train.x[:, 0], chosen.x[:, 0]
        return fit_heads(train, chosen, **more)

    def judged(fitted, examples):
        found["report"] = examples.x[:, 0]
        return judge(fitted, examples)

    for name, step in {"fit_directions": directions, "fit_heads": heads, "judge": judged}.items():
        monkeypatch.setattr(run, name, step)
    return found


def in_other(one, other):
    """Which images of one are among the others, apart from rounding: (N,)."""
    return torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist").amin(1) < 1e-3


def check(given, *, images):
    """Training, choice and report have no image in common, and the whitening is of training images."""
    assert torch.equal(in_other(given["directions"], given["train"]), torch.ones(images - 20, dtype=torch.bool))
    assert [len(given[name]) for name in ("train", "choice", "report")] == [images - 20, 10, 10]
    for one, other in combinations(("train", "choice", "report"), 2):
        assert not in_other(given[one], given[other]).any()


def test_held_out_images_are_not_trained_on(given, dino, data, tmp_path):
    calibrate(dino, Request(data=data, out=tmp_path / "out", views=2))
    check(given, images=120)


def test_copies_of_training_images_are_not_held_out(given, dino, tmp_path, capsys):
    spec = write_folder(tmp_path / "images", 120)
    for i in range(60):
        shutil.copy(tmp_path / f"images/{i:03d}.png", tmp_path / f"images/copy-{i:03d}.png")
    calibrate(dino, Request(data=spec, out=tmp_path / "out", views=2))
    check(given, images=120)
    assert "60 of 180 images are copies of others" in capsys.readouterr().out
