"""Folders: classes, splits, links, ImageNet and its variants as published."""

import os
import re
import stat
from types import SimpleNamespace

import pytest

from numbered_images import encoded, reds, write
from prosmin.data.image_sets import load_pictures
from prosmin.data.sources import open_source, split_spec
from prosmin.data.sources.folder import read_file
from prosmin.errors import ProsminError, UsageError


def test_flat_folder_has_no_labels(tmp_path):
    for number, name in enumerate(["b.PNG", "a.png", "c.jpeg", ".hidden.png", "notes.txt"]):
        write(tmp_path / name, number=number)
    pictures = load_pictures(f"folder:{tmp_path}")
    assert pictures.keys == ("a.png", "b.PNG", "c.jpeg")
    assert reds(pictures) == [1, 0, 2]
    assert pictures.labels is None
    assert pictures.classes == ()


def test_class_folders(tmp_path):
    write(tmp_path / "dog/deep/1.png", number=1)
    write(tmp_path / "cat/2.png", number=2)
    write(tmp_path / "cat/1.png", number=3)
    (tmp_path / "cow").mkdir()
    pictures = load_pictures(f"folder:{tmp_path}")
    assert pictures.classes == ("cat", "cow", "dog")
    assert pictures.labels.tolist() == [0, 0, 2]
    assert pictures.keys == ("cat/1.png", "cat/2.png", "dog/deep/1.png")
    assert reds(pictures) == [3, 2, 1]


def test_there_are_no_labels_if_an_image_lies_outside_the_class_folders(tmp_path):
    write(tmp_path / "cat/1.png")
    write(tmp_path / "1.png")
    assert open_source(f"folder:{tmp_path}").labels is None
    assert len(open_source(f"folder:{tmp_path}")) == 2


def test_splits(tmp_path):
    for split, count in (("train", 2), ("val", 1)):
        for i in range(count):
            write(tmp_path / split / "cat" / f"{i}.png")
    assert len(open_source(f"folder:{tmp_path}")) == 2  # train, if there are both
    assert len(open_source(f"folder:{tmp_path}@val")) == 1
    assert split_spec(f"folder:{tmp_path}", "val") == f"folder:{tmp_path}@val"
    assert split_spec(f"folder:{tmp_path}@train", "test") == f"folder:{tmp_path}@val"
    assert split_spec(f"folder:{tmp_path}/train", "test") == f"folder:{tmp_path}/val"
    write(tmp_path / "test/1.png")  # without labels, as in ImageNet
    for spec, test in ((f"{tmp_path}", "@val"), (f"{tmp_path}@train", "@val"), (f"{tmp_path}/train", "/val")):
        assert split_spec(f"folder:{spec}", "test") == f"folder:{tmp_path}{test}"
    write(tmp_path / "test/cat/1.png")
    assert split_spec(f"folder:{tmp_path}", "test") == f"folder:{tmp_path}@test"
    with pytest.raises(UsageError, match=r"'ood'.*test, train, val"):
        open_source(f"folder:{tmp_path}@ood")
    with pytest.raises(UsageError, match=re.escape(f"{tmp_path / 'train/cat/train'}")):
        split_spec(f"folder:{tmp_path / 'train/cat'}", "train")


def test_severity_folders_of_corruption_sets(tmp_path):
    write(tmp_path / "gaussian_noise/3/n01440764/1.JPEG")
    for spec in (f"folder:{tmp_path}/gaussian_noise/3", f"folder:{tmp_path}/gaussian_noise@3"):
        assert open_source(spec).classes == ("n01440764",)


def test_at_sign_in_a_path(tmp_path):
    write(tmp_path / "me@home" / "1.png")
    assert len(open_source(f"folder:{tmp_path}/me@home")) == 1


def test_at_sign_in_a_path_below_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for split in ("train", "test"):
        write(tmp_path / "my@pics" / split / "1.png")
    assert split_spec("folder:~/my@pics", "test") == "folder:~/my@pics@test"


def test_links_that_form_a_circle(tmp_path):
    write(tmp_path / "a/1.png")
    (tmp_path / "a/again").symlink_to(tmp_path, target_is_directory=True)
    assert len(open_source(f"folder:{tmp_path}")) == 1


def test_a_link_to_itself_is_skipped(tmp_path):
    write(tmp_path / "a/1.png")
    (tmp_path / "self").symlink_to("self")
    source = open_source(f"folder:{tmp_path}")
    assert (len(source), source.classes) == (1, ("a",))


def test_linked_images_count_once_under_their_own_path(tmp_path):
    write(tmp_path / "outside/1.png")
    write(tmp_path / "set/m/1.png")
    write(tmp_path / "set/z/1.png")
    for link, target in (("a", "set/m"), ("b/deep", "set/z"), ("c", "outside"), ("d", "outside")):
        (tmp_path / "set" / link).parent.mkdir(exist_ok=True)
        (tmp_path / "set" / link).symlink_to(tmp_path / target, target_is_directory=True)
    source = open_source(f"folder:{tmp_path}/set")
    assert [source.key(i) for i in range(len(source))] == ["c/1.png", "m/1.png", "z/1.png"]
    assert [source.classes[i] for i in source.labels] == ["c", "m", "z"]


