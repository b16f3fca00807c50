"""Where images come from: every SPEC, its labels and splits, and what is said when it is wrong."""

import io
import json
import os
import pickle
import re
import stat
import sys
import tarfile
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from prosmin.data.image_sets import load_pictures, open_pictures, pack
from prosmin.data.sources import open_source, place_of, split_spec
from prosmin.data.sources.folder import read_file
from prosmin.data.sources.webdataset import expand
from prosmin.data.stream import StreamFeed, open_feed
from prosmin.errors import ProsminError, UsageError

RNG = np.random.default_rng(0)


def picture(number: int = 0, size: tuple[int, int] = (8, 6)) -> Image.Image:
    """An image whose red channel is its number."""
    return Image.new("RGB", size, (number, 20, 30))


def encoded(number: int = 0, size: tuple[int, int] = (8, 6), format: str = "PNG") -> bytes:
    file = io.BytesIO()
    picture(number, size).save(file, format)
    return file.getvalue()


def write(path, data: bytes | None = None, number: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(number) if data is None else data)


def reds(pictures) -> list[int]:
    return pictures.images[:, 0, 0, 0].tolist()


class TestSpecs:
    @pytest.mark.parametrize("spec", ["", "photographs", "folder", "ftp:x", "photos:train", "PHOTOS"])
    def test_unknown_spec_says_what_would_work(self, spec):
        with pytest.raises(UsageError, match=r"folder:PATH.*parquet:PATH.*torchvision:NAME@ROOT.*hf:NAME"):
            open_source(spec)

    @pytest.mark.parametrize(
        ("spec", "meant"),
        [
            ("fodler:a/b@c", "folder:a/b@c"),
            ("Parquet:x", "parquet:x"),
            ("torchvison:CIFAR10@data", "torchvision:CIFAR10@data"),
            ("photo@test", "photos@test"),
            ("photos:train", "photos@train"),
            ("PHOTOS", "photos"),
        ],
    )
    def test_a_slip_of_the_hand_is_guessed(self, spec, meant):
        with pytest.raises(UsageError, match=re.escape(f"{spec!r} names no source. Did you mean {meant}? Allowed")):
            open_source(spec)

    @pytest.mark.parametrize("spec", ["", "ftp:x", "folder", "C:\\images"])
    def test_what_is_far_from_everything_is_not(self, spec):
        with pytest.raises(UsageError, match=r"names no source\. Allowed"):
            open_source(spec)

    def test_path_without_scheme_is_guessed(self, tmp_path):
        with pytest.raises(UsageError, match=re.escape(f"Did you mean folder:{tmp_path}?")):
            open_source(str(tmp_path))
        write(tmp_path / "x.parquet", b"")
        with pytest.raises(UsageError, match=re.escape(f"Did you mean parquet:{tmp_path / 'x.parquet'}?")):
            open_source(str(tmp_path / "x.parquet"))

    def test_splits_of_photos(self):
        assert split_spec("photos", "test") == "photos@test"
        assert split_spec("photos@train", "ood") == "photos@ood"
        with pytest.raises(UsageError, match="train, test, ood"):
            split_spec("photos", "val")


