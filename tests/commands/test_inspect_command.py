"""`prosmin inspect` as a command: where the results go, what it prints, how it fails."""

from pathlib import Path

import pytest

from inspecting import listed, numbered, rows, write_images
from prosmin.cli import main
from prosmin.commands.inspect import default_out
from prosmin.encoder import untrained
from tiny_methods import tiny_method


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return untrained(tiny_method("prosmin", views__global_size="16")).save(tmp_path_factory.mktemp("cli") / "encoder")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory with a folder of images."""
    write_images(tmp_path / "holiday", numbered(12))
    (tmp_path / "holiday/broken.png").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_results_go_beside_the_folder_by_default(place, encoder, capsys):
    assert main(["inspect", "holiday", "--encoder", str(encoder), "--representative", "3"]) == 0
    out = place / "inspection-holiday"
    assert len(rows(out)) == 12
    assert sum(row["representative"] is not None for row in rows(out).values()) == 3
    printed = capsys.readouterr().out
    assert str(out.relative_to(place) / "index.html") in printed
    assert "12 images" in printed


@pytest.mark.parametrize(
    ("given", "out"),
    [
        ("folder:holiday", "inspection-holiday"),
        ("holiday/", "inspection-holiday"),
        ("holiday/../holiday", "inspection-holiday"),
        ("photos@test", "inspection-photos@test"),
        ("parquet:some/x.parquet", "inspection-x.parquet"),
    ],
)
def test_the_default_name(place, given, out):
    assert default_out(given) == Path(out)


def test_the_default_is_never_inside_the_folder(place, monkeypatch):
    (place / "holiday/deep").mkdir()
    for inside in ("holiday", "holiday/deep"):
        monkeypatch.chdir(place / inside)
        assert default_out(f"folder:{place / 'holiday'}") == place / "inspection-holiday"
    assert default_out("folder:..") == place / "inspection-holiday"


def test_options_reach_the_inspection(place, encoder):
    write_images(place / "good", numbered(40), seed=3)
    command = ["inspect", "holiday", "--encoder", str(encoder), "--reference", "good", "--false-alarms", "0.9"]
    assert main([*command, "--out", "results"]) == 0
    assert {line["kind"] for line in listed(place / "results")} >= {"ood", "unreadable"}


@pytest.mark.parametrize(
    ("arguments", "status", "part"),
    [
        (["inspect", "holidy"], 2, "holiday"),
        (["inspect", "holiday", "--false-alarms", "2"], 2, "--false-alarms"),
        (["inspect", "fodler:holiday"], 2, "folder:holiday"),
        (["inspect", "holiday", "--out", "holiday/000.png/x"], 1, "000.png"),
        (["inspect", "holiday", "--encoder", "nowhere"], 1, "nowhere"),
        (["inspect", "holiday", "--reference", "nowhere"], 2, "nowhere"),
    ],
)
def test_failures_are_one_message(place, encoder, capsys, arguments, status, part):
    more = [] if "--encoder" in arguments else ["--encoder", str(encoder)]
    assert main([*arguments, *more]) == status
    error = capsys.readouterr().err
    assert part in error
    assert "Traceback" not in error
    assert not list(place.glob("inspection-*"))
