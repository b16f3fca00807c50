"""The rows of `prosmin embed`: values, empty columns, unreadable images, decoding."""

import contextlib
import dataclasses
import time
from contextlib import closing
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import torch

from coloured import coloured
from embedding import Again, about, column, encoded, row_groups, stop_before_joining, write_folder, write_parquet
from prosmin.data.image_sets import load_pictures
from prosmin.data.sources import open_source
from prosmin.data.stream import Stream, picture_batches
from prosmin.data.unreadable import CheckedSource
from prosmin.embed import Request, embed, rows, stream
from prosmin.encoder import load, untrained
from prosmin.encoder.background import make_background, write_background
from prosmin.encoder.neighbours import nearest
from prosmin.errors import ProsminError
from published_layouts import timm_weights
from tiny_methods import tiny_method

COLUMNS = ["key", "label", "label_name", "features", "mean_log_scale", "view_variance"]
COLUMNS += ["nearest", "reference_distance", "ood_score", "flag", "uncertainty"]


def carrying(encoder, pictures, place):
    """The folder of an encoder that carries the features of training images."""
    own = load(encoder)
    folder = own.save(place / "carrying")
    background = make_background(own.features, own.features(pictures))
    write_background(folder, background, encoder=own.card["hash"])
    return folder


class TestRows:
    def test_values_are_those_of_the_encoder(self, encoder, specs, tmp_path, small_parts, capsys):
        own, new = specs
        out = embed(encoder, Request(data=new, out=tmp_path / "x.parquet", reference=own, views=4, batch=32))
        table, loaded = pq.read_table(out), load(encoder)
        assert table.column_names == COLUMNS
        assert table.column("key").to_pylist() == [f"new.parquet[{i}]" for i in range(300)]
        assert table.column("label").to_pylist() == [i % 3 for i in range(300)]
        pictures = coloured(300, seed=2)
        torch.testing.assert_close(column(table, "features"), loaded.features(pictures))  # batches of another size
        torch.testing.assert_close(column(table, "mean_log_scale"), loaded.forecast_uncertainty(pictures))
        expected = loaded.fit_reference(coloured(400, seed=1)).uncertainty(pictures)
        torch.testing.assert_close(column(table, "uncertainty"), expected, rtol=1e-3, atol=1e-3)
        means = torch.stack([view.mean for view in loaded.views(pictures, count=4)])
        torch.testing.assert_close(column(table, "view_variance"), means.var(0).mean(1), rtol=1e-3, atol=1e-12)
        metadata = about(out)
        assert metadata["reference"] == {"bank": 400, "scores": 400, "k": 10}
        assert metadata["false_alarms"] == pytest.approx(20 / 401)
        expected = column(table, "ood_score") > metadata["threshold"]
        assert table.column("flag").to_pylist() == expected.tolist()
        assert bool((column(table, "reference_distance") <= column(table, "ood_score")).all())
        assert [group.num_rows for group in row_groups(out)] == [100, 100, 100]
        assert "300 images" in capsys.readouterr().out
        assert sorted(path.name for path in tmp_path.iterdir()) == ["x.parquet"]

    def test_the_batch_size_changes_only_roundings(self, encoder, specs, tmp_path, small_parts):
        tables = []
        for batch in (7, 64):
            request = Request(data=specs[1], out=tmp_path / f"{batch}.parquet", reference=specs[0], batch=batch)
            tables.append(pq.read_table(embed(encoder, request)))
        for name in ("mean_log_scale", "view_variance", "ood_score", "uncertainty"):
            one, other = (column(table, name) for table in tables)
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 if name == "uncertainty" else 1e-6)

    def test_columns_without_values_are_empty(self, specs, tmp_path, capsys):
        name = f"timm:test_vit@{timm_weights(tmp_path)}"
        data = write_parquet(tmp_path / "few.parquet", 6, seed=2, labels=False)
        table = pq.read_table(embed(name, Request(data=data, out=tmp_path / "x.parquet", views=0)))
        empty = {"label", "label_name", "uncertainty", "mean_log_scale", "view_variance"}
        empty |= {"nearest", "reference_distance", "ood_score", "flag"}
        assert {field for field in COLUMNS if table.column(field).null_count == 6} == empty
        assert table.schema.types == pq.read_schema(tmp_path / "x.parquet").types
        assert "no reference" in capsys.readouterr().out
        twin = untrained(tiny_method("prosmin", heads__scale="zero")).save(tmp_path / "twin")
        request = Request(data=data, out=tmp_path / "y.parquet", reference="none")
        table = pq.read_table(embed(twin, request))
        assert table.column("mean_log_scale").null_count == 6  # a scale of 0 has no logarithm
        assert table.column("view_variance").null_count == 0

    def test_without_a_reference_uncertainty_is_measured_against_the_training_images(self, encoder, specs, tmp_path):
        """None of them is its own neighbour."""
        folder = carrying(encoder, coloured(40, seed=3), tmp_path)
        trained_on = write_parquet(tmp_path / "sample.parquet", 40, seed=3)
        known = load(folder).known.images
        for spec, pictures in ((specs[1], coloured(300, seed=2)), (trained_on, coloured(40, seed=3))):
            out = tmp_path / f"{len(pictures)}-rows.parquet"
            table = pq.read_table(embed(folder, Request(data=spec, out=out, reference="none")))
            expected = load(folder).uncertainty(pictures)
            torch.testing.assert_close(column(table, "uncertainty"), expected, rtol=1e-3, atol=1e-3)
            assert table.column("ood_score").null_count == len(pictures)
        assert not torch.allclose(expected, known.uncertainty(known.features), atol=0.1)

    def test_unreadable_images_are_named_and_left_out(self, encoder, tmp_path, small_parts, capsys):
        data = write_folder(tmp_path / "images", 130, broken=(5, 100))
        request = Request(data=data, out=tmp_path / "x.parquet", reference="none", max_bad=0.02)
        table = pq.read_table(embed(encoder, request))
        rest = [i for i in range(130) if i not in (5, 100)]
        assert table.column("key").to_pylist() == [f"{i:03d}.png" for i in rest]
        pictures = coloured(130).subset(torch.tensor(rest))
        torch.testing.assert_close(column(table, "features"), load(encoder).features(pictures))
        torch.testing.assert_close(column(table, "mean_log_scale"), load(encoder).forecast_uncertainty(pictures))
        lines = about(request.out)["unreadable"]
        assert [line.partition(": ")[0] for line in lines] == ["005.png", "100.png"]
        printed = capsys.readouterr().err
        assert all(line in printed for line in lines)
        scored = Request(data=data, out=tmp_path / "z.parquet", views=0, reference=data, max_bad=0.02)
        space = load(encoder).background.space
        _, found = nearest(*[space(load(encoder).features(pictures))] * 2, 1, exclude_self=True)
        names = pq.read_table(embed(encoder, scored)).column("nearest").to_pylist()
        assert names == [f"{rest[int(row)]:03d}.png" for row in found[:, 0]]  # those after a broken one, too
        for out in (tmp_path / "y.parquet", request.out):  # a new file, and one that was written with a larger share
            with pytest.raises(ProsminError, match=r"2 of 130 [^$]*0\.01[^$]*--max-bad[^$]*005\.png"):
                embed(encoder, dataclasses.replace(request, out=out, max_bad=0.01))
            assert out.exists() == (out == request.out)

    @pytest.mark.parametrize(("share", "allowed"), [("0.05", False), ("0.1", True)])
    def test_by_default_the_run_says_how_many_may_be_unreadable(self, tmp_path, share, allowed):
        data = write_folder(tmp_path / "images", 20, broken=(5, 10))
        own = untrained(tiny_method("prosmin", data__max_bad=share)).save(tmp_path / "encoder")
        request = Request(data=data, out=tmp_path / "x.parquet", reference="none", views=0)
        with contextlib.nullcontext() if allowed else pytest.raises(ProsminError, match=share):
            embed(own, request)
        assert request.out.exists() == allowed

    def test_features_must_be_finite(self, specs, tmp_path):
        broken = untrained(tiny_method("prosmin"))
        next(broken.method.get_submodule("online.backbone").parameters()).fill_(torch.nan)
        folder = broken.save(tmp_path / "encoder")
        for own in ("none", specs[0]):
            with pytest.raises(ProsminError, match="not finite"):
                embed(folder, Request(data=specs[1], out=tmp_path / "x.parquet", reference=own, views=0))
            assert not (tmp_path / "x.parquet").exists()

    def test_an_image_that_was_repaired_is_in_the_continued_file(self, encoder, tmp_path, small_parts, monkeypatch):
        data = write_folder(tmp_path / "images", 130, broken=(5, 100))
        request = Request(data=data, out=tmp_path / "x.parquet", reference="none", views=0, max_bad=0.1)
        stop_before_joining(encoder, request, monkeypatch)
        write_folder(tmp_path / "images", 130, only=(5,))
        keys = pq.read_table(embed(encoder, request)).column("key").to_pylist()
        assert keys == [f"{i:03d}.png" for i in range(130) if i != 100]