class TestFolder:
    def test_flat_folder_has_no_labels(self, tmp_path):
        for number, name in enumerate(["b.PNG", "a.png", "c.jpeg", ".hidden.png", "notes.txt"]):
            write(tmp_path / name, number=number)
        pictures = load_pictures(f"folder:{tmp_path}")
        assert pictures.keys == ("a.png", "b.PNG", "c.jpeg")
        assert reds(pictures) == [1, 0, 2]
        assert pictures.labels is None
        assert pictures.classes == ()

    def test_class_folders(self, tmp_path):
        write(tmp_path / "dog/deep/1.png", number=1)
        write(tmp_path / "cat/2.png", number=2)
        write(tmp_path / "cat/1.png", number=3)
        (tmp_path / "cow").mkdir()
        pictures = load_pictures(f"folder:{tmp_path}")
        assert pictures.classes == ("cat", "cow", "dog")
        assert pictures.labels.tolist() == [0, 0, 2]
        assert pictures.keys == ("cat/1.png", "cat/2.png", "dog/deep/1.png")
        assert reds(pictures) == [3, 2, 1]

    def test_pictures_beside_folders_take_the_labels_away(self, tmp_path):
        write(tmp_path / "cat/1.png")
        write(tmp_path / "1.png")
        assert open_source(f"folder:{tmp_path}").labels is None
        assert len(open_source(f"folder:{tmp_path}")) == 2

    def test_splits(self, tmp_path):
        for split, count in (("train", 2), ("val", 1)):
            for i in range(count):
                write(tmp_path / split / "cat" / f"{i}.png")
        assert len(open_source(f"folder:{tmp_path}")) == 2  # train, where both are there
        assert len(open_source(f"folder:{tmp_path}@val")) == 1
        assert split_spec(f"folder:{tmp_path}", "val") == f"folder:{tmp_path}@val"
        assert split_spec(f"folder:{tmp_path}@train", "test") == f"folder:{tmp_path}@val"
        assert split_spec(f"folder:{tmp_path}/train", "test") == f"folder:{tmp_path}/val"
        write(tmp_path / "test/1.png")  # without labels, as ImageNet publishes its own: all test on val
        for spec, test in ((f"{tmp_path}", "@val"), (f"{tmp_path}@train", "@val"), (f"{tmp_path}/train", "/val")):
            assert split_spec(f"folder:{spec}", "test") == f"folder:{tmp_path}{test}"
        write(tmp_path / "test/cat/1.png")
        assert split_spec(f"folder:{tmp_path}", "test") == f"folder:{tmp_path}@test"
        with pytest.raises(UsageError, match="no split 'ood'; it has: test, train, val"):
            open_source(f"folder:{tmp_path}@ood")
        with pytest.raises(UsageError, match=re.escape(f"no folder {tmp_path / 'train/cat/train'}")):
            split_spec(f"folder:{tmp_path / 'train/cat'}", "train")

    def test_severity_folders_of_corruption_sets(self, tmp_path):
        write(tmp_path / "gaussian_noise/3/n01440764/1.JPEG")
        for spec in (f"folder:{tmp_path}/gaussian_noise/3", f"folder:{tmp_path}/gaussian_noise@3"):
            assert open_source(spec).classes == ("n01440764",)

    def test_at_sign_in_a_path(self, tmp_path):
        write(tmp_path / "me@home" / "1.png")
        assert len(open_source(f"folder:{tmp_path}/me@home")) == 1

    def test_at_sign_in_a_path_below_the_home(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        for split in ("train", "test"):
            write(tmp_path / "my@pics" / split / "1.png")
        assert split_spec("folder:~/my@pics", "test") == "folder:~/my@pics@test"

    def test_links_in_circles_end(self, tmp_path):
        write(tmp_path / "a/1.png")
        (tmp_path / "a/again").symlink_to(tmp_path, target_is_directory=True)
        assert len(open_source(f"folder:{tmp_path}")) == 1

    def test_a_link_to_itself_is_passed_over(self, tmp_path):
        write(tmp_path / "a/1.png")
        (tmp_path / "self").symlink_to("self")
        source = open_source(f"folder:{tmp_path}")
        assert (len(source), source.classes) == (1, ("a",))

    def test_pictures_count_once_and_where_they_lie(self, tmp_path):
        write(tmp_path / "outside/1.png")
        write(tmp_path / "set/m/1.png")
        write(tmp_path / "set/z/1.png")
        for link, target in (("a", "set/m"), ("b/deep", "set/z"), ("c", "outside"), ("d", "outside")):
            (tmp_path / "set" / link).parent.mkdir(exist_ok=True)
            (tmp_path / "set" / link).symlink_to(tmp_path / target, target_is_directory=True)
        source = open_source(f"folder:{tmp_path}/set")
        assert [source.key(i) for i in range(len(source))] == ["c/1.png", "m/1.png", "z/1.png"]
        assert [source.classes[i] for i in source.labels] == ["c", "m", "z"]

    def test_a_pipe_is_not_waited_for(self, tmp_path, monkeypatch):
        write(tmp_path / "1.png", number=1)
        os.mkfifo(tmp_path / "p.png")
        # With a writer, opening does not wait, so that a failure of this test is no hanging.
        writer = os.open(tmp_path / "p.png", os.O_RDWR | os.O_NONBLOCK)
        opened = []
        real = os.open
        monkeypatch.setattr(os, "open", lambda path, flags: opened.append(flags) or real(path, flags))
        with monkeypatch.context() as patch:
            patch.setattr(os, "read", lambda file, count: pytest.fail("it is read from"))
            with pytest.raises(OSError, match="not a file"):
                read_file(str(tmp_path / "p.png"))
        os.close(writer)
        assert opened[0] & os.O_NONBLOCK
        pictures = load_pictures(f"folder:{tmp_path}", max_bad=0.5)
        assert (reds(pictures), pictures.bad) == ([1], ("p.png: not a file",))

    def test_wrong_folders(self, tmp_path):
        with pytest.raises(ProsminError, match=r"no images in the folder .*Files named \.jpg"):
            open_source(f"folder:{tmp_path}")
        with pytest.raises(UsageError, match="does not exist"):
            open_source(f"folder:{tmp_path}/missing")
        write(tmp_path / "1.png")
        with pytest.raises(UsageError, match="is a file, not a folder"):
            open_source(f"folder:{tmp_path}/1.png")
        with pytest.raises(UsageError, match="names no folder"):
            open_source("folder:")

    def test_a_file_comes_whole_however_it_is_handed_out(self, tmp_path, monkeypatch):
        content = bytes(range(256)) * 40
        (tmp_path / "1.png").write_bytes(content)
        (tmp_path / "2.png").write_bytes(b"")
        source = open_source(f"folder:{tmp_path}")
        assert [source.read(0), source.read(1)] == [content, b""]
        real = os.read
        monkeypatch.setattr(os, "read", lambda file, count: real(file, min(count, 999)))
        assert source.read(0) == content
        monkeypatch.setattr(os, "fstat", lambda file: SimpleNamespace(st_size=0, st_mode=stat.S_IFREG))  # as some say
        assert [source.read(0), source.read(1)] == [content, b""]

    def test_unreadable_folder_is_named(self, tmp_path):
        write(tmp_path / "locked/1.png")
        (tmp_path / "locked").chmod(0)
        try:
            if os.access(tmp_path / "locked", os.R_OK):
                pytest.skip("this user may list any folder")
            with pytest.raises(ProsminError, match="locked cannot be listed"):
                open_source(f"folder:{tmp_path}")
        finally:
            (tmp_path / "locked").chmod(0o700)


class TestBadPictures:
    def make(self, folder, good: int) -> list[str]:
        """A folder of good images and four bad ones; the names of the bad."""
        for i in range(good):
            write(folder / f"good{i:03d}.png", number=i)
        write(folder / "empty.jpg", b"")
        write(folder / "text.jpg", b"hello")
        write(folder / "truncated.jpg", encoded(5, (100, 100), "JPEG")[:400])
        (folder / "gone.png").symlink_to(folder / "nowhere.png")
        return ["empty.jpg", "gone.png", "text.jpg", "truncated.jpg"]

    def test_bad_ones_are_left_out_named_and_counted(self, tmp_path):
        names = self.make(tmp_path, good=6)
        pictures = load_pictures(f"folder:{tmp_path}", max_bad=0.4)
        assert [line.split(":")[0] for line in pictures.bad] == names
        assert "No such file" in pictures.bad[1]
        assert "empty" in pictures.bad[0]
        assert pictures.keys == tuple(f"good{i:03d}.png" for i in range(6))
        assert reds(pictures) == list(range(6))

    def test_too_many_stop_with_the_list(self, tmp_path):
        self.make(tmp_path, good=6)
        with pytest.raises(ProsminError, match=r"(?s)4 of 10 .*Mend or remove them:.*empty\.jpg.*truncated\.jpg"):
            load_pictures(f"folder:{tmp_path}", max_bad=0.39)

    def test_nobody_is_sent_to_an_option_that_the_command_has_not(self, tmp_path):
        """`prosmin evaluate` reads by open_pictures, and has no share to raise."""
        self.make(tmp_path, good=6)
        spec = f"folder:{tmp_path}"
        with pytest.raises(ProsminError) as evaluating:
            open_pictures(spec)
        with pytest.raises(ProsminError) as streaming:
            list(StreamFeed(open_source(spec), device=torch.device("cpu"), max_bad=0.01).batches([torch.arange(10)]))
        for caught in (evaluating, streaming):
            assert "a share of 0.01 is allowed. Mend or remove them:\n  " in str(caught.value)
        with pytest.raises(ProsminError, match=r"or remove them, or allow more with --data\.max_bad SHARE:\n  empty"):
            open_feed(spec, device="cpu")

    def test_the_list_ends_after_twenty(self, tmp_path):
        for i in range(60):
            write(tmp_path / f"{i:02d}.jpg", b"")
        with pytest.raises(ProsminError) as caught:
            load_pictures(f"folder:{tmp_path}", max_bad=0.5)
        message = str(caught.value)
        assert message.startswith("At least 31 of 60 images")  # it stops when it is too many
        assert "19.jpg" in message
        assert "20.jpg" not in message
        assert message.endswith("...")

    def test_labels_follow_the_pictures_that_are_left(self, tmp_path):
        for name in ("a/1", "a/2", "b/1", "b/2"):
            write(tmp_path / f"{name}.png")
        write(tmp_path / "a/1.png", b"")
        pictures = load_pictures(f"folder:{tmp_path}", max_bad=0.5)
        assert pictures.labels.tolist() == [0, 1, 1]

    def test_all_bad_is_an_error_whatever_is_allowed(self, tmp_path):
        write(tmp_path / "1.jpg", b"")
        with pytest.raises(ProsminError, match="1 of 1"):
            load_pictures(f"folder:{tmp_path}", max_bad=1.0)

    def test_unreadable_file_is_named(self, tmp_path):
        write(tmp_path / "locked.png")
        write(tmp_path / "open.png")
        (tmp_path / "locked.png").chmod(0)
        if os.access(tmp_path / "locked.png", os.R_OK):
            pytest.skip("this user may read any file")
        assert load_pictures(f"folder:{tmp_path}", max_bad=0.5).bad == ("locked.png: Permission denied",)

    def test_reading_may_fail_for_any_reason_the_system_has(self, tmp_path, monkeypatch):
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

    def test_unicode_and_undecodable_names(self, tmp_path):
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


class TestPictures:
    def test_padding_and_sizes(self):
        images, sizes = pack([torch.full((3, 2, 5), 7, dtype=torch.uint8), torch.full((3, 4, 1), 9, dtype=torch.uint8)])
        assert images.shape == (2, 3, 4, 5)
        assert sizes.tolist() == [[2, 5], [4, 1]]
        assert images.sum() == 3 * (10 * 7 + 4 * 9)
        assert images[0, :, :2].min() == 7
        assert images[1, :, :, 0].min() == 9

    def test_subset_and_device(self):
        pictures = load_pictures("photos@test")
        part = pictures.subset(torch.tensor([5, 3]))
        assert part.keys == (pictures.keys[5], pictures.keys[3])
        assert torch.equal(part.images[1], pictures.images[3])
        assert part.labels.tolist() == [pictures.labels[5], pictures.labels[3]]
        mask = pictures.labels == 2
        assert len(pictures.subset(mask)) == int(mask.sum())
        assert pictures.to("cpu").content_hash() == pictures.content_hash()

    def test_hash_follows_the_content(self):
        pictures = load_pictures("photos@test")
        images = pictures.images.clone()
        images[-1, -1, -1, -1] ^= 1
        changed = pictures.__class__(**{**vars(pictures), "images": images})
        renamed = pictures.__class__(**{**vars(pictures), "spec": "other"})
        assert changed.content_hash() != pictures.content_hash()
        assert renamed.content_hash() == pictures.content_hash()
        assert pictures.subset(torch.arange(len(pictures)).flip(0)).content_hash() != pictures.content_hash()

    def test_more_than_memory_is_refused(self, monkeypatch):
        monkeypatch.setattr("prosmin.data.image_sets.main_memory", lambda: 1_000_000)
        with pytest.raises(ProsminError, match="more than a third of the memory"):
            load_pictures("photos")


def test_a_folder_with_training_and_testing_means_the_first(tmp_path):
    for name, number in (("training/a/0.png", 1), ("training/b/0.png", 2), ("testing/a/0.png", 3)):
        write(tmp_path / name, encoded(number))
    pictures = load_pictures(f"folder:{tmp_path}")
    assert (reds(pictures), pictures.classes) == ([1, 2], ("a", "b"))
    assert reds(load_pictures(split_spec(f"folder:{tmp_path}", "test"))) == [3]


class TestParquet:
    def table(self, path, columns, **options) -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns, **options), path, row_group_size=3)
        return f"parquet:{path}"

    def test_images_labels_and_names(self, tmp_path):
        columns = {
            "image": [encoded(i) for i in range(8)],
            "label": [2, 0, 2, 0, 2, 0, 2, 0],
            "label_name": ["c", "a"] * 4,
        }
        pictures = load_pictures(self.table(tmp_path / "x.parquet", columns))
        assert reds(pictures) == list(range(8))
        assert pictures.labels.tolist() == columns["label"]
        assert pictures.classes == ("a", "1", "c")
        assert pictures.keys[3] == "x.parquet[3]"

    def test_labels_may_be_missing_or_names(self, tmp_path):
        images = [encoded(i) for i in range(3)]
        assert open_source(self.table(tmp_path / "x.parquet", {"image": images})).labels is None
        nothing = pa.array([None, None, None], pa.int32())
        assert open_source(self.table(tmp_path / "x.parquet", {"image": images, "label": nothing})).labels is None
        named = open_source(self.table(tmp_path / "x.parquet", {"image": images, "label": ["dog", "cat", "dog"]}))
        assert named.classes == ("cat", "dog")
        assert named.labels.tolist() == [1, 0, 1]

    def test_labels_that_are_true_or_false(self, tmp_path):
        columns = {"image": [encoded(i) for i in range(3)], "label": [True, False, True]}
        source = open_source(self.table(tmp_path / "x.parquet", columns))
        assert (source.labels.dtype, source.labels.tolist()) == (torch.int64, [1, 0, 1])
        assert source.classes == ("0", "1")

    def test_files_may_differ_in_the_width_of_their_labels(self, tmp_path):
        told = {"huggingface": json.dumps({"info": {"features": {"label": {"names": ["cat", "dog"]}}}})}
        for name, kind in (("a", pa.int32()), ("b", pa.int64())):
            schema = pa.schema([("image", pa.binary()), ("label", kind)], metadata=told)
            self.table(tmp_path / f"{name}.parquet", {"image": [encoded()] * 2, "label": [1, 0]}, schema=schema)
        source = open_source(f"parquet:{tmp_path}")
        assert (source.labels.dtype, source.labels.tolist()) == (torch.int64, [1, 0, 1, 0])
        assert source.classes == ("cat", "dog")

    def test_names_of_labels_may_all_be_missing_but_not_some(self, tmp_path):
        columns = {"image": [b""] * 3, "label": [0, 1, 1]}
        nothing = pa.array([None] * 3, pa.string())
        source = open_source(self.table(tmp_path / "x.parquet", columns | {"label_name": nothing}))
        assert source.classes == ("0", "1")
        with pytest.raises(ProsminError, match=r"'label_name' .* is empty in 1 rows of 3"):
            open_source(self.table(tmp_path / "x.parquet", columns | {"label_name": ["a", None, "b"]}))

    def test_numbers_that_are_no_classes(self, tmp_path):
        columns = {"image": [b""] * 2, "label": [3, 1609459]}
        with pytest.raises(ProsminError, match="label 1609459 is no class number; write the labels as names"):
            open_source(self.table(tmp_path / "x.parquet", columns))

    def test_at_sign_in_a_path_below_the_home(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        for split in ("train", "test"):
            self.table(tmp_path / "my@pics" / f"{split}.parquet", {"image": [b""]})
        assert split_spec("parquet:~/my@pics", "test") == "parquet:~/my@pics@test"

    def test_hugging_face_struct_and_class_names(self, tmp_path):
        images = [{"bytes": encoded(i), "path": None} for i in range(2)] + [
            {"bytes": None, "path": "gone"},
            None,
        ]
        features = {"info": {"features": {"label": {"names": ["zero", "one", "two"], "_type": "ClassLabel"}}}}
        schema = pa.schema(
            [
                ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
                ("label", pa.int64()),
            ],
            metadata={"huggingface": json.dumps(features)},
        )
        spec = self.table(tmp_path / "x.parquet", {"image": images, "label": [1, 0, 1, 1]}, schema=schema)
        pictures = load_pictures(spec, max_bad=0.5)
        assert reds(pictures) == [0, 1]
        assert pictures.classes == ("zero", "one", "two")
        assert pictures.bad == (
            "x.parquet[2]: the row holds no bytes",
            "x.parquet[3]: the row holds no bytes",
        )

    @pytest.mark.parametrize(
        ("kinds", "labels", "classes"),
        [
            ({"img": None, "fine": ["x", "y"]}, [1, 0], ("x", "y")),
            ({"img": None, "fine": ["x", "y"], "coarse": ["z"]}, None, ()),  # nobody knows which is meant
            ({"img": None, "label": None, "fine": ["x", "y"]}, [1, 0], ("0", "1")),  # the names are another column's
        ],
    )
    def test_published_files_have_other_names(self, tmp_path, kinds, labels, classes):
        columns = {"img": [encoded(4), encoded(5)]} | {name: [1, 0] for name in kinds if name != "img"}
        features = {name: {"names": names, "_type": "ClassLabel"} if names else {} for name, names in kinds.items()}
        told = {"huggingface": json.dumps({"info": {"features": features}})}
        table = pa.table(columns).replace_schema_metadata(told)
        pq.write_table(table, tmp_path / "x.parquet")
        pictures = load_pictures(f"parquet:{tmp_path}/x.parquet")
        assert reds(pictures) == [4, 5]
        assert (None if pictures.labels is None else pictures.labels.tolist()) == labels
        assert pictures.classes == classes

    def test_folder_of_files_and_splits(self, tmp_path):
        for name, numbers in (("train-0", [0, 1]), ("train-1", [2]), ("test-0", [3])):
            self.table(tmp_path / f"{name}.parquet", {"image": [encoded(i) for i in numbers]})
        assert reds(load_pictures(f"parquet:{tmp_path}")) == [0, 1, 2]
        assert reds(load_pictures(f"parquet:{tmp_path}@test")) == [3]
        assert split_spec(f"parquet:{tmp_path}", "test") == f"parquet:{tmp_path}@test"
        assert split_spec(f"parquet:{tmp_path}/train-0.parquet", "test") == f"parquet:{tmp_path}/test-0.parquet"
        with pytest.raises(UsageError, match="no split 'ood'; it has: test, train"):
            open_source(f"parquet:{tmp_path}@ood")
        with pytest.raises(UsageError, match="no file of that name"):
            split_spec(f"parquet:{tmp_path}/train-1.parquet", "test")

    @pytest.mark.parametrize(
        ("train", "test"),
        [("default/train/0", "default/test/0"), ("training-0", "testing-0"), ("a/train/train_1", "a/train/test_1")],
    )
    def test_a_folder_of_several_splits_means_its_train(self, tmp_path, train, test):
        """As the hub converts sets, a folder a split; the name of a file counts more than its folder."""
        self.table(tmp_path / f"{train}.parquet", {"image": [encoded(1), encoded(2)]})
        self.table(tmp_path / f"{test}.parquet", {"image": [encoded(3)]})
        assert reds(load_pictures(f"parquet:{tmp_path}")) == [1, 2]
        assert reds(load_pictures(f"parquet:{tmp_path}@train")) == [1, 2]
        assert reds(load_pictures(split_spec(f"parquet:{tmp_path}", "test"))) == [3]

    def test_features_of_any_kind_in_the_metadata(self, tmp_path):
        features = {"label": {"names": ["cat", "dog"]}, "tags": [{"dtype": "string"}], "image": {"_type": "Image"}}
        told = {"huggingface": json.dumps({"info": {"features": features}})}
        table = pa.table({"image": [encoded(1), encoded(2)], "label": [0, 1]}).replace_schema_metadata(told)
        pq.write_table(table, tmp_path / "x.parquet")
        assert open_source(f"parquet:{tmp_path}/x.parquet").classes == ("cat", "dog")

    def test_what_is_wrong_is_said(self, tmp_path):
        with pytest.raises(ProsminError, match=r"no column 'image'.*no other of that kind; its columns: image, label"):
            open_source(self.table(tmp_path / "x.parquet", {"picture": ["a.png"], "label": [0]}))
        with pytest.raises(ProsminError, match=r"several others of that kind; its columns: a, b\. Name the one"):
            open_source(self.table(tmp_path / "x.parquet", {"a": [b""], "b": [b""]}))
        with pytest.raises(ProsminError, match=r"'image' .* holds string; allowed: encoded bytes"):
            open_source(self.table(tmp_path / "x.parquet", {"image": ["a.jpg"]}))
        with pytest.raises(ProsminError, match=r"'label' .* is empty in 1 rows of 2"):
            open_source(self.table(tmp_path / "x.parquet", {"image": [b"", b""], "label": [0, None]}))
        with pytest.raises(ProsminError, match=r"'label' .* holds double"):
            open_source(self.table(tmp_path / "x.parquet", {"image": [b""], "label": [0.5]}))
        with pytest.raises(ProsminError, match=r"'label' .* is negative in 2 rows of 3, the first -1; allowed: names"):
            open_source(self.table(tmp_path / "x.parquet", {"image": [b""] * 3, "label": [0, -1, -2]}))
        with pytest.raises(ProsminError, match="no images in parquet"):
            load_pictures(self.table(tmp_path / "x.parquet", {"image": pa.array([], pa.binary())}))
        write(tmp_path / "y.parquet", b"not parquet at all")
        with pytest.raises(ProsminError, match="cannot be read as Parquet"):
            open_source(f"parquet:{tmp_path}/y.parquet")
        with pytest.raises(UsageError, match="does not exist"):
            open_source(f"parquet:{tmp_path}/z.parquet")
        (tmp_path / "empty").mkdir()
        with pytest.raises(ProsminError, match=r"no files named \*\.parquet"):
            open_source(f"parquet:{tmp_path}/empty")


class TestWebdataset:
    def shard(self, path, members: dict[str, bytes]) -> None:
        with tarfile.open(path, "w") as archive:
            for name, data in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))

    def test_shards_with_labels(self, tmp_path):
        for shard in range(3):
            members = {}
            for i in range(2):
                members[f"s/{shard}{i}.cls"] = str(2 * shard + i).encode()
                members[f"s/{shard}{i}.png"] = encoded(10 * shard + i)
                members[f"s/{shard}{i}.json"] = b"{}"
            self.shard(tmp_path / f"train-{shard:04d}.tar", members)
        pictures = load_pictures(f"webdataset:{tmp_path}/train-{{0000..0002}}.tar")
        assert reds(pictures) == [0, 1, 10, 11, 20, 21]
        assert pictures.labels.tolist() == [0, 1, 2, 3, 4, 5]
        assert pictures.keys[2] == "train-0001.tar/s/10.png"
        for pattern in (f"{tmp_path}/*.tar", f"{tmp_path}", f"{tmp_path}/train-000{{0,1,2}}.tar"):
            assert len(open_source(f"webdataset:{pattern}")) == 6

    def test_a_folder_of_several_splits_means_its_train(self, tmp_path, monkeypatch):
        for name, number in (("x-train-000", 1), ("x-train-001", 2), ("x-test-000", 3)):
            self.shard(tmp_path / f"{name}.tar", {"0.png": encoded(number)})
        assert reds(load_pictures(f"webdataset:{tmp_path}")) == [1, 2]
        monkeypatch.setenv("HOME", str(tmp_path))
        other = split_spec("webdataset:~/x-train-{000..001}.tar", "test")
        assert reds(load_pictures(other)) == [3]

    def test_the_picture_is_the_member_without_a_second_suffix(self, tmp_path):
        members = {"0.depth.png": encoded(9), "0.jpg": encoded(1), "0.mask.png": encoded(8), "1.seg.png": encoded(2)}
        self.shard(tmp_path / "a.tar", members)
        source = open_source(f"webdataset:{tmp_path}/a.tar")
        assert [source.key(i) for i in range(len(source))] == ["a.tar/0.jpg", "a.tar/1.seg.png"]

    def test_names_with_dots_lose_no_pictures(self, tmp_path):
        self.shard(tmp_path / "a.tar", {f"s/IMG.2024.{i:02d}.png": encoded(i) for i in range(16)})
        with pytest.raises(ProsminError, match=r"16 images of .*a\.tar share the name 's/IMG' up to the first dot"):
            open_source(f"webdataset:{tmp_path}/a.tar")

    def test_names_that_are_not_utf8_can_be_printed(self, tmp_path):
        self.shard(tmp_path / "a.tar", {"1.png": encoded(1), "\udcff\udcfe.png": encoded(2)})
        source = open_source(f"webdataset:{tmp_path}/a.tar")
        assert [source.key(i) for i in range(2)] == ["a.tar/1.png", "a.tar/\ufffd\ufffd.png"]
        assert reds(load_pictures(source.spec)) == [1, 2]

    def test_brackets_in_a_path(self, tmp_path):
        (tmp_path / "[x]").mkdir()
        for number, name in enumerate(["train-0", "train-1", "test"]):
            self.shard(tmp_path / f"[x]/{name}.tar", {"1.png": encoded(number)})
        assert reds(load_pictures(f"webdataset:{tmp_path}/[x]/train-0.tar")) == [0]
        assert reds(load_pictures(f"webdataset:{tmp_path}/[x]/train-{{0..1}}.tar")) == [0, 1]
        assert expand(f"{tmp_path}/[x]/test.tar") == [f"{tmp_path}/[x]/test.tar"]

    def test_what_macos_leaves_in_archives_is_passed_over(self, tmp_path):
        self.shard(tmp_path / "a.tar", {"s/1.png": encoded(1), "__MACOSX/s/1.png": b"x", "__MACOSX/2.png": b"x"})
        source = open_source(f"webdataset:{tmp_path}/a.tar")
        assert [source.key(i) for i in range(len(source))] == ["a.tar/s/1.png"]

    def test_numbers_that_are_no_classes(self, tmp_path):
        self.shard(tmp_path / "a.tar", {"1.png": encoded(), "1.cls": b"1609459"})
        with pytest.raises(ProsminError, match=r"label 1609459 is no class number: 1\.cls in .*up to 1,000,000"):
            open_source(f"webdataset:{tmp_path}/a.tar")

    def test_without_labels_and_long_names(self, tmp_path):
        name = "x" * 150 + "é"
        self.shard(tmp_path / "a.tar", {f"{name}.jpg": encoded(7), "folder.v2/1.seg.png": encoded(8), "readme": b"x"})
        source = open_source(f"webdataset:{tmp_path}/a.tar")
        assert source.labels is None
        assert [source.key(i) for i in range(2)] == [f"a.tar/{name}.jpg", "a.tar/folder.v2/1.seg.png"]
        assert reds(load_pictures(f"webdataset:{tmp_path}/a.tar")) == [7, 8]

    def test_splits(self, tmp_path):
        for name in ("train-00", "train-01", "val-00"):
            self.shard(tmp_path / f"{name}.tar", {"1.png": encoded()})
        spec = f"webdataset:{tmp_path}/train-{{00..01}}.tar"
        assert split_spec(spec, "test") == f"webdataset:{tmp_path}/val-*.tar"  # not two shards there
        assert len(open_source(split_spec(spec, "test"))) == 1
        with pytest.raises(UsageError, match="no shards of that name"):
            split_spec(f"webdataset:{tmp_path}/val-00.tar", "train+extra")

    def test_braces(self):
        assert expand("a{08..11}b{x,y}") == [f"a{n}b{c}" for n in ("08", "09", "10", "11") for c in "xy"]

    def test_what_is_wrong_is_said(self, tmp_path):
        with pytest.raises(UsageError, match=r"the shard .*a\.tar does not exist"):
            open_source(f"webdataset:{tmp_path}/a.tar")
        with pytest.raises(UsageError, match="names no files"):
            open_source(f"webdataset:{tmp_path}/*.tar")
        with pytest.raises(UsageError, match="not on this machine"):
            open_source("webdataset:https://example.org/a.tar")
        self.shard(tmp_path / "a.tar", {"1.txt": b"x"})
        with pytest.raises(UsageError, match="no images in the shards"):
            open_source(f"webdataset:{tmp_path}/a.tar")
        self.shard(tmp_path / "a.tar", {"1.png": encoded(), "2.png": encoded(), "1.cls": b"3"})
        with pytest.raises(ProsminError, match=r"1 of 2 images .* have no \.cls"):
            open_source(f"webdataset:{tmp_path}/a.tar")
        self.shard(tmp_path / "a.tar", {"1.png": encoded(), "1.cls": b"cat"})
        with pytest.raises(ProsminError, match=r"1\.cls in .* is b'cat'"):
            open_source(f"webdataset:{tmp_path}/a.tar")
        write(tmp_path / "b.tar", b"nothing of the kind")
        with pytest.raises(ProsminError, match="uncompressed tar"):
            open_source(f"webdataset:{tmp_path}/b.tar")


