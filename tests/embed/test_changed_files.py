"""`prosmin embed` when image files change between two commands, or while one runs."""

import json
import os

import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from embedding import about, column, stop_before_joining, write_bmp, write_folder, write_parquet
from prosmin.data.sources import files_marks
from prosmin.embed import Request, embed, rows, run
from prosmin.errors import ProsminError


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_parts_of_changed_files_are_written_again(encoder, tmp_path, small_parts, monkeypatch, kind):
    """Killed before the parts were joined; then some images change under the same names."""

    def write(*, seed, only=()):
        if kind == "parquet":
            return write_parquet(tmp_path / "x.parquet", 150, seed=seed, labels=False)
        return write_folder(tmp_path / "set", 150, seed=seed, only=only)

    request = Request(data=write(seed=1), out=tmp_path / "out.parquet", reference="none", views=0)
    stop_before_joining(encoder, request, monkeypatch)
    write(seed=2, only=(70, 71))
    made = []
    table = rows.table
    monkeypatch.setattr(
        rows, "table", lambda numbers, *a, **k: (made.append(int(numbers[0])), table(numbers, *a, **k))[1]
    )
    embed(encoder, request)
    assert sorted(made) == ([64] if kind == "folder" else [0, 64, 128])
    anew = Request(data=request.data, out=tmp_path / "anew.parquet", reference="none", views=0)
    assert torch.equal(
        column(pq.read_table(request.out), "features"), column(pq.read_table(embed(encoder, anew)), "features")
    )


def same_rows(one, other):
    return pq.read_table(one).equals(pq.read_table(other))


@pytest.mark.parametrize("name", ["set", "set.parquet"])
class TestFilesOfTheSameSize:
    """Other pixels, and only the time of modification shows it."""

    def test_parts_are_written_again(self, encoder, tmp_path, small_parts, monkeypatch, name):
        request = Request(
            data=write_bmp(tmp_path / name, 150, seed=1), out=tmp_path / "x.parquet", reference="none", views=0
        )
        sizes = files_marks([request.data])
        stop_before_joining(encoder, request, monkeypatch)
        write_bmp(tmp_path / name, 150, seed=2, only=(70, 71))
        assert files_marks([request.data]) == sizes
        embed(encoder, request)
        anew = Request(data=request.data, out=tmp_path / "anew.parquet", reference="none", views=0)
        assert same_rows(request.out, embed(encoder, anew))

    def test_the_reference_is_fitted_again_and_its_rows_are_written_again(
        self, encoder, specs, tmp_path, small_parts, monkeypatch, name
    ):
        own = write_bmp(tmp_path / name, 100, seed=1)
        request = Request(data=specs[1], out=tmp_path / "x.parquet", reference=own, views=0)
        stop_before_joining(encoder, request, monkeypatch)
        write_bmp(tmp_path / name, 100, seed=2, only=range(30))
        embed(encoder, request)
        anew = Request(data=specs[1], out=tmp_path / "anew.parquet", reference=own, views=0)
        assert same_rows(request.out, embed(encoder, anew))
        assert not (tmp_path / "x.parquet.parts").exists()

    @pytest.mark.parametrize("role", ["data", "reference"])
    def test_a_finished_file_is_refused(self, encoder, specs, tmp_path, name, role):
        spec = write_bmp(tmp_path / name, 30, seed=1)
        given = {"data": spec, "reference": "none"} if role == "data" else {"data": specs[1], "reference": spec}
        request = Request(**given, out=tmp_path / "x.parquet", views=0)
        before = embed(encoder, request).read_bytes()
        embed(encoder, request)  # nothing has changed
        write_bmp(tmp_path / name, 30, seed=2, only=(7,))
        with pytest.raises(ProsminError, match=rf"x\.parquet was written from other files.*{spec}"):
            embed(encoder, request)
        assert request.out.read_bytes() == before

    def test_a_file_of_an_earlier_prosmin_is_compared_by_sizes(self, encoder, tmp_path, capsys, name):
        request = Request(
            data=write_bmp(tmp_path / name, 30, seed=1), out=tmp_path / "x.parquet", reference="none", views=0
        )
        table = pq.read_table(embed(encoder, request))
        metadata = about(request.out) | {"files": files_marks([request.data])}
        del metadata["files_and_times"]
        pq.write_table(table.replace_schema_metadata({"prosmin": json.dumps(metadata)}), request.out)
        write_bmp(tmp_path / name, 30, seed=2)
        embed(encoder, request)
        assert "already" in capsys.readouterr().out
        if name == "set":
            Image.new("RGB", (9, 9)).save(tmp_path / name / "003.bmp")
        else:
            write_parquet(tmp_path / name, 30, seed=2)
        with pytest.raises(ProsminError, match=r"x\.parquet was written from other files"):
            embed(encoder, request)


class TestUnderALauncher:
    """Machines may have copies of the files with other times: no part is written again because of them."""

    @pytest.fixture(autouse=True)
    def launched(self, monkeypatch):
        for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}.items():
            monkeypatch.setenv(name, value)

    @pytest.mark.parametrize("role", ["data", "reference"])
    def test_times_do_not_count(self, encoder, specs, tmp_path, small_parts, monkeypatch, role):
        spec = write_bmp(tmp_path / "set", 100, seed=1)
        given = {"data": spec, "reference": "none"} if role == "data" else {"data": specs[1], "reference": spec}
        request = Request(**given, out=tmp_path / "x.parquet", views=0)
        stop_before_joining(encoder, request, monkeypatch)
        folder = request.out.with_name("x.parquet.parts")
        parts = {
            path: path.stat().st_mtime_ns for kind in ("parquet", "safetensors") for path in folder.rglob(f"*.{kind}")
        }
        assert len(parts) > 1
        for path in (tmp_path / "set").iterdir():
            os.utime(path, (0, 0))
        seen, join = [], run.join

        def looked_at(*given, **more):
            seen.append({path: path.stat().st_mtime_ns for path in parts})
            return join(*given, **more)

        monkeypatch.setattr(run, "join", looked_at)
        embed(encoder, request)
        assert seen == [parts]

    def test_a_finished_file_stays_finished(self, encoder, tmp_path, capsys):
        request = Request(
            data=write_bmp(tmp_path / "set", 30, seed=1), out=tmp_path / "x.parquet", reference="none", views=0
        )
        embed(encoder, request)
        for path in (tmp_path / "set").iterdir():
            os.utime(path, (0, 0))
        embed(encoder, request)
        assert "already" in capsys.readouterr().out
        Image.new("RGB", (9, 9)).save(tmp_path / "set" / "003.bmp")
        with pytest.raises(ProsminError, match=r"x\.parquet was written from other files"):
            embed(encoder, request)


def test_files_that_change_while_they_are_embedded_are_noticed_afterwards(encoder, tmp_path, monkeypatch):
    request = Request(
        data=write_bmp(tmp_path / "set", 30, seed=1), out=tmp_path / "x.parquet", reference="none", views=0
    )
    join = run.join
    monkeypatch.setattr(run, "join", lambda *a, **k: (write_bmp(tmp_path / "set", 30, seed=2), join(*a, **k))[1])
    embed(encoder, request)
    with pytest.raises(ProsminError, match=r"x\.parquet was written from other files"):
        embed(encoder, request)
