"""Run folders, encoders and Parquet files written by version 0.1.0 still load, continue and mean the same."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

import prosmin
from prosmin import cli

WRITTEN = Path(__file__).parent / "written_by_0_1_0"
CLOSE = 1e-4  # other processors sum in another order; the values are of the order of 1


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the files, in the current directory, since the run names its images by a relative path."""
    shutil.copytree(WRITTEN, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def test_encoder_gives_the_same_numbers(folder):
    shutil.copy(folder / "reference.safetensors", folder / "run/reference.safetensors")
    encoder = prosmin.load(folder / "run")
    expected = json.loads((folder / "values.json").read_text())
    features, mean, scale = encoder("folder:images")
    for name, tensor in (("features", features), ("mean", mean), ("scale", scale)):
        assert tensor.double().sum().item() == pytest.approx(expected[f"{name}_sum"], rel=CLOSE, abs=CLOSE)
    assert encoder.uncertainty("folder:images").tolist() == pytest.approx(expected["uncertainty"], abs=CLOSE)
    assert encoder.ood_score("folder:images").tolist() == pytest.approx(expected["ood"], abs=CLOSE)


def test_run_continues_from_its_checkpoint_to_the_same_weights(folder):
    finished = load_file(folder / "run/encoder.safetensors")
    for name in ("encoder.safetensors", "encoder.json"):
        (folder / "run" / name).unlink()
    lines = (folder / "run/metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "run/metrics.jsonl").write_text("".join(lines[:4]))
    words = ["--config", "run/config.yaml", "--out", "run", "--compute.accelerator", "cpu"]
    assert cli.main(["pretrain", *words]) == 0
    continued = load_file(folder / "run/encoder.safetensors")
    assert continued.keys() == finished.keys()
    for name, tensor in finished.items():
        torch.testing.assert_close(continued[name], tensor, rtol=CLOSE, atol=CLOSE)


def test_embed_knows_its_file(folder, capsys):
    before = pq.read_table(folder / "images.parquet")
    assert before.num_rows == 16
    again = folder / "again.parquet"
    assert cli.main(["embed", "run", "--data", "folder:images", "--out", str(again)]) == 0
    after = pq.read_table(again)
    assert after.schema.names[: len(before.schema.names)] == before.schema.names
    assert after["mean_log_scale"].to_pylist() == pytest.approx(before["mean_log_scale"].to_pylist(), abs=CLOSE)
    features = (torch.tensor(table["features"].to_pylist()) for table in (before, after))
    torch.testing.assert_close(*features, rtol=CLOSE, atol=CLOSE)
    # Scores are of another kind since: the settings say so, and the old file is not mixed with them.
    assert json.loads(after.schema.metadata[b"prosmin"])["settings"]["score"]
    assert cli.main(["embed", "run", "--data", "folder:images", "--out", "images.parquet"]) == 1
    assert "score: None ->" in capsys.readouterr().err
    assert pq.read_table(folder / "images.parquet").equals(before)
