"""Which images are inspected, of which split and class, and when one has to be read again."""

import os

import pytest

from inspecting import numbered, write_images
from prosmin.data.sources import open_source, spec_of
from prosmin.errors import UsageError
from prosmin.inspect.images import marks_of, name_of, open_whole, printable, splits_of


def names(folder, out="elsewhere"):
    source = open_whole(f"folder:{folder}", leave_out=folder / out).source
    return [source.key(i) for i in range(len(source))]


class TestWholeFolder:
    def test_all_splits_are_inspected(self, tmp_path):
        write_images(tmp_path, ["train/a/1.png", "test/a/1.png", "val/b/2.png"])
        assert names(tmp_path) == ["test/a/1.png", "train/a/1.png", "val/b/2.png"]
        assert len(open_source(f"folder:{tmp_path}")) == 1  # elsewhere a folder with splits means its train

    def test_the_class_is_the_folder_below_the_split(self, tmp_path):
        write_images(tmp_path, ["train/a/1.png", "test/a/1.png", "test/b/deep/2.png"])
        source = open_whole(f"folder:{tmp_path}", leave_out=tmp_path / "out").source
        assert [source.classes[i] for i in source.labels] == ["a", "b", "a"]

    def test_images_beside_the_classes_mean_no_classes(self, tmp_path):
        write_images(tmp_path, ["a/1.png", "2.png"])
        assert open_whole(f"folder:{tmp_path}", leave_out=tmp_path / "out").source.labels is None

    def test_one_split_can_be_named(self, tmp_path):
        write_images(tmp_path, ["train/1.png", "test/2.png"])
        assert len(open_whole(f"folder:{tmp_path}@test", leave_out=tmp_path / "out").source) == 1

    def test_the_folder_of_the_results_is_left_out(self, tmp_path):
        write_images(tmp_path, ["a.png", "out/b.png", "outer/c.png"])
        assert names(tmp_path, "out") == ["a.png", "outer/c.png"]

    def test_a_subfolder_that_cannot_be_listed_is_noted(self, tmp_path, monkeypatch):
        write_images(tmp_path, ["a.png", "closed/b.png"])
        scandir = os.scandir

        def refusing(path):  # as without permission, which root always has
            if str(path).endswith("closed"):
                raise PermissionError(13, "Permission denied", str(path))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refusing)
        opened = open_whole(f"folder:{tmp_path}", leave_out=tmp_path / "out")
        assert len(opened.source) == 1
        assert "closed" in opened.notes[0]

    @pytest.mark.parametrize("files", [[], ["readme.txt"], [".hidden.png"]])
    def test_a_folder_without_images_is_refused(self, tmp_path, files):
        for name in files:
            (tmp_path / name).write_bytes(b"")
        with pytest.raises(UsageError, match=tmp_path.name):
            open_whole(f"folder:{tmp_path}", leave_out=tmp_path / "out")


class TestSpec:
    def test_of_a_path(self, tmp_path, monkeypatch):
        monkeypatch.chdir(write_images(tmp_path, ["photos/a.png"]))
        assert spec_of("photos") == "folder:photos"  # a folder of that name comes before the SPEC
        assert spec_of("missing") == "folder:missing"

    @pytest.mark.parametrize("spec", ["photos@test", "parquet:x.parquet", "folder:x@test", "fodler:x"])
    def test_of_a_spec(self, spec):
        assert spec_of(spec) == spec


class TestSplits:
    @pytest.mark.parametrize(
        ("paths", "splits"),
        [
            (["train/1", "test/1"], ["train", "test"]),
            (["training/1", "valid/1", "testing/1"], ["train", "val", "test"]),
            (["train/1", "val/1", "extra/1", "x.png"], ["train", "val", None, None]),
            (["train/1", "car/1"], [None, None]),  # classes of vehicles
            (["a/train/1", "a/test/1"], [None, None]),
        ],
    )
    def test_are_the_first_folders(self, paths, splits):
        assert splits_of(paths) == splits


class TestMarks:
    def test_differ_by_path_size_and_time(self, tmp_path):
        write_images(tmp_path, numbered(3))
        source = open_source(f"folder:{tmp_path}")
        before = marks_of(source)
        assert len(set(before)) == 3
        (tmp_path / "000.png").write_bytes(b"other")
        state = (tmp_path / "001.png").stat()
        os.utime(tmp_path / "001.png", ns=(state.st_atime_ns, state.st_mtime_ns + 1))
        assert [old == new for old, new in zip(before, marks_of(source), strict=True)] == [False, False, True]

    def test_of_a_file_that_vanished(self, tmp_path):
        write_images(tmp_path, numbered(2))
        source = open_source(f"folder:{tmp_path}")
        before = marks_of(source)
        (tmp_path / "001.png").unlink()
        assert [old == new for old, new in zip(before, marks_of(source), strict=True)] == [True, False]

    def test_names_that_are_not_utf8_stay_apart(self, tmp_path):
        data = (write_images(tmp_path, ["a.png"]) / "a.png").read_bytes()
        for name in (b"\xff.png", b"\xfe.png"):
            with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
                file.write(data)
        source = open_source(f"folder:{tmp_path}")
        assert len(set(marks_of(source))) == 3
        assert len({name_of(source, i) for i in range(3)}) == 3
        assert printable("\udcff.png") == "\ufffd.png"
