"""Parts of a finished file, left by a command that was killed before it removed them."""

import fcntl
import shutil

import pytest

from prosmin.cli import main
from prosmin.embed import run
from prosmin.embed.leftovers import remove_parts


@pytest.fixture
def command(encoder, specs, tmp_path):
    out = tmp_path / "x.parquet"
    return ["embed", str(encoder), "--data", specs[1], "--reference", "none", "--views", "0", "--out", str(out)]


@pytest.fixture
def parts(command, tmp_path, monkeypatch):
    """The file is finished, and its parts are still there."""
    with monkeypatch.context() as patch:
        patch.setattr(run.shutil, "rmtree", lambda *_, **__: None)
        assert main(command) == 0
    assert (tmp_path / "x.parquet").exists()
    return tmp_path / "x.parquet.parts"


def test_the_same_command_removes_them(parts, command, tmp_path, capsys):
    before = (tmp_path / "x.parquet").read_bytes()
    assert main(command) == 0
    assert "already" in capsys.readouterr().out
    assert not parts.exists()
    assert (tmp_path / "x.parquet").read_bytes() == before


def test_parts_that_a_process_uses_remain(parts, command):
    with (parts / ".lock.0").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(command) == 0
        assert any(parts.glob("part-*"))


def test_parts_with_other_settings_remain(parts, command):
    """They belong to another command, which continues with them."""
    (parts / "settings.json").write_text('{"data": "another"}')
    assert main(command) == 0
    assert any(parts.glob("part-*"))


def test_a_folder_that_is_removed_meanwhile(parts):
    settings = (parts / "settings.json").read_text()
    shutil.rmtree(parts)
    remove_parts(parts, {})
    parts.mkdir()
    (parts / "settings.json").write_text(settings[:-1])  # half-written
    remove_parts(parts, {})
    assert parts.exists()