def test_a_label_that_is_no_class_has_no_name():
    labels = torch.tensor([0, 1, -1, 2])
    source = SimpleNamespace(labels=labels, classes=("cat", "dog"))
    numbers, names = rows._labels(source, torch.arange(4).numpy())
    assert numbers.to_pylist() == labels.tolist()
    assert names.to_pylist() == ["cat", "dog", None, None]


class TestDecoding:
    """While the networks compute if a core is free, else between their batches."""

    def test_decoding_between_batches_writes_the_same_bytes(self, encoder, tmp_path, small_parts, monkeypatch):
        folder = tmp_path / "pictures"
        folder.mkdir()
        for i, image in enumerate(coloured(150, side=48).images):
            data = encoded(image[:, : 30 + i % 17, : 20 + i % 13])
            (folder / f"{i:03d}.png").write_bytes(data if i not in (5, 100) else b"broken")
        (folder / "120.png").unlink()
        (folder / "120.png").symlink_to(folder / "gone.png")
        files = []
        for cores in (2, 1):  # the tests have one thread for the networks
            monkeypatch.setattr(stream, "worker_count", lambda cores=cores: cores)
            out = tmp_path / f"{cores}.parquet"
            request = Request(data=f"folder:{folder}", out=out, reference="none", views=2, batch=20, max_bad=0.1)
            files.append(embed(encoder, request).read_bytes())
        assert files[0] == files[1]
        assert [line[:7] for line in about(out)["unreadable"]] == ["005.png", "100.png", "120.png"]

    def test_one_batch_is_read_ahead(self, specs):
        class Watched:
            def __init__(self, inner):
                self.inner, self.numbers = inner, []

            def __len__(self):
                return len(self.inner)

            def read(self, i):
                self.numbers.append(i)
                return self.inner.read(i)

        watched = Watched(open_source(specs[0]))
        images = Stream(CheckedSource(watched), device=torch.device("cpu"), replace=False, overlap=False)
        with closing(images.batches(torch.arange(40).split(10))) as batches:
            batch = next(batches)
            assert torch.equal(batch.images, coloured(400, seed=1).images[:10])
            wait_for(lambda: len(watched.numbers) >= 20)
            time.sleep(0.05)  # long enough to read ten more
            assert sorted(watched.numbers) == list(range(20))
            assert [batch.index.tolist()[0] for batch in batches] == [10, 20, 30]
        assert sorted(watched.numbers) == list(range(40))


def wait_for(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def made_of(folder, work, spec, *, size):
    """The results of `work` for the batches of a set, recorded and plain."""
    encoder = load(folder)
    run = stream.RecordedWork(lambda batch: work(encoder, batch), encoder.device, size)
    batches = picture_batches(load_pictures(spec), size=size, device=encoder.device)
    return [(run(batch), work(encoder, batch)) for batch in batches]


@pytest.mark.parametrize("views", [0, 2])
def test_recorded_work_is_the_same(encoder, specs, monkeypatch, views):
    """300 images in batches of 80: three use the recording, the last one of 60 does not."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(stream, "Recorded", Again)
    for got, expected in made_of(encoder, lambda e, batch: e.summarise(batch, views=views), specs[1], size=80):
        for one, other in zip(got, expected, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other)
    for got, expected in made_of(encoder, lambda e, batch: e.batch_features(batch), specs[1], size=80):
        torch.testing.assert_close(got, expected)


def test_recorded_results_outlive_the_next_batch(encoder, specs, monkeypatch):
    if not torch.cuda.is_available():
        monkeypatch.setattr(stream, "Recorded", Again)
    found = made_of(encoder, lambda e, batch: e.batch_features(batch), specs[1], size=100)
    assert not torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][0], found[0][1])
