"""benchmarks/calibrated.py: runs and results of different numbers of epochs are kept apart."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from embedding import write_parquet

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))  # scripts, not a package

import calibrated


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the script without training or measuring: options -> the runs that were made and calibrated, the results."""
    write_parquet(tmp_path / "cifar10-train.parquet", 2, seed=0)
    monkeypatch.setattr(calibrated, "load", lambda _: SimpleNamespace(config=calibrated.configs.resolve()))
    monkeypatch.setattr(calibrated, "judge", lambda *_: {})

    def run(*options):
        found = []
        monkeypatch.setattr(calibrated, "pretrain", lambda config, out: found.append(out.name) or out)
        monkeypatch.setattr(
            calibrated, "calibrate", lambda _, request: found.append(request.out.name) or {"held_out": {}}
        )
        places = ["--data", str(tmp_path), "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "x.json")]
        calibrated.main([*places, *options])
        return found, json.loads((tmp_path / "x.json").read_text())

    return run


def test_runs_of_other_epochs_are_others(run):
    found, told = run("--epochs", "5", "--only", "mocov3")
    assert found == ["mocov3-5", "calibrated-mocov3-5"]
    assert told["encoders"]["MoCo v3"]["epochs"] == 5
    assert "--epochs 5" in told["command"]
    assert run("--epochs", "5", "--only", "mocov3")[0] == []  # it is in the file
    assert run("--epochs", "3", "--only", "mocov3")[0] == ["mocov3-3", "calibrated-mocov3-3"]


def test_the_shipped_encoder_is_calibrated_without_training(run):
    found, told = run("--only", "cifar10-vit")
    assert found == ["calibrated-cifar10-vit"]
    assert told["encoders"]["cifar10-vit"]["epochs"] is None
