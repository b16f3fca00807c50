"""Images in object stores, through fsspec's memory:// in this process and file:// in others."""

import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from embedding import write_folder
from numbered_images import encoded, reds, write
from prosmin.data.image_sets import load_pictures, load_source
from prosmin.data.sources import files_mark, open_source, place_of, spec_of, split_spec
from prosmin.data.sources.remote import RemotePath, connect, is_remote, state_of
from prosmin.data.unreadable import CheckedSource
from prosmin.embed import Request, embed
from prosmin.encoder import load, untrained
from prosmin.errors import MissingFileError, ProsminError, UsageError
from prosmin.inspect import inspect
from prosmin.inspect.images import open_whole
from prosmin.search import search
from tiny_methods import tiny_method
from tiny_run import TINY


@pytest.fixture
def store():
    """An empty object store in memory."""
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return untrained(tiny_method("prosmin", views__global_size="16")).save(
        tmp_path_factory.mktemp("remote") / "encoder"
    )


def put(store, *names, first=0):
    for number, name in enumerate(names, first):
        store.pipe(f"/{name}", encoded(number))


def copied(store, folder, name):
    """The files of a local folder in the store."""
    for file in folder.iterdir():
        store.pipe(f"/{name}/{file.name}", file.read_bytes())
    return f"memory://{name}"


