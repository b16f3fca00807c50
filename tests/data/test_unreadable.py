"""Unreadable images: left out, named and counted; too many are an error."""

import os

import pytest
import torch

from numbered_images import encoded, reds, write
from prosmin.data.image_sets import load_pictures, open_pictures
from prosmin.data.sources import open_source
from prosmin.data.sources.folder import read_file
from prosmin.data.stream import Stream, open_feed
from prosmin.data.unreadable import CheckedSource
from prosmin.errors import ProsminError


def make(folder, good: int) -> list[str]:
    """A folder of good images and four bad ones; the names of the bad."""
    for i in range(good):
        write(folder / f"good{i:03d}.png", number=i)
    write(folder / "empty.jpg", b"")
    write(folder / "text.jpg", b"hello")
    write(folder / "truncated.jpg", encoded(5, (100, 100), "JPEG")[:400])
    (folder / "gone.png").symlink_to(folder / "nowhere.png")
    return ["empty.jpg", "gone.png", "text.jpg", "truncated.jpg"]


def test_unreadable_images_are_left_out_and_named(tmp_path):
    names = make(tmp_path, good=6)
    pictures = load_pictures(f"folder:{tmp_path}", max_bad=0.4)
    assert [line.split(":")[0] for line in pictures.bad] == names
    assert "No such file" in pictures.bad[1]
    assert "empty" in pictures.bad[0]
    assert pictures.keys == tuple(f"good{i:03d}.png" for i in range(6))
    assert reds(pictures) == list(range(6))


def test_too_many_stop_with_the_list(tmp_path):
    make(tmp_path, good=6)
    with pytest.raises(ProsminError, match=r"(?s)4 of 10 .*0\.39.*empty\.jpg.*truncated\.jpg"):
        load_pictures(f"folder:{tmp_path}", max_bad=0.39)


def test_only_commands_with_an_option_for_it_name_it(tmp_path):
    make(tmp_path, good=6)
    spec = f"folder:{tmp_path}"
    with pytest.raises(ProsminError) as evaluating:
        open_pictures(spec)
    stream = Stream(CheckedSource(open_source(spec), 0.01), device=torch.device("cpu"))
    with pytest.raises(ProsminError) as streaming:
        list(stream.batches([torch.arange(10)]))
    for caught in (evaluating, streaming):
        assert "0.01" in str(caught.value)
        assert "--" not in str(caught.value)
    with pytest.raises(ProsminError, match=r"--data\.max_bad SHARE:\n  empty"):
        open_feed(spec, device="cpu")


def test_the_list_ends_after_twenty(tmp_path):
    for i in range(60):
        write(tmp_path / f"{i:02d}.jpg", b"")
    with pytest.raises(ProsminError) as caught:
        load_pictures(f"folder:{tmp_path}", max_bad=0.5)
    message = str(caught.value)
    assert "31 of 60" in message  # it stops as soon as there are too many
    assert "19.jpg" in message
    assert "20.jpg" not in message
    assert message.endswith("...")


def test_labels_belong_to_the_images_that_are_left(tmp_path):
    for name in ("a/1", "a/2", "b/1", "b/2"):
        write(tmp_path / f"{name}.png")
    write(tmp_path / "a/1.png", b"")
    pictures = load_pictures(f"folder:{tmp_path}", max_bad=0.5)
    assert pictures.labels.tolist() == [0, 1, 1]


def test_it_is_an_error_if_no_image_can_be_read(tmp_path):
    write(tmp_path / "1.jpg", b"")
    with pytest.raises(ProsminError, match="1 of 1"):
        load_pictures(f"folder:{tmp_path}", max_bad=1.0)


def test_unreadable_file_is_named(tmp_path):
    write(tmp_path / "locked.png")
    write(tmp_path / "open.png")
    (tmp_path / "locked.png").chmod(0)
    if os.access(tmp_path / "locked.png", os.R_OK):
        pytest.skip("this user may read any file")
    assert load_pictures(f"folder:{tmp_path}", max_bad=0.5).bad == ("locked.png: Permission denied",)


def test_an_error_of_the_system_is_recorded(tmp_path, monkeypatch):
    for i in range(2):
        write(tmp_path / f"{i}.png", number=i)

    def refuse(path):
        if path.endswith("0.png"):
            raise PermissionError(13, "Permission denied")
        return read_file(path)

    monkeypatch.setattr("prosmin.data.sources.folder.read_file", refuse)
    pictures = load_pictures(f"folder:{tmp_path}", max_bad=0.5)
    assert pictures.bad == ("0.png: Permission denied",)
    assert reds(pictures) == [1]


def test_unicode_and_undecodable_names(tmp_path):
    names = ["猫.png", "Ünïcödé ☃.png", "with space.png", "new\nline.png"]
    for i, name in enumerate(sorted(names)):
        write(tmp_path / name, number=i)
    assert load_pictures(f"folder:{tmp_path}").keys == tuple(sorted(names))
    raw = os.fsencode(tmp_path) + b"/\xff\xfe.png"
    try:
        with open(raw, "wb") as file:
            file.write(b"no image")
    except OSError:
        return  # a file system that takes valid names only
    line = load_pictures(f"folder:{tmp_path}", max_bad=0.5).bad[0]
    line.encode("utf-8")  # can be printed
