"""Files are whole or not there, and what could not be written comes with the advice that helps."""

import errno
import os
import resource
import stat
import subprocess

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from prosmin import files
from prosmin.errors import ProsminError


def failing(number):
    return OSError(number, os.strerror(number))


def refused(path, number):
    """The sentence where writing fails half-way."""

    def write():
        with files.writing(path) as part:
            part.write_text("half")
            raise failing(number)

    with pytest.raises(ProsminError) as refusal:
        write()
    assert not path.exists()
    assert list(path.parent.iterdir()) == []
    return str(refusal.value)


@pytest.fixture
def umask():
    """A function that sets the umask, until the test has ended."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o002, 0o664)])
def test_the_umask_says_who_may_read_whoever_writes(tmp_path, umask, mask, mode):
    """safetensors makes a file of its own, for the owner alone, and renames it."""
    umask(mask)
    killed = subprocess.Popen(["true"])
    killed.wait()
    (tmp_path / f".x.{killed.pid}.part").touch(0o600)  # of a program that was killed
    for name in ("x", "y"):
        with files.writing(tmp_path / name) as part:
            save_file({"a": np.zeros(2)}, part)
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode
    files.write_text(tmp_path / "z", "text")
    assert stat.S_IMODE((tmp_path / "z").stat().st_mode) == mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y", "z"]


def test_two_processes_that_write_one_file_do_not_mix(tmp_path):
    """The slower one began first; what the other has half-written is neither taken nor removed."""
    other = subprocess.Popen(["sleep", "60"])
    try:
        with files.writing(tmp_path / "x") as part:
            part.write_text("ours")
            theirs = tmp_path / f".x.{other.pid}.part"
            theirs.write_text("half of th")
        files.write_text(tmp_path / "x", "ours again")
        assert (tmp_path / "x").read_text() == "ours again"
        assert theirs.read_text() == "half of th"
    finally:
        other.kill()
        other.wait()
    files.write_text(tmp_path / "x", "alone")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_wants_room(tmp_path, number):
    advice = "Free some space or choose another folder."
    assert refused(tmp_path / "x.txt", number) == f"{tmp_path}/x.txt cannot be written: {os.strerror(number)}. {advice}"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_a_closed_folder_wants_permission(tmp_path, monkeypatch, number):
    said = refused(tmp_path / "new" / "x.txt", number)
    assert f"{tmp_path / 'new'} is yours but closed for writing: open it, or choose another folder." in said
    assert "space" not in said
    monkeypatch.setattr(files.os, "geteuid", lambda: 4242424)
    owner = files._user(tmp_path.stat().st_uid)
    said = files.advice(failing(number), tmp_path / "deep" / "er" / "x.txt")
    assert said.startswith(f"{tmp_path} belongs to {owner} and you are user 4242424: have it opened for you")


def test_other_failures_want_another_place(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ProsminError, match=r"x\.txt cannot be written: .*\. Choose another folder\.$"):
        files.write_text(tmp_path / "file" / "x.txt", "text")
    assert files.advice(failing(errno.EROFS), tmp_path) == "Choose another folder."


def test_safetensors_tells_the_reason_in_its_text(tmp_path):
    full = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert files.advice(full, tmp_path / "x").startswith("Free some space")
    assert files.reason(full) == "No space left on device"
    assert files.reason(SafetensorError("no number")) == "no number"


def test_a_file_too_large_for_safetensors_is_a_sentence(tmp_path):
    """The limit is real and holds for this process alone while it writes; Python ignores the signal that comes too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        with pytest.raises(ProsminError) as refusal, files.writing(tmp_path / "x") as part:
            save_file({"a": np.zeros(4096)}, part)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(refusal.value) == (
        f"{tmp_path}/x cannot be written: File too large. "
        "Raise the limit on the size of a file, `ulimit -f`, or choose another folder."
    )
    assert not (tmp_path / "x").exists()


def test_whether_a_folder_can_be_written_is_known_beforehand(tmp_path, monkeypatch):
    files.check_writable(tmp_path / "new" / "er")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ProsminError, match=r"file/x cannot be written: Not a directory\. Choose another folder\."):
        files.check_writable(tmp_path / "file" / "x")

    def closed(dir):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(files.tempfile, "TemporaryFile", closed)  # root, as in many containers, may write everywhere
    with pytest.raises(ProsminError, match=r"new cannot be written: Permission denied\. .* is yours but closed"):
        files.check_writable(tmp_path / "new")