def written(path, count=8, **columns):
    """A Parquet file of numbered images in row groups of 3."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"image": [encoded(i) for i in range(count)], **columns}), path, row_group_size=3)
    return path


class TestFolder:
    def test_flat(self, store):
        put(store, "bucket/b.PNG", "bucket/a.png", "bucket/.hidden.png", "bucket/.git/x.png", "bucket/notes.txt")
        pictures = load_pictures("folder:memory://bucket")
        assert pictures.keys == ("a.png", "b.PNG")
        assert reds(pictures) == [1, 0]
        assert pictures.labels is None

    def test_the_root_of_an_archive_and_its_splits(self, tmp_path):
        for name, files in {
            "flat": ["one.png", "two.png"],
            "sets": ["train/cat/1.png", "train/dog/2.png", "test/cat/3.png"],
        }.items():
            with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
                for number, file in enumerate(files):
                    archive.writestr(file, encoded(number))
        flat = load_pictures(f"folder:zip://::file://{tmp_path}/flat.zip")
        assert flat.keys == ("one.png", "two.png")
        assert reds(flat) == [0, 1]
        sets = f"folder:zip://::file://{tmp_path}/sets.zip"
        assert load_pictures(sets).classes == ("cat", "dog")
        assert split_spec(sets, "test") == f"{sets}@test"
        assert reds(load_pictures(f"{sets}@test")) == [2]

    def test_a_missing_archive(self, tmp_path):
        with pytest.raises(ProsminError, match=r"none\.zip.*does not exist"):
            open_source(f"folder:zip://::file://{tmp_path}/none.zip")

    def test_a_url_of_an_archive_without_an_archive(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UsageError, match="zip://NAME::ARCHIVE"):
            open_source("folder:zip://a")

    def test_classes(self, store):
        put(store, "bucket/dog/deep/1.png", "bucket/cat/2.png", "bucket/cat/1.png")
        pictures = load_pictures("folder:memory://bucket/")
        assert pictures.classes == ("cat", "dog")
        assert pictures.labels.tolist() == [0, 0, 1]
        assert reds(pictures) == [2, 1, 0]

    def test_splits(self, store):
        put(store, "b/train/cat/1.png", "b/train/dog/1.png", "b/val/cat/1.png")
        assert len(open_source("folder:memory://b")) == 2  # train, if there are both
        assert len(open_source("folder:memory://b@val")) == 1
        assert split_spec("folder:memory://b", "test") == "folder:memory://b@val"
        assert split_spec("folder:memory://b/train", "test") == "folder:memory://b/val"
        with pytest.raises(UsageError, match="'ood'"):
            open_source("folder:memory://b@ood")

    def test_names_that_have_a_meaning_in_urls(self, store):
        put(store, "b/a::b.png", "b/100%25 #1?x=2.png", "b/ü@1.png")
        assert sorted(reds(load_pictures("folder:memory://b"))) == [0, 1, 2]

    def test_a_file_that_vanishes_is_an_unreadable_image(self, store):
        put(store, *(f"b/{i:03d}.png" for i in range(10)))
        source = open_source("folder:memory://b")
        store.rm("/b/003.png")
        with pytest.raises(OSError, match="no such file"):
            source.read(3)
        with pytest.raises(ProsminError, match=r"003\.png"):
            load_source(CheckedSource(source, max_bad=0.0), limit=2**30)

    def test_read_by_many_threads(self, store):
        put(store, *(f"b/{i:03d}.png" for i in range(200)))
        source = open_source("folder:memory://b")
        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(source.read, range(200))) == [encoded(i) for i in range(200)]


class TestParquet:
    def test_images_and_labels(self, store, tmp_path):
        labels = {"label": [2, 0] * 4, "label_name": ["c", "a"] * 4}
        store.put(str(written(tmp_path / "x.parquet", **labels)), "/b/x.parquet")
        pictures = load_pictures("parquet:memory://b/x.parquet")
        assert reds(pictures) == list(range(8))
        assert pictures.labels.tolist() == labels["label"]
        assert pictures.classes == ("a", "1", "c")
        assert pictures.keys[3] == "x.parquet[3]"

    def test_images_of_hugging_face_in_splits(self, store, tmp_path):
        for split, count in (("train", 5), ("test", 2)):
            struct = pa.array([{"bytes": encoded(i), "path": None} for i in range(count)])
            pq.write_table(pa.table({"image": struct}), tmp_path / "x.parquet")
            store.put(str(tmp_path / "x.parquet"), f"/b/data/{split}-00000.parquet")
        assert reds(load_pictures("parquet:memory://b")) == list(range(5))
        assert split_spec("parquet:memory://b", "test") == "parquet:memory://b@test"
        assert reds(load_pictures("parquet:memory://b@test")) == [0, 1]
        one = "parquet:memory://b/data/train-00000.parquet"
        assert split_spec(one, "test") == "parquet:memory://b/data/test-00000.parquet"

    def test_a_row_group_is_read_once_and_only_when_it_is_needed(self, store, tmp_path, monkeypatch):
        store.put(str(written(tmp_path / "x.parquet")), "/b/x.parquet")
        source = open_source("parquet:memory://b/x.parquet")
        opened = []
        original = RemotePath.open
        monkeypatch.setattr(RemotePath, "open", lambda self: opened.append(str(self)) or original(self))
        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(source.read, [3, 4, 5] * 20)) == [encoded(i) for i in (3, 4, 5)] * 20
        assert len(opened) == 1
        assert source.read(7) == encoded(7)
        assert len(opened) == 2

    def test_a_file_that_vanishes(self, store, tmp_path):
        store.put(str(written(tmp_path / "x.parquet")), "/b/x.parquet")
        source = open_source("parquet:memory://b/x.parquet")
        source.read(0)
        store.rm("/b/x.parquet")
        assert source.read(2) == encoded(2)  # of the same row group
        with pytest.raises(OSError, match="no such file"):
            source.read(3)

    def test_a_file_that_changes(self, store, tmp_path):
        store.put(str(written(tmp_path / "x.parquet")), "/b/x.parquet")
        source = open_source("parquet:memory://b/x.parquet")
        store.pipe("/b/x.parquet", b"something else")
        with pytest.raises(OSError):  # noqa: PT011 - the message is Arrow's
            source.read(3)

    def test_no_parquet(self, store):
        store.pipe("/b/x.parquet", b"broken")
        with pytest.raises(ProsminError, match=r"memory://b/x\.parquet cannot be read as Parquet"):
            open_source("parquet:memory://b/x.parquet")
        with pytest.raises(MissingFileError, match=r"y\.parquet"):
            open_source("parquet:memory://b/y.parquet")


class TestMarks:
    @pytest.mark.parametrize("kind", ["folder", "parquet"])
    def test_change_with_the_files(self, store, tmp_path, kind):
        store.put(str(written(tmp_path / "x.parquet")), "/b/x.parquet")
        put(store, "b/1.png")
        spec = f"{kind}:memory://b"
        before = files_mark(spec), files_mark(spec, times=True)
        assert None not in before
        assert (files_mark(spec), files_mark(spec, times=True)) == before
        same = {"/b/1.png": store.cat("/b/1.png"), "/b/x.parquet": store.cat("/b/x.parquet")}
        store.pipe(same)
        assert files_mark(spec) == before[0]
        assert files_mark(spec, times=True) != before[1]  # it was written again
        store.pipe({name: data + b"0" for name, data in same.items()})
        assert files_mark(spec) != before[0]

    def test_none_where_the_files_are_missing(self, store):
        assert files_mark("folder:memory://nothing") is None

    def test_one_place_however_it_is_written(self):
        assert place_of("folder:s3://bucket/a/") == place_of("folder:s3://bucket/a")

    def test_states_as_stores_describe_them(self):
        s3 = {"size": 3, "ETag": '"a"', "LastModified": datetime.fromtimestamp(60, UTC)}
        assert state_of(s3) == (3, '"a"', 60)
        gs = {"size": 3, "md5Hash": "a", "updated": "1970-01-01T00:01:00Z"}
        assert state_of(gs) == (3, "a", 60)
        assert state_of({"size": 3, "mtime": 60.5}) == (3, "60.5", 60.5)
        assert state_of({"size": None, "updated": "yesterday"}) == (0, "yesterday", None)


class TestRefusals:
    def test_a_missing_folder(self, store):
        with pytest.raises(MissingFileError, match="memory://nothing of the data"):
            open_source("folder:memory://nothing")

    def test_a_file_for_a_folder(self, store):
        put(store, "b/1.png")
        with pytest.raises(UsageError, match="is a file"):
            open_source("folder:memory://b/1.png")

    def test_an_unknown_protocol(self):
        with pytest.raises(UsageError, match=r"s4://.*s3://"):
            open_source("folder:s4://bucket")

    def test_a_missing_package(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "s3fs", None)
        with pytest.raises(ProsminError, match="pip install s3fs"):
            open_source("folder:s3://bucket")

    def test_fsspec_missing(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "fsspec.core", None)
        with pytest.raises(ProsminError, match="pip install fsspec"):
            connect("s3://bucket")

    @pytest.mark.parametrize("error", [PermissionError("Access Denied"), RuntimeError("no credentials\nmore")])
    def test_a_store_that_refuses(self, store, monkeypatch, error):
        def refuse(*_, **__):
            raise error

        monkeypatch.setattr(type(store), "info", refuse)
        with pytest.raises(
            ProsminError, match=f"memory://b cannot be opened.*{str(error).splitlines()[0]}.*credentials"
        ):
            open_source("folder:memory://b")

    def test_a_path_without_the_name_of_its_kind(self):
        with pytest.raises(UsageError, match="folder:hf://datasets/a/b"):
            open_source("hf://datasets/a/b")
        with pytest.raises(UsageError, match=r"parquet:s3://b/x\.parquet"):
            open_source("s3://b/x.parquet")
        assert spec_of("s3://b/x") == "folder:s3://b/x"

    @pytest.mark.parametrize("text", ["folder:s3://b", "C:/x", "a/b", "photos@test", "hf:name", "1://x"])
    def test_what_is_no_remote_path(self, text):
        assert not is_remote(text)


class TestEncoder:
    def test_paths_and_folders(self, store, encoder, tmp_path):
        write_folder(tmp_path / "images", 6)
        url = copied(store, tmp_path / "images", "b")
        loaded = load(encoder)
        expected = loaded.features(tmp_path / "images")
        assert torch.equal(loaded.features(url), expected)
        assert torch.equal(loaded.features([f"{url}/{i:03d}.png" for i in range(6)]), expected)
        assert torch.equal(loaded.features(f"{url}/002.png"), loaded.features(tmp_path / "images/002.png"))
        with pytest.raises(MissingFileError, match=r"memory://b/9\.png"):
            loaded(f"{url}/9.png")
        with pytest.raises(ProsminError, match=r"memory://b/9\.png"):
            loaded([f"{url}/9.png"])

    def test_embedding_is_equal_to_the_bit(self, store, encoder, tmp_path):
        local = write_folder(tmp_path / "images", 40, broken=(7,))
        remote = "folder:" + copied(store, tmp_path / "images", "b")
        tables = []
        for name, spec in (("local", local), ("remote", remote)):
            out = tmp_path / f"{name}.parquet"
            request = Request(data=spec, out=out, reference=spec, max_bad=0.1)
            tables.append(pq.read_table(embed(encoder, request)).replace_schema_metadata())
            assert embed(encoder, request) == out  # finished: nothing is computed again
        assert tables[0].equals(tables[1])
        store.pipe("/b/003.png", encoded(3))
        with pytest.raises(ProsminError, match="memory://b"):
            embed(encoder, Request(data=remote, out=tmp_path / "remote.parquet", reference=remote, max_bad=0.1))

    def test_inspection_and_search(self, store, encoder, tmp_path):
        write_folder(tmp_path / "images", 30)
        url = copied(store, tmp_path / "images", "b")
        store.pipe("/b/twin.png", store.cat("/b/004.png"))
        found = inspect(url, tmp_path / "out", encoder=encoder)
        duplicates = {issue.name for issue in found.issues if issue.kind == "exact_duplicate"}
        assert duplicates == {"004.png", "twin.png"}
        matches = search(f"{url}/005.png", tmp_path / "out", 1, encoder=encoder)
        assert [match.key for match in matches] == ["005.png"]
        assert open_whole(spec_of(url), leave_out=tmp_path).source.modified(0) > 0


def run(*arguments, folder):
    command = [sys.executable, "-m", "prosmin", *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def test_commands(tmp_path):
    for split, count in (("train", 12), ("test", 4)):
        for i in range(count):
            write(tmp_path / "images" / split / f"class{i % 2}" / f"{i}.png", number=20 * i)
    url = f"file://{tmp_path}/images"
    tiny = TINY | {"training.batch_size": "4", "heads.dim": "4"}
    fields = [word for name, value in tiny.items() for word in (f"--{name}", value)]
    result = run("pretrain", "--recipe", "demo", "--data", f"folder:{url}", "--out", "run", *fields, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    result = run("evaluate", "run", "--protocols", "knn", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    result = run("embed", "run", "--data", f"folder:{url}@test", "--out", "x.parquet", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 4
    result = run("embed", "run", "--data", "folder:file:///nothing", "--out", "y.parquet", folder=tmp_path)
    assert result.returncode == 2
    assert "file:///nothing" in result.stderr
    assert "Traceback" not in result.stderr
