"""Files are written whole or not at all, and errors say what to do."""

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


def write_and_fail(path, number):
    """The message when writing fails half-way; no file may be left."""

    def write():
        with files.writing(path) as part:
            part.write_text("half")
            raise OSError(number, os.strerror(number))

    with pytest.raises(ProsminError) as caught:
        write()
    assert list(path.parent.iterdir()) == []
    return str(caught.value)


@pytest.fixture
def umask():
    """A function that sets the umask until the end of the test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o002, 0o664)])
def test_permissions_follow_the_umask(tmp_path, umask, mask, mode):
    """safetensors makes files that only the owner can read."""
    umask(mask)
    killed = subprocess.Popen(["true"])
    killed.wait()
    (tmp_path / f".x.{killed.pid}.part").touch(0o600)  # from a process that was killed
    for name in ("x", "y"):
        with files.writing(tmp_path / name) as part:
            save_file({"a": np.zeros(2)}, part)
    files.write_text(tmp_path / "z", "text")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"x": mode, "y": mode, "z": mode}


def test_two_processes_that_write_one_file_do_not_mix(tmp_path):
    """What the other process has half-written is neither used nor removed while it runs."""
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
def test_advice_for_a_full_disk(tmp_path, number):
    message = write_and_fail(tmp_path / "x.txt", number)
    assert message.startswith(f"{tmp_path}/x.txt cannot be written: {os.strerror(number)}. Free some space")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_advice_for_a_folder_without_permission(tmp_path, monkeypatch, number):
    message = write_and_fail(tmp_path / "new" / "x.txt", number)
    assert f"{tmp_path / 'new'} is yours" in message
    assert "space" not in message
    monkeypatch.setattr(files.os, "geteuid", lambda: 4242424)
    owner = files._user(tmp_path.stat().st_uid)
    advice = files.advice(OSError(number, ""), tmp_path / "deep" / "er" / "x.txt")
    assert advice.startswith(f"{tmp_path} belongs to {owner} and you are user 4242424")


def test_advice_for_other_errors(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ProsminError, match=r"x\.txt cannot be written: .*\. Choose another folder\.$"):
        files.write_text(tmp_path / "file" / "x.txt", "text")
    assert files.advice(OSError(errno.EROFS, ""), tmp_path) == "Choose another folder."
    full = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert files.advice(full, tmp_path / "x").startswith("Free some space")
    assert files.reason(full) == "No space left on device"
    assert files.reason(SafetensorError("no number")) == "no number"


def test_a_file_too_large_for_safetensors(tmp_path):
    """The limit is real, for this process while it writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        with (
            pytest.raises(ProsminError, match=r"/x cannot be written: File too large\. .*`ulimit -f`"),
            files.writing(tmp_path / "x") as part,
        ):
            save_file({"a": np.zeros(4096)}, part)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "x").exists()


def test_check_writable_before_long_work(tmp_path, monkeypatch):
    files.check_writable(tmp_path / "new" / "er")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ProsminError, match=r"file/x cannot be written: Not a directory\. Choose another folder\."):
        files.check_writable(tmp_path / "file" / "x")

    def closed(dir):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(files.tempfile, "TemporaryFile", closed)  # root may write everywhere
    with pytest.raises(ProsminError, match=r"new cannot be written: Permission denied\. .* is yours"):
        files.check_writable(tmp_path / "new")