class TestTorchvision:
    """Small trees in the published layouts; only the checksums of files that are smaller here are lifted."""

    def cifar(self, root, monkeypatch, name: str, folder: str, label_key: str, meta: str, meta_key: str):
        import torchvision.datasets

        built = {"cifar10": torchvision.datasets.CIFAR10, "cifar100": torchvision.datasets.CIFAR100}[name]
        for listing in ("train_list", "test_list"):
            monkeypatch.setattr(built, listing, [[file, None] for file, _ in getattr(built, listing)])
        monkeypatch.setattr(built, "meta", {**built.meta, "md5": None})
        pixels = RNG.integers(0, 256, (4, 3072), dtype=np.uint8)
        for file, _ in built.train_list + built.test_list:
            content = {"data": pixels, label_key: [3, 1, 0, 2]}
            write(root / folder / file, pickle.dumps(content))
        write(root / folder / meta, pickle.dumps({meta_key: ["a", "b", "c", "d"]}))
        return torch.from_numpy(pixels.reshape(4, 3, 32, 32))

    @pytest.mark.parametrize(
        ("name", "arguments", "train"),
        [
            ("cifar10", ("cifar-10-batches-py", "labels", "batches.meta", "label_names"), 20),
            ("cifar100", ("cifar-100-python", "fine_labels", "meta", "fine_label_names"), 4),
        ],
    )
    def test_cifar(self, tmp_path, monkeypatch, name, arguments, train):
        pixels = self.cifar(tmp_path, monkeypatch, name, *arguments)
        spec = f"torchvision:{name}@{tmp_path}"
        assert len(open_source(spec)) == train
        assert split_spec(spec, "test") == f"{spec}@test"
        pictures = load_pictures(f"{spec}@test")
        assert torch.equal(pictures.images, pixels)
        assert pictures.labels.tolist() == [3, 1, 0, 2]
        assert pictures.classes == ("a", "b", "c", "d")
        assert pictures.keys[1] == f"{name}[1]"

    def test_svhn(self, tmp_path, monkeypatch):
        import torchvision.datasets
        from scipy.io import savemat

        splits = {k: [v[0], v[1], None] for k, v in torchvision.datasets.SVHN.split_list.items()}
        monkeypatch.setattr(torchvision.datasets.SVHN, "split_list", splits)
        pixels = RNG.integers(0, 256, (32, 32, 3, 5), dtype=np.uint8)
        savemat(tmp_path / "test_32x32.mat", {"X": pixels, "y": np.array([[10], [1], [2], [3], [9]])})
        pictures = load_pictures(f"torchvision:svhn@{tmp_path}@test")
        assert torch.equal(pictures.images, torch.from_numpy(pixels).permute(3, 2, 0, 1))
        assert pictures.labels.tolist() == [0, 1, 2, 3, 9]
        assert pictures.classes == tuple("0123456789")

    def test_flowers(self, tmp_path, monkeypatch):
        import torchvision.datasets
        from scipy.io import savemat

        flowers = torchvision.datasets.Flowers102
        monkeypatch.setattr(flowers, "_file_dict", {k: (v[0], None) for k, v in flowers._file_dict.items()})
        for i in range(1, 7):
            write(tmp_path / f"flowers-102/jpg/image_{i:05d}.jpg", number=i)
        savemat(tmp_path / "flowers-102/imagelabels.mat", {"labels": [[1, 102, 3, 1, 2, 3]]})
        savemat(tmp_path / "flowers-102/setid.mat", {"trnid": [[4, 1]], "valid": [[2, 3]], "tstid": [[5, 6]]})
        pictures = load_pictures(f"torchvision:flowers102@{tmp_path}")
        assert reds(pictures) == [1, 4]
        assert pictures.labels.tolist() == [0, 0]
        assert pictures.classes[0] == "pink primrose"
        assert load_pictures(f"torchvision:flowers102@{tmp_path}@val").labels.tolist() == [101, 2]
        assert load_pictures(split_spec(f"torchvision:flowers102@{tmp_path}", "test")).labels.tolist() == [1, 2]
        assert pictures.keys[0].endswith("image_00001.jpg")

    def test_imagenet(self, tmp_path):
        torch.save(({"n1": ("crane",), "n2": ("crane", "machine")}, ["n1"]), tmp_path / "meta.bin")
        write(tmp_path / "train/n1/a.JPEG", number=1)
        write(tmp_path / "train/n2/b.JPEG", number=2)
        write(tmp_path / "val/n1/c.JPEG", number=3)
        write(tmp_path / "val/n2/d.JPEG", number=4)
        spec = f"torchvision:imagenet@{tmp_path}"
        assert reds(load_pictures(spec)) == [1, 2]
        assert split_spec(spec, "test") == f"{spec}@val"
        pictures = load_pictures(f"{spec}@val")
        assert reds(pictures) == [3, 4]
        assert pictures.labels.tolist() == [0, 1]
        assert pictures.classes == ("n1", "n2")  # two have the same name

    @pytest.mark.parametrize("folder", ["2018", "train_val2018"])
    def test_inaturalist(self, tmp_path, folder):
        for number, name in enumerate(["Aves/10/b.jpg", "Aves/10/a.jpg", "Plantae/2/c.jpg", "Plantae/2/d.jpg"]):
            write(tmp_path / folder / name, number=number)
        write(tmp_path / folder / "Aves/10/.DS_Store", b"")
        spec = f"torchvision:inaturalist2018@{tmp_path}"
        pictures = load_pictures(spec)
        assert reds(pictures) == [1, 0, 2, 3]
        assert pictures.labels.tolist() == [1, 1, 0, 0]  # by the species' number, as the published lists count
        assert pictures.classes == ("Plantae/2", "Aves/10")
        with pytest.raises(ProsminError, match=r"published list .*val2018\.json"):
            open_source(f"{spec}@val")
        for split, names in (("train", ["Aves/10/a.jpg", "Plantae/2/d.jpg"]), ("val", ["Plantae/2/c.jpg"])):
            content = {"images": [{"file_name": f"train_val2018/{name}"} for name in names]}
            write(tmp_path / f"{split}2018.json", json.dumps(content).encode())
        assert reds(load_pictures(spec)) == [1, 3]
        assert reds(load_pictures(split_spec(spec, "test"))) == [2]
        assert load_pictures(f"{spec}@val").classes == pictures.classes
        write(tmp_path / "val2018.json", b"{}")
        with pytest.raises(ProsminError, match="cannot be opened"):
            open_source(f"{spec}@val")
        write(tmp_path / "val2018.json", b'{"images": []}')
        with pytest.raises(ProsminError, match="No image of iNaturalist 2018 val"):
            open_source(f"{spec}@val")
        with pytest.raises(ProsminError, match=r"no folder .*/2019 or .*/train_val2019.*version='2019', download=True"):
            open_source(f"torchvision:inaturalist2019@{tmp_path}")

    def test_dtd(self, tmp_path):
        write(tmp_path / "dtd/dtd/images/banded/1.jpg", number=1)
        write(tmp_path / "dtd/dtd/images/dotted/2.jpg", number=2)
        write(tmp_path / "dtd/dtd/labels/train1.txt", b"dotted/2.jpg\nbanded/1.jpg\n")
        pictures = load_pictures(f"torchvision:dtd@{tmp_path}")
        assert reds(pictures) == [1, 2]
        assert [pictures.classes[i] for i in pictures.labels] == ["banded", "dotted"]

    def test_every_set_can_be_built_as_the_table_says(self):
        import inspect

        from prosmin.data.sources.torchvision_sets import known_sets

        for name, known in known_sets().items():
            accepted = inspect.signature(known.build.__init__).parameters
            if "kwargs" not in accepted:  # ImageNet hands all of them on
                assert ("loader" in accepted) == known.files, name
            for arguments in known.splits.values():
                assert set(arguments) | set(known.always) <= set(accepted), name

    def test_what_is_wrong_is_said(self, tmp_path):
        with pytest.raises(UsageError, match="no torchvision set 'cifar11' here; there are: cifar10, cifar100"):
            open_source(f"torchvision:cifar11@{tmp_path}")
        with pytest.raises(UsageError, match="names no folder; write torchvision:cifar10@ROOT"):
            open_source("torchvision:cifar10")
        with pytest.raises(UsageError, match="no split 'val'; it has: train, test"):
            open_source(f"torchvision:cifar10@{tmp_path}@val")
        with pytest.raises(ProsminError, match=r"import CIFAR10; CIFAR10\('.*', download=True\)"):
            open_source(f"torchvision:cifar10@{tmp_path}")
        with pytest.raises(ProsminError, match=r"does not exist.*version='2018', download=True"):
            open_source(f"torchvision:inaturalist2018@{tmp_path}/missing")
        assert not (tmp_path / "missing").exists()
        with pytest.raises(ProsminError, match=r"ILSVRC2012_devkit_t12.*folder:"):
            open_source(f"torchvision:imagenet@{tmp_path}")
        with pytest.raises(UsageError, match="has no splits"):
            split_spec(f"torchvision:eurosat@{tmp_path}", "test")


