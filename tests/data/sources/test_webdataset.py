"""Tar files: samples, labels, patterns, splits, and shards that cannot be used."""

import io
import tarfile

import pytest

from numbered_images import encoded, reds, write
from prosmin.data.image_sets import load_pictures
from prosmin.data.sources import open_source, split_spec
from prosmin.data.sources.webdataset import expand
from prosmin.errors import ProsminError, UsageError


def write_shard(path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def test_shards_with_labels(tmp_path):
    for shard in range(3):
        members = {}
        for i in range(2):
            members[f"s/{shard}{i}.cls"] = str(2 * shard + i).encode()
            members[f"s/{shard}{i}.png"] = encoded(10 * shard + i)
            members[f"s/{shard}{i}.json"] = b"{}"
        write_shard(tmp_path / f"train-{shard:04d}.tar", members)
    pictures = load_pictures(f"webdataset:{tmp_path}/train-{{0000..0002}}.tar")
    assert reds(pictures) == [0, 1, 10, 11, 20, 21]
    assert pictures.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert pictures.keys[2] == "train-0001.tar/s/10.png"
    for pattern in (f"{tmp_path}/*.tar", f"{tmp_path}", f"{tmp_path}/train-000{{0,1,2}}.tar"):
        assert len(open_source(f"webdataset:{pattern}")) == 6


def test_a_folder_of_several_splits_means_its_train(tmp_path, monkeypatch):
    for name, number in (("x-train-000", 1), ("x-train-001", 2), ("x-test-000", 3)):
        write_shard(tmp_path / f"{name}.tar", {"0.png": encoded(number)})
    assert reds(load_pictures(f"webdataset:{tmp_path}")) == [1, 2]
    monkeypatch.setenv("HOME", str(tmp_path))
    other = split_spec("webdataset:~/x-train-{000..001}.tar", "test")
    assert reds(load_pictures(other)) == [3]


def test_the_image_is_the_member_without_a_second_suffix(tmp_path):
    members = {"0.depth.png": encoded(9), "0.jpg": encoded(1), "0.mask.png": encoded(8), "1.seg.png": encoded(2)}
    write_shard(tmp_path / "a.tar", members)
    source = open_source(f"webdataset:{tmp_path}/a.tar")
    assert [source.key(i) for i in range(len(source))] == ["a.tar/0.jpg", "a.tar/1.seg.png"]


def test_images_that_count_as_one_sample_are_refused(tmp_path):
    write_shard(tmp_path / "a.tar", {f"s/IMG.2024.{i:02d}.png": encoded(i) for i in range(16)})
    with pytest.raises(ProsminError, match=r"16 images of .*a\.tar .*'s/IMG'"):
        open_source(f"webdataset:{tmp_path}/a.tar")


def test_names_that_are_not_utf8_can_be_printed(tmp_path):
    write_shard(tmp_path / "a.tar", {"1.png": encoded(1), "\udcff\udcfe.png": encoded(2)})
    source = open_source(f"webdataset:{tmp_path}/a.tar")
    assert [source.key(i) for i in range(2)] == ["a.tar/1.png", "a.tar/\ufffd\ufffd.png"]
    assert reds(load_pictures(source.spec)) == [1, 2]


def test_brackets_in_a_path(tmp_path):
    (tmp_path / "[x]").mkdir()
    for number, name in enumerate(["train-0", "train-1", "test"]):
        write_shard(tmp_path / f"[x]/{name}.tar", {"1.png": encoded(number)})
    assert reds(load_pictures(f"webdataset:{tmp_path}/[x]/train-0.tar")) == [0]
    assert reds(load_pictures(f"webdataset:{tmp_path}/[x]/train-{{0..1}}.tar")) == [0, 1]
    assert expand(f"{tmp_path}/[x]/test.tar") == [f"{tmp_path}/[x]/test.tar"]


def test_files_that_macos_adds_to_archives_are_skipped(tmp_path):
    write_shard(tmp_path / "a.tar", {"s/1.png": encoded(1), "__MACOSX/s/1.png": b"x", "__MACOSX/2.png": b"x"})
    source = open_source(f"webdataset:{tmp_path}/a.tar")
    assert [source.key(i) for i in range(len(source))] == ["a.tar/s/1.png"]


def test_without_labels_and_long_names(tmp_path):
    name = "x" * 150 + "é"
    write_shard(tmp_path / "a.tar", {f"{name}.jpg": encoded(7), "folder.v2/1.seg.png": encoded(8), "readme": b"x"})
    source = open_source(f"webdataset:{tmp_path}/a.tar")
    assert source.labels is None
    assert [source.key(i) for i in range(2)] == [f"a.tar/{name}.jpg", "a.tar/folder.v2/1.seg.png"]
    assert reds(load_pictures(f"webdataset:{tmp_path}/a.tar")) == [7, 8]


def test_splits(tmp_path):
    for name in ("train-00", "train-01", "val-00"):
        write_shard(tmp_path / f"{name}.tar", {"1.png": encoded()})
    spec = f"webdataset:{tmp_path}/train-{{00..01}}.tar"
    assert split_spec(spec, "test") == f"webdataset:{tmp_path}/val-*.tar"  # not two shards there
    assert len(open_source(split_spec(spec, "test"))) == 1
    with pytest.raises(UsageError, match=r"'train\+extra'"):
        split_spec(f"webdataset:{tmp_path}/val-00.tar", "train+extra")


def test_braces():
    assert expand("a{08..11}b{x,y}") == [f"a{n}b{c}" for n in ("08", "09", "10", "11") for c in "xy"]


@pytest.mark.parametrize("spec", ["{}/a.tar", "{}/*.tar", "https://example.org/a.tar"])
def test_missing_shards_are_named(tmp_path, spec):
    spec = f"webdataset:{spec.format(tmp_path)}"
    with pytest.raises(UsageError) as caught:
        open_source(spec)
    assert spec in str(caught.value)


@pytest.mark.parametrize(
    ("members", "error", "named"),
    [
        ({"1.txt": b"x"}, UsageError, r"a\.tar"),
        ({"1.png": encoded(), "2.png": encoded(), "1.cls": b"3"}, ProsminError, r"1 of 2 .*\.cls"),
        ({"1.png": encoded(), "1.cls": b"cat"}, ProsminError, r"1\.cls in .*b'cat'"),
        ({"1.png": encoded(), "1.cls": b"1609459"}, ProsminError, r"1\.cls in .*b'1609459'.*1,000,000"),
    ],
)
def test_unusable_members_are_named(tmp_path, members, error, named):
    write_shard(tmp_path / "a.tar", members)
    with pytest.raises(error, match=named):
        open_source(f"webdataset:{tmp_path}/a.tar")


def test_a_file_that_is_no_tar_file_is_named(tmp_path):
    write(tmp_path / "b.tar", b"nothing of the kind")
    with pytest.raises(ProsminError, match=r"b\.tar"):
        open_source(f"webdataset:{tmp_path}/b.tar")
