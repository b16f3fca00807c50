"""Ctrl-C in the middle of a command: one message, status 130, nothing half-written, and the same command continues.

benchmarks/interrupts.py does the same for all commands at random moments; pretrain and embed have tests of their own.
"""

import shutil
import signal

import pytest
from PIL import Image

from optional import needs_onnx
from prosmin.cli import main
from prosmin.encoder import untrained
from prosmin.interrupts import MESSAGE
from started import Started, wait_until
from tiny_methods import tiny_method


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with images and an encoder."""
    root = tmp_path_factory.mktemp("interrupted")
    (root / "images").mkdir()
    for i in range(600):  # more than one part
        Image.new("RGB", (32, 32), (i % 256, i // 256 * 100, 0)).save(root / f"images/{i:03d}.png")
    untrained(tiny_method("prosmin")).save(root / "encoder")
    return root


def temporary(folder):
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.name.endswith(".part")]


def interrupt(words, folder, reached):
    """Start the command, press Ctrl-C when `reached` is true, and return what it printed."""
    process = Started(words, folder)
    wait_until(lambda: reached(process), process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert output.count(MESSAGE) == 1, output
    assert "Traceback" not in output
    assert temporary(folder) == []
    return output


def finish(words, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(words) == 0


def test_inspect_keeps_its_parts(folder, monkeypatch, capsys):
    words = ["inspect", "images", "--encoder", "encoder", "--out", "found"]
    parts = folder / "found" / ".parts"
    interrupt(words, folder, lambda _: any(parts.rglob("*.parquet")))
    assert any(parts.rglob("*.parquet"))
    finish(words, folder, monkeypatch)
    assert "600 images" in capsys.readouterr().out
    assert not parts.exists()


def test_evaluate_keeps_its_results(folder, monkeypatch, capsys):
    run = shutil.copytree(folder / "encoder", folder / "run")
    words = ["evaluate", "run", "--data", "photos@test", "--test", "photos@test", "--protocols", "knn,lowshot"]
    interrupt(words, folder, lambda _: (run / "results/knn.json").exists())
    before = (run / "results/knn.json").stat().st_mtime_ns
    finish(words, folder, monkeypatch)
    assert (run / "results/knn.json").stat().st_mtime_ns == before
    assert (run / "results/lowshot.json").exists()


@needs_onnx
def test_export_leaves_nothing(folder, monkeypatch):
    words = ["export", "encoder", "--format", "onnx", "--out", "models/encoder.onnx"]
    interrupt(words, folder, lambda _: (folder / "models").exists())
    assert not (folder / "models").exists()
    finish(words, folder, monkeypatch)
    assert (folder / "models/encoder.onnx").exists()


def test_doctor_leaves_nothing(folder):
    before = sorted(folder.iterdir())
    interrupt(["doctor"], folder, lambda process: "Self-test" in process.printed())
    assert sorted(folder.iterdir()) == before