class TestHuggingFace:
    def test_missing_package_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(ProsminError, match=re.escape("pip install 'prosmin[datasets]'")):
            open_source("hf:cifar10")

    def test_other_split_is_one_that_the_hub_has(self, monkeypatch):
        asked = []

        def names(*name):
            asked.append(name)
            return ["train", "validation"]

        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(get_dataset_split_names=names))
        assert split_spec("hf:owner/name:small@train", "test") == "hf:owner/name:small@validation"
        assert asked == [("owner/name", "small")]
        with pytest.raises(UsageError, match="no split 'ood'; it has: train, validation"):
            split_spec("hf:owner/name", "ood")
        with pytest.raises(UsageError, match="'hf:' names no data set"):
            split_spec("hf:", "test")

    @pytest.mark.filterwarnings("ignore")  # of the package's own making
    def test_saved_data_sets(self, tmp_path, monkeypatch):
        datasets = pytest.importorskip("datasets")
        features = datasets.Features(
            {
                "img": datasets.Image(),
                "fine": datasets.ClassLabel(names=["a", "b"]),
                "note": datasets.Value("string"),
            }
        )

        def rows(numbers):
            content = {
                "img": [{"bytes": encoded(i), "path": None} for i in numbers],
                "fine": [i % 2 for i in numbers],
            }
            return datasets.Dataset.from_dict({**content, "note": ["x"] * len(numbers)}, features=features)

        datasets.DatasetDict({"train": rows([1, 2, 3]), "test": rows([4])}).save_to_disk(str(tmp_path / "both"))
        rows([5, 6]).save_to_disk(str(tmp_path / "one"))
        pictures = load_pictures(f"hf:{tmp_path}/both")
        assert reds(pictures) == [1, 2, 3]
        assert pictures.labels.tolist() == [1, 0, 1]
        assert pictures.classes == ("a", "b")
        assert reds(load_pictures(split_spec(f"hf:{tmp_path}/both", "test"))) == [4]
        assert reds(load_pictures(f"hf:{tmp_path}/one")) == [5, 6]
        with pytest.raises(UsageError, match="no split 'ood'; it has: train, test"):
            open_source(f"hf:{tmp_path}/both@ood")
        with pytest.raises(UsageError, match="no split 'test'; it has no splits"):
            open_source(f"hf:{tmp_path}/one@test")
        with pytest.raises(UsageError, match="no split 'test'; it has no splits"):  # evaluate then takes a tenth of it
            split_spec(f"hf:{tmp_path}/one", "test")
        for split, numbers in (("train", [7]), ("validation", [8, 9])):
            (tmp_path / "files").mkdir(exist_ok=True)
            rows(numbers).to_parquet(str(tmp_path / f"files/{split}-0.parquet"))
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        assert reds(load_pictures(f"hf:{tmp_path}/files")) == [7]
        assert reds(load_pictures(split_spec(f"hf:{tmp_path}/files", "test"))) == [8, 9]
        with pytest.raises(ProsminError, match="cannot be loaded"):
            open_source(f"hf:{tmp_path}/missing")
        datasets.Dataset.from_dict({"text": ["x"]}).save_to_disk(str(tmp_path / "text"))
        with pytest.raises(ProsminError, match="no column of type Image; its columns: text"):
            open_source(f"hf:{tmp_path}/text")

    def saved(self, path, labels: list[int | None]) -> str:
        datasets = pytest.importorskip("datasets")
        features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
        content = {"image": [{"bytes": encoded(i), "path": None} for i in range(len(labels))], "label": labels}
        datasets.Dataset.from_dict(content, features=features).save_to_disk(str(path))
        return f"hf:{path}"

    @pytest.mark.parametrize("labels", [[-1, -1], [None, None], [None, -1]])
    def test_a_split_published_without_labels_has_none(self, tmp_path, labels):
        source = open_source(self.saved(tmp_path / "hidden", labels))
        assert len(source) == 2
        assert source.labels is None
        assert source.classes == ()

    @pytest.mark.parametrize(
        ("labels", "what"),
        [
            ([0, 1, None, 0, 1, 0], "empty in 1 rows of 6"),
            ([1, -1], "negative in 1 rows of 2, the first -1"),
        ],
    )
    def test_labels_that_are_missing_here_and_there(self, tmp_path, labels, what):
        with pytest.raises(ProsminError, match=rf"'label' of the data hf:.* is {what}; allowed: .*leave them out"):
            open_source(self.saved(tmp_path / "some", labels))


def test_one_place_has_one_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "set")
    same = (
        ("folder:set", f"folder:{tmp_path}/set", "folder:./link"),
        ("hf:set", "hf:./set@train", f"hf:{tmp_path}/set@train"),
        ("torchvision:cifar10@set", "torchvision:cifar10@./set@train"),
        ("photos@train", "photos@train"),
    )
    names = [{place_of(spec) for spec in specs} for specs in same]
    assert [len(each) for each in names] == [1, 1, 1, 1]
    assert len(set.union(*names)) == 4
    assert place_of("hf:set@test") != place_of("hf:set")
    assert place_of("torchvision:cifar10@set@test") != place_of("torchvision:cifar10@set")
