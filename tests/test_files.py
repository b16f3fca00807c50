"""Files are whole or not there, and what could not be written comes with the advice that helps."""

import errno
import os

import pytest
from safetensors import SafetensorError

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