def test_a_pipe_is_not_waited_for(tmp_path, monkeypatch):
    write(tmp_path / "1.png", number=1)
    os.mkfifo(tmp_path / "p.png")
    # With a writer, opening does not wait, so this test cannot hang.
    writer = os.open(tmp_path / "p.png", os.O_RDWR | os.O_NONBLOCK)
    opened = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, flags: opened.append(flags) or real(path, flags))
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", lambda file, count: pytest.fail("the pipe was read"))
        with pytest.raises(OSError, match="not a file"):
            read_file(str(tmp_path / "p.png"))
    os.close(writer)
    assert opened[0] & os.O_NONBLOCK
    pictures = load_pictures(f"folder:{tmp_path}", max_bad=0.5)
    assert (reds(pictures), pictures.bad) == ([1], ("p.png: not a file",))


def test_wrong_folders(tmp_path):
    with pytest.raises(UsageError, match=rf"{tmp_path}.*\.jpg"):
        open_source(f"folder:{tmp_path}")
    write(tmp_path / "1.png")
    for name in ("missing", "1.png"):
        with pytest.raises(UsageError, match=f"{tmp_path}/{name}"):
            open_source(f"folder:{tmp_path}/{name}")
    with pytest.raises(UsageError, match="folder:PATH"):
        open_source("folder:")


def test_a_file_is_read_whole_even_if_the_system_returns_less(tmp_path, monkeypatch):
    content = bytes(range(256)) * 40
    (tmp_path / "1.png").write_bytes(content)
    (tmp_path / "2.png").write_bytes(b"")
    source = open_source(f"folder:{tmp_path}")
    assert [source.read(0), source.read(1)] == [content, b""]
    real = os.read
    monkeypatch.setattr(os, "read", lambda file, count: real(file, min(count, 999)))
    assert source.read(0) == content
    monkeypatch.setattr(
        os, "fstat", lambda file: SimpleNamespace(st_size=0, st_mode=stat.S_IFREG)
    )  # some file systems report 0
    assert [source.read(0), source.read(1)] == [content, b""]


def test_unreadable_folder_is_named(tmp_path):
    write(tmp_path / "locked/1.png")
    (tmp_path / "locked").chmod(0)
    try:
        if os.access(tmp_path / "locked", os.R_OK):
            pytest.skip("this user may list any folder")
        with pytest.raises(ProsminError, match="locked"):
            open_source(f"folder:{tmp_path}")
    finally:
        (tmp_path / "locked").chmod(0o700)


def test_a_folder_with_training_and_testing_means_training(tmp_path):
    for name, number in (("training/a/0.png", 1), ("training/b/0.png", 2), ("testing/a/0.png", 3)):
        write(tmp_path / name, encoded(number))
    pictures = load_pictures(f"folder:{tmp_path}")
    assert (reds(pictures), pictures.classes) == ([1, 2], ("a", "b"))
    assert reds(load_pictures(split_spec(f"folder:{tmp_path}", "test"))) == [3]


WNIDS = ("n01440764", "n01443537", "n01484850", "n02012849", "n03126707")
SOME = (WNIDS[4], WNIDS[1])


@pytest.fixture
def trees(tmp_path):
    """ImageNet in torchvision's layout with its unlabelled test images, ImageNet-O and -C."""
    for i, wnid in enumerate(WNIDS):
        write(tmp_path / f"imagenet/train/{wnid}/{wnid}_1.JPEG", number=i)
        write(tmp_path / f"imagenet/val/{wnid}/ILSVRC2012_val_0000000{i}.JPEG", number=i)
        write(tmp_path / f"imagenet-c/fog/3/{wnid}/ILSVRC2012_val_0000000{i}.JPEG", number=i)
    write(tmp_path / "imagenet/test/ILSVRC2012_test_00000001.JPEG")
    for wnid in SOME:
        write(tmp_path / f"imagenet-o/{wnid}/n00005787_13.JPEG")
    (tmp_path / "imagenet-o/README.txt").write_text("200 classes")
    return tmp_path


def test_imagenet_is_tested_on_val(trees):
    spec = f"folder:{trees}/imagenet"
    assert split_spec(spec, "test") == f"{spec}@val"
    train, test = open_source(split_spec(spec, "train")), open_source(split_spec(spec, "test"))
    assert train.classes == test.classes == WNIDS
    assert test.labels.tolist() == [0, 1, 2, 3, 4]


def test_imagenet_c_has_the_same_classes(trees):
    assert open_source(f"folder:{trees}/imagenet-c/fog/3").classes == WNIDS
    assert open_source(f"folder:{trees}/imagenet-c/fog@3").labels.tolist() == [0, 1, 2, 3, 4]


def test_imagenet_o_has_some_of_the_classes(trees):
    """So the ood protocol compares it only with test images of those classes."""
    assert open_source(f"folder:{trees}/imagenet-o").classes == (WNIDS[1], WNIDS[4])
