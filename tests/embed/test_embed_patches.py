"""`prosmin embed --patches`: the column, its shape, row groups of bounded size, continuing and refusals."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from coloured import coloured
from embedding import Again, about, row_groups, stop_before_joining, write_folder
from prosmin.cli import main
from prosmin.embed import Request, embed, patches, stream
from prosmin.encoder import load, untrained
from prosmin.errors import ProsminError, UsageError
from tiny_methods import tiny_method


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """The folder of an encoder with a ViT."""
    return untrained(tiny_method("prosmin", vit=True)).save(tmp_path_factory.mktemp("vit") / "encoder")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """150 images, two of them broken."""
    return write_folder(tmp_path_factory.mktemp("patches") / "images", 150, broken=(5, 100))


def request_for(data, out, **more):
    return Request(data=data, out=out, reference="none", views=0, max_bad=0.1, **more)


def read_patches(path):
    """As documented: (N, h, w, D)."""
    table = pq.read_table(path, columns=["patches"])
    shape = json.loads(table.schema.metadata[b"prosmin"])["patches"]["shape"]
    return table["patches"].combine_chunks().flatten().to_numpy().reshape(-1, *shape)


class TestColumn:
    @pytest.mark.parametrize("kind", ["float16", "float32"])
    def test_values_are_those_of_the_encoder(self, vit, data, tmp_path, small_parts, kind):
        out = embed(vit, request_for(data, tmp_path / "x.parquet", patches=kind))
        rest = torch.tensor([i for i in range(150) if i not in (5, 100)])
        expected = load(vit).patches(coloured(150).subset(rest))
        found = read_patches(out)
        assert found.dtype == np.dtype(kind)
        assert found.shape == (148, *expected.shape[1:])
        torch.testing.assert_close(torch.tensor(found).float(), expected, rtol=2e-3, atol=1e-3)
        assert about(out)["patches"] == {"shape": list(expected.shape[1:])}
        assert about(out)["columns"]["patches"] == patches.MEANING
        stored = pq.read_schema(out).field("patches").type
        assert stored == pa.list_(patches.TYPES[kind][0], expected[0].numel())

    def test_the_other_columns_do_not_change(self, vit, data, tmp_path):
        plain = pq.read_table(embed(vit, request_for(data, tmp_path / "x.parquet")))
        assert "patches" not in plain.column_names
        assert "patches" not in about(tmp_path / "x.parquet")
        table = pq.read_table(embed(vit, request_for(data, tmp_path / "y.parquet", patches="float16")))
        assert table.column_names == [*plain.column_names, "patches"]
        assert table.drop_columns(["patches"]).to_pydict() == plain.to_pydict()

    def test_duckdb_reads_it(self, vit, data, tmp_path):
        out = embed(vit, request_for(data, tmp_path / "x.parquet", patches="float16"))
        duckdb = pytest.importorskip("duckdb")
        ((first,),) = duckdb.sql(f"SELECT patches FROM '{out}' LIMIT 1").fetchall()
        assert list(first) == read_patches(out)[0].reshape(-1).tolist()

    def test_row_groups_have_a_bounded_size(self, vit, data, tmp_path, small_parts, monkeypatch):
        values = load(vit).patches(coloured(1)).numel()
        monkeypatch.setattr(patches, "GROUP_BYTES", 50 * 2 * values + 1)
        out = embed(vit, request_for(data, tmp_path / "x.parquet", patches="float16"))
        assert [group.num_rows for group in row_groups(out)] == [50, 50, 48]

    def test_rows_of_a_group(self):
        assert patches.rows_per_group(pa.list_(pa.float16(), 64), 8192) == 8192
        assert patches.rows_per_group(pa.list_(pa.float32(), 2**20), 8192) == 64
        assert patches.rows_per_group(pa.list_(pa.float32(), 2**30), 8192) == 1

    def test_a_continued_file_is_the_same(self, vit, data, tmp_path, small_parts, monkeypatch):
        request = request_for(data, tmp_path / "x.parquet", patches="float16")
        whole = embed(vit, request).read_bytes()
        request.out.unlink()
        stop_before_joining(vit, request, monkeypatch)
        (tmp_path / "x.parquet.parts" / "part-00001.parquet").unlink()
        assert embed(vit, request).read_bytes() == whole

    def test_recorded_on_a_gpu(self, vit, data, tmp_path, monkeypatch):
        """The graph returns patches in new memory for every batch."""
        plain = embed(vit, request_for(data, tmp_path / "x.parquet", patches="float16", batch=25))
        if not torch.cuda.is_available():
            monkeypatch.setattr(stream, "Recorded", Again)
            monkeypatch.setattr(
                "prosmin.embed.run.recorded",
                lambda work, encoder, *, size: stream.RecordedWork(work, encoder.device, size),
            )
        recorded = embed(vit, request_for(data, tmp_path / "y.parquet", patches="float16", batch=25))
        np.testing.assert_allclose(read_patches(recorded), read_patches(plain), rtol=1e-2, atol=1e-2)


class TestRefusals:
    def test_a_network_without_patches(self, encoder, data, tmp_path, capsys):
        command = ["embed", str(encoder), "--data", data, "--out", str(tmp_path / "x.parquet"), "--patches", "float16"]
        assert main(command) == 2
        error = capsys.readouterr().err
        assert "--patches needs a ViT" in error
        assert load(encoder).config.backbone.name in error
        assert list(tmp_path.iterdir()) == []

    def test_an_unknown_type(self, data, tmp_path):
        with pytest.raises(UsageError, match=r"--patches is 'int8'.*float16, float32"):
            request_for(data, tmp_path / "x.parquet", patches="int8")

    @pytest.mark.parametrize(("before", "now"), [("float16", "float32"), (None, "float16"), ("float16", None)])
    def test_another_type_than_the_parts(self, vit, data, tmp_path, small_parts, monkeypatch, before, now):
        request = request_for(data, tmp_path / "x.parquet", patches=before)
        stop_before_joining(vit, request, monkeypatch)
        for _ in range(2):  # the unfinished file, and the finished one
            with pytest.raises(ProsminError, match=f"patches: {before} -> {now}"):
                embed(vit, dataclasses.replace(request, patches=now))
            embed(vit, request)

    def test_values_too_large_for_float16(self):
        large = np.full((2, 1, 1, 3), np.inf, np.float16)
        with pytest.raises(ProsminError, match=r"65504.*--patches float32"):
            patches.column(large)
        with pytest.raises(ProsminError, match="checkpoint"):
            patches.column(large.astype(np.float32))
