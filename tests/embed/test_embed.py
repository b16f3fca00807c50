"""`prosmin embed`: what a row holds, that no row is lost or doubled by a kill, and that flags keep their rate."""

import contextlib
import dataclasses
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from coloured import coloured
from prosmin.cli import main
from prosmin.cuda_graph import Recorded
from prosmin.data.image_sets import load_pictures
from prosmin.data.sources import files_marks, open_source
from prosmin.data.stream import Stream, picture_batches
from prosmin.data.unreadable import CheckedSource
from prosmin.embed import embed, parts, reference, run, stream
from prosmin.embed import rows as columns
from prosmin.embed import rows as joining
from prosmin.embed import stream as decoding
from prosmin.embed import stream as recorded
from prosmin.embed.parts import Process, this_process
from prosmin.embed.reference import own_groups
from prosmin.embed.run import Request
from prosmin.encoder import load, untrained
from prosmin.encoder.neighbours import nearest
from prosmin.errors import ProsminError, UsageError
from prosmin.local_processes import Helpers
from started import Started, wait_until
from tiny_methods import tiny_method

COLUMNS = ["key", "label", "label_name", "features", "mean_log_scale", "view_variance"]
COLUMNS += ["nearest", "reference_distance", "ood_score", "flag"]


@pytest.fixture(autouse=True)
def one_thread():
    """As in the processes that are started here: the bits of a sum depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """The folder of an encoder of 16 px views."""
    return untrained(tiny_method("prosmin", views__global_size="16")).save(tmp_path_factory.mktemp("embed") / "encoder")


def png(image):
    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "PNG")
    return file.getvalue()


def write_pictures(path, count, *, seed, labels=True):
    """A Parquet file of coloured images; the SPEC comes back."""
    pictures = coloured(count, seed=seed)
    columns = {"image": [png(image) for image in pictures.images]}
    columns |= {"label": pictures.labels.tolist()} if labels else {}
    pq.write_table(pa.table(columns), path)
    return f"parquet:{path}"


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    """400 images that belong, 300 of the same kind."""
    folder = tmp_path_factory.mktemp("pictures")
    return write_pictures(folder / "own.parquet", 400, seed=1), write_pictures(folder / "new.parquet", 300, seed=2)


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of 64 images, row groups of 100."""
    monkeypatch.setattr(parts, "PART", 64)
    monkeypatch.setattr(run, "PART", 64)
    monkeypatch.setattr(joining, "ROWS", 100)


def told(path):
    return json.loads(pq.read_schema(path).metadata[b"prosmin"])


class TestRows:
    def test_they_are_the_encoder_s_own_numbers(self, encoder, specs, tmp_path, small_parts, capsys):
        own, new = specs
        out = embed(encoder, Request(data=new, out=tmp_path / "x.parquet", reference=own, views=4, batch=32))
        table, loaded = pq.read_table(out), load(encoder)
        assert table.column_names == COLUMNS
        assert table.column("key").to_pylist() == [f"new.parquet[{i}]" for i in range(300)]
        assert table.column("label").to_pylist() == [i % 3 for i in range(300)]
        pictures = coloured(300, seed=2)
        torch.testing.assert_close(column(table, "features"), loaded.features(pictures))  # batches of another size
        torch.testing.assert_close(column(table, "mean_log_scale"), loaded.uncertainty(pictures))
        means = torch.stack([view.mean for view in loaded.views(pictures, count=4)])
        torch.testing.assert_close(column(table, "view_variance"), means.var(0).mean(1), rtol=1e-3, atol=1e-12)
        about = told(out)
        assert about["reference"] == {"bank": 400, "scores": 400, "k": 2}
        assert about["false_alarms"] == pytest.approx(20 / 401)
        expected = column(table, "ood_score") > about["threshold"]
        assert table.column("flag").to_pylist() == expected.tolist()
        assert bool((column(table, "reference_distance") <= column(table, "ood_score")).all())
        assert [group.num_rows for group in row_groups(out)] == [100, 100, 100]
        assert "300 images" in capsys.readouterr().out
        assert sorted(path.name for path in tmp_path.iterdir()) == ["x.parquet"]

    def test_batches_move_nothing_but_roundings(self, encoder, specs, tmp_path, small_parts):
        tables = []
        for batch in (7, 64):
            request = Request(data=specs[1], out=tmp_path / f"{batch}.parquet", reference=specs[0], batch=batch)
            tables.append(pq.read_table(embed(encoder, request)))
        for name in ("mean_log_scale", "view_variance", "ood_score"):
            one, other = (column(table, name) for table in tables)
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)

    def test_without_scale_views_or_reference_columns_are_empty(self, specs, tmp_path, capsys):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            network = timm.create_model("test_vit", num_classes=0)
        save_file(network.state_dict(), tmp_path / "w.safetensors")
        name = f"timm:test_vit@{tmp_path / 'w.safetensors'}"
        data = write_pictures(tmp_path / "few.parquet", 6, seed=2, labels=False)
        table = pq.read_table(embed(name, Request(data=data, out=tmp_path / "x.parquet", views=0)))
        empty = {"label", "label_name", "mean_log_scale", "view_variance"}
        empty |= {"nearest", "reference_distance", "ood_score", "flag"}
        assert {field for field in COLUMNS if table.column(field).null_count == 6} == empty
        assert table.schema.types == pq.read_schema(tmp_path / "x.parquet").types
        assert "no reference" in capsys.readouterr().out
        twin = untrained(tiny_method("prosmin", heads__scale="zero")).save(tmp_path / "twin")
        request = Request(data=data, out=tmp_path / "y.parquet", reference="none")
        table = pq.read_table(embed(twin, request))
        assert table.column("mean_log_scale").null_count == 6  # a scale of 0 has no logarithm
        assert table.column("view_variance").null_count == 0

    def test_unreadable_pictures_are_named_and_left_out(self, encoder, tmp_path, small_parts, capsys):
        folder = tmp_path / "pictures"
        folder.mkdir()
        for i, image in enumerate(coloured(130).images):
            (folder / f"{i:03d}.png").write_bytes(png(image) if i not in (5, 100) else b"broken")
        request = Request(data=f"folder:{folder}", out=tmp_path / "x.parquet", reference="none", max_bad=0.02)
        table = pq.read_table(embed(encoder, request))
        rest = [i for i in range(130) if i not in (5, 100)]
        assert table.column("key").to_pylist() == [f"{i:03d}.png" for i in rest]
        pictures = coloured(130).subset(torch.tensor(rest))
        torch.testing.assert_close(column(table, "features"), load(encoder).features(pictures))
        torch.testing.assert_close(column(table, "mean_log_scale"), load(encoder).uncertainty(pictures))
        lines = [f"{name}: not an image in any known format" for name in ("005.png", "100.png")]
        assert told(request.out)["unreadable"] == lines
        said = capsys.readouterr().err
        assert all(line in said for line in lines)
        judged = Request(data=request.data, out=tmp_path / "z.parquet", views=0, reference=request.data, max_bad=0.02)
        _, rows = nearest(*[load(encoder).features(pictures)] * 2, 1, exclude_self=True)
        found = pq.read_table(embed(encoder, judged)).column("nearest").to_pylist()
        assert found == [f"{rest[int(row)]:03d}.png" for row in rows[:, 0]]  # those after a broken one keep their names
        strict = Request(data=f"folder:{folder}", out=tmp_path / "y.parquet", reference="none", max_bad=0.01)
        message = r"2 of 130 images.*share of 0\.01 is allowed.*or allow more with --max-bad SHARE:\n  005\.png"
        with pytest.raises(ProsminError, match=message):
            embed(encoder, strict)
        assert not strict.out.exists()
        with pytest.raises(
            ProsminError, match=message
        ):  # nor does a file that allowed more pass for one of a strict command
            embed(encoder, dataclasses.replace(strict, out=request.out))

    def test_as_many_may_be_unreadable_as_the_run_allowed(self, tmp_path):
        folder = tmp_path / "pictures"
        folder.mkdir()
        for i, image in enumerate(coloured(20).images):
            (folder / f"{i:03d}.png").write_bytes(png(image) if i not in (5, 10) else b"broken")
        for share, allowed in (("0.05", False), ("0.1", True)):
            own = untrained(tiny_method("prosmin", data__max_bad=share)).save(tmp_path / f"encoder-{share}")
            request = Request(data=f"folder:{folder}", out=tmp_path / f"{share}.parquet", reference="none", views=0)
            with contextlib.nullcontext() if allowed else pytest.raises(ProsminError, match=f"share of {share} is"):
                embed(own, request)
            assert request.out.exists() == allowed

    def test_numbers_that_are_not_finite_are_no_features(self, specs, tmp_path):
        broken = untrained(tiny_method("prosmin"))
        next(broken.method.get_submodule("online.backbone").parameters()).fill_(torch.nan)
        folder = broken.save(tmp_path / "encoder")
        for own in ("none", specs[0]):
            with pytest.raises(ProsminError, match="not finite; is the checkpoint sound"):
                embed(folder, Request(data=specs[1], out=tmp_path / "x.parquet", reference=own, views=0))
            assert not (tmp_path / "x.parquet").exists()

    def test_a_mended_picture_is_in_the_continued_file(self, encoder, tmp_path, small_parts, monkeypatch):
        folder = tmp_path / "pictures"
        folder.mkdir()
        for i, image in enumerate(coloured(130).images):
            (folder / f"{i:03d}.png").write_bytes(png(image) if i not in (5, 100) else b"broken")
        request = Request(data=f"folder:{folder}", out=tmp_path / "x.parquet", reference="none", views=0, max_bad=0.1)
        stop_before_joining(encoder, request, monkeypatch)
        (folder / "005.png").write_bytes(png(coloured(1).images[0]))
        keys = pq.read_table(embed(encoder, request)).column("key").to_pylist()
        assert keys == [f"{i:03d}.png" for i in range(130) if i != 100]


class TestDecoding:
    """Beside the networks where a core is free, else between their batches."""

    def test_a_busy_cpu_writes_the_same_bytes(self, encoder, tmp_path, small_parts, monkeypatch):
        folder = tmp_path / "pictures"
        folder.mkdir()
        for i, image in enumerate(coloured(150, side=48).images):
            data = png(image[:, : 30 + i % 17, : 20 + i % 13])
            (folder / f"{i:03d}.png").write_bytes(data if i not in (5, 100) else b"broken")
        (folder / "120.png").unlink()
        (folder / "120.png").symlink_to(folder / "gone.png")
        files = []
        for cores in (2, 1):  # the tests have one thread for the networks
            monkeypatch.setattr(decoding, "worker_count", lambda cores=cores: cores)
            out = tmp_path / f"{cores}.parquet"
            request = Request(data=f"folder:{folder}", out=out, reference="none", views=2, batch=20, max_bad=0.1)
            files.append(embed(encoder, request).read_bytes())
        assert files[0] == files[1]
        assert [line[:7] for line in told(out)["unreadable"]] == ["005.png", "100.png", "120.png"]

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
        stream = Stream(CheckedSource(watched), device=torch.device("cpu"), replace=False, overlap=False)
        with closing(stream.batches(torch.arange(40).split(10))) as batches:
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


def stop_before_joining(encoder, request, monkeypatch):
    """All parts are written, the file is not."""
    with monkeypatch.context() as patch:
        patch.setattr(run, "join", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            embed(encoder, request)


def column(table, name):
    return torch.tensor(table.column(name).to_pylist())


def row_groups(path):
    metadata = pq.read_metadata(path)
    return [metadata.row_group(i) for i in range(metadata.num_row_groups)]


class TestFlags:
    def test_the_threshold_is_the_right_one_of_the_scores(self):
        distance = reference.KnnDistance(bank=torch.eye(2), k=1)
        scores = torch.arange(1.0, 20.0)  # n = 19: of 20 scores one is the largest with a chance of 1 / 20
        rows = {"numbers": torch.arange(2), "groups": torch.arange(2)}
        found = reference.Reference(distance=distance, scores=scores, **rows)
        for asked, threshold, reached in ((0.05, 19, 0.05), (0.06, 19, 0.05), (0.1, 18, 0.1), (0.5, 10, 0.5)):
            assert found.threshold(asked) == threshold
            assert found.reached(asked) == pytest.approx(reached)

    def test_a_rate_too_small_for_the_reference(self):
        assert reference.possible_rate(19, 0.05) == reference.possible_rate(19, None) == 0.05
        assert reference.possible_rate(12, None) == pytest.approx(1 / 13)
        assert reference.possible_rate(12, 0.077) == 0.077
        message = r"0\.05, but.*12 images.*Give --false-alarms 0\.07693 or more, a --reference of 19 images or more"
        with pytest.raises(UsageError, match=message + ", or do without a score: --reference none"):
            reference.possible_rate(12, 0.05)
        assert reference.possible_rate(12, 0.07693) == 0.07693  # what is offered is allowed

    def test_scores_of_the_reference_leave_out_its_own_picture(self, monkeypatch):
        """Four points on a circle, told by hand: the nearest other one, and of a group the nearest beyond it."""
        angle = torch.tensor([0.0, 0.1, 1.0, 1.3])
        points = torch.stack([angle.cos(), angle.sin()], dim=1)
        chord = {gap: 2 * torch.tensor(gap / 2).sin() for gap in (0.1, 0.3, 0.9, 1.0)}
        monkeypatch.setattr(reference, "fit_knn_distance", partial(reference.fit_knn_distance, k=1))
        alone = reference.fit(points, torch.arange(4), torch.arange(4))
        torch.testing.assert_close(alone.scores, torch.stack([chord[gap] for gap in (0.1, 0.1, 0.3, 0.3)]))
        paired = reference.fit(points, torch.tensor([10, 11, 14, 15]), torch.tensor([0, 0, 1, 2]))
        torch.testing.assert_close(paired.scores, torch.stack([chord[gap] for gap in (0.3, 0.3, 0.9, 1.0)]))
        found = paired.measure(points[:2], torch.tensor([0, -1]))  # the second is of no group: it finds itself
        assert found.nearest.tolist() == [14, 11]
        torch.testing.assert_close(found.near, torch.stack([chord[1.0], torch.tensor(0.0)]), rtol=1e-5, atol=1e-3)

    @pytest.mark.parametrize("count", [40, 500])
    def test_new_pictures_are_flagged_at_the_chosen_rate(self, count):
        """At most at the rate of the threshold on average over draws, and not far below it.

        The mean of sixty draws has a standard error of 0.006 at 40 images and 0.003 at 500.
        """
        rates, wrong = [], []
        for seed in range(60):
            random = torch.Generator().manual_seed(seed)
            features, new = torch.randn(count, 8, generator=random), torch.randn(500, 8, generator=random)
            fitted = reference.fit(features, torch.arange(count), torch.arange(count))
            reached = fitted.reached(0.1)
            rates.append((fitted.measure(new).score > fitted.threshold(0.1)).double().mean())
            # Images that find themselves promise more than they keep.
            everything = reference.fit_knn_distance(features, k=1)
            careless = everything(features).sort().values
            wrong.append((everything(new) > careless[int(0.9 * count)]).double().mean())
        found, error = torch.stack(rates).mean(), torch.stack(rates).std() / 60**0.5
        assert reached - 0.02 < found < reached + 2 * error
        assert torch.stack(wrong).mean() > 0.5

    def test_in_the_file_too(self, encoder, specs, tmp_path):
        own, new = specs
        strange = tmp_path / "strange.parquet"
        random = torch.Generator().manual_seed(5)
        noise = torch.randint(0, 256, (60, 3, 16, 16), dtype=torch.uint8, generator=random)
        pq.write_table(pa.table({"image": [png(image) for image in noise]}), strange)
        rates = {}
        for name, data in (("new", new), ("strange", f"parquet:{strange}")):
            request = Request(
                data=data, out=tmp_path / f"{name}-rows.parquet", reference=own, views=0, false_alarms=0.1
            )
            flags = pq.read_table(embed(encoder, request)).column("flag").to_pylist()
            rates[name] = sum(flags) / len(flags)
        # 0.0998 expected at most; 400 scores and 300 images leave a standard deviation of about 0.023.
        assert 0.02 < rates["new"] < 0.17
        assert rates["strange"] > 0.9

    def test_few_pictures_make_no_reference(self, encoder, specs, tmp_path):
        few = write_pictures(tmp_path / "few.parquet", 9, seed=3)
        with pytest.raises(ProsminError, match=r"has 9 readable images; allowed: 10 or more.*--reference none"):
            embed(encoder, Request(data=specs[1], out=tmp_path / "x.parquet", reference=few))
        with pytest.raises(UsageError, match=r"400 images of the reference, which tell rates from 0\.0025 on"):
            embed(encoder, Request(data=specs[1], out=tmp_path / "x.parquet", reference=specs[0], false_alarms=0.001))
        assert [path.name for path in tmp_path.iterdir()] == ["few.parquet"]

    def test_without_a_rate_a_small_reference_takes_what_it_tells(self, encoder, specs, tmp_path, capsys):
        few = write_pictures(tmp_path / "few.parquet", 12, seed=3)
        out = embed(encoder, Request(data=few, out=tmp_path / "x.parquet", reference=few, views=0))
        assert told(out)["false_alarms"] == pytest.approx(1 / 13)
        said = capsys.readouterr()
        assert "warning: the reference has 12 images, which tell rates of false alarms from 7.69 % on" in said.err
        assert "19 images or more tell 5 %" in said.err
        assert "which at most 7.69 % of images like the reference reach" in said.out

    def test_the_rate_that_is_said_is_the_one_of_the_threshold(self, encoder, tmp_path, capsys):
        few = write_pictures(tmp_path / "few.parquet", 16, seed=3)
        for asked, words in (
            (0.06, "which at most 5.88 %"),
            (0.1, "which at most 5.88 %"),
            (0.12, "which at most 11.8 %"),
        ):
            out = tmp_path / f"{asked}.parquet"
            embed(encoder, Request(data=few, out=out, reference=few, views=0, false_alarms=asked))
            said = capsys.readouterr()
            assert words in said.out
            assert "warning" not in said.err

    @pytest.mark.parametrize("k", [2, 40])  # the default's for so few, and one that the nearest cannot stand for
    def test_a_reference_does_not_find_itself(self, encoder, specs, tmp_path, capsys, monkeypatch, k):
        if k != 2:
            monkeypatch.setattr(reference, "fit_knn_distance", partial(reference.fit_knn_distance, k=k))
        request = Request(data=specs[0], out=tmp_path / "x.parquet", reference=specs[0], views=0, false_alarms=0.1)
        table = pq.read_table(embed(encoder, request))
        assert (
            "They are images of the reference itself, and each was compared with the others" in capsys.readouterr().out
        )
        features = load(encoder).features(coloured(400, seed=1))
        similarities, rows = nearest(features, features, k, exclude_self=True)
        expected = (2 - 2 * similarities).clamp_min(0).sqrt()
        # A distance is the root of 2 - 2 cosine: near 0 it keeps half of the digits.
        torch.testing.assert_close(column(table, "reference_distance"), expected[:, 0], rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(column(table, "ood_score"), expected[:, -1], rtol=1e-4, atol=1e-3)
        assert table.column("nearest").to_pylist() == [table.column("key")[int(row)].as_py() for row in rows[:, 0]]
        # 40 of 401 ranks; roundings may move one image over the threshold, which is the score of one.
        assert sum(table.column("flag").to_pylist()) in (39, 40, 41)

    def test_a_file_is_itself_under_every_name_of_its_folder(self, tmp_path, monkeypatch):
        for name in ("a/x.png", "a/y.png", "b/x.png"):
            (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "set" / name).write_bytes(b"")
        (tmp_path / "link").symlink_to(tmp_path / "set")
        monkeypatch.chdir(tmp_path)

        def own(data, given):
            source, belonging = CheckedSource(open_source(data)), CheckedSource(open_source(given))
            groups, found = own_groups(source, belonging, torch.arange(len(belonging)))
            assert groups.tolist() == list(range(len(belonging)))
            return found.tolist()

        assert own("folder:set", f"folder:{tmp_path}/link") == [0, 1, 2]
        assert own("folder:set/b", "folder:set") == [2]
        assert own("folder:set", "folder:set/b") == [-1, -1, 0]
        assert own("folder:set/b", "folder:set/a") == [-1]  # x.png is another x.png

    def test_overlapping_patches_of_a_photograph_are_one_picture(self):
        train, test = (CheckedSource(open_source(spec)) for spec in ("photos@train", "photos@test"))
        groups, own = own_groups(CheckedSource(open_source("photos")), train, torch.arange(len(train)))
        assert torch.equal(groups, own)
        assert len(groups.unique()) < len(groups)
        assert bool((own_groups(test, train, torch.arange(len(train)))[1] == -1).all())

    def test_scores_are_those_of_the_encoder(self, encoder, specs, tmp_path, monkeypatch):
        """The search of embed asks a GPU nothing; it finds what the one of the evaluations finds."""
        own, new = specs
        monkeypatch.setattr(reference, "_SIMILARITIES", 1000)  # the bank is searched for two images at a time
        request = Request(data=new, out=tmp_path / "x.parquet", reference=own, views=0)
        table = pq.read_table(embed(encoder, request))
        loaded = load(encoder)
        features = loaded.features(coloured(400, seed=1))
        judge = reference.fit_knn_distance(features)
        assert told(request.out)["reference"]["k"] == judge.k
        # A distance is the root of 2 - 2 cosine: near 0 it keeps half of the digits.
        expected = judge(loaded.features(coloured(300, seed=2)))
        torch.testing.assert_close(column(table, "ood_score"), expected, rtol=1e-4, atol=1e-3)
        near = reference.KnnDistance(bank=judge.bank, k=1)(loaded.features(coloured(300, seed=2)))
        torch.testing.assert_close(column(table, "reference_distance"), near, rtol=1e-4, atol=1e-3)

    def test_pictures_that_are_their_own_reference_are_opened_once(self, encoder, specs, tmp_path, monkeypatch):
        opened = []
        monkeypatch.setattr(run, "open_source", lambda spec: opened.append(spec) or open_source(spec))
        for name, given in (("same", specs[0]), ("other", specs[1])):
            embed(encoder, Request(data=specs[0], out=tmp_path / f"{name}.parquet", reference=given, views=0))
        assert opened == [specs[0], specs[0], specs[1]]

    def test_a_large_reference_is_sampled(self, monkeypatch):
        monkeypatch.setattr(reference, "MOST", 100)
        chosen = reference.choose(range(1000))
        assert len(chosen) == len(chosen.unique()) == 100
        assert bool((chosen.diff() > 0).all())
        assert 300 < chosen.float().mean() < 700


ARGUMENTS = ("--data", "photos@ood", "--reference", "photos@test", "--views", "2")  # 1200 and 840 images


def command(encoder):
    """With a relative path, so that it is the same in every folder: the file holds it."""
    return ["embed", str(encoder), "--out", "x.parquet", *ARGUMENTS]


def start(encoder, folder, *more):
    return Started([*command(encoder), *more], folder)


def start_program(encoder, folder, *launcher, more=()):
    """As a shell does: where a helper is to be at work by the time the first process is."""
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "prosmin", *command(encoder), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # what runs in the background ignores it
    )


@pytest.fixture(scope="module")
def undisturbed(encoder, tmp_path_factory):
    """The bytes of the file that one process writes in one go."""
    folder = tmp_path_factory.mktemp("undisturbed")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(command(encoder)) == 0
    torch.set_num_threads(before)
    return (folder / "x.parquet").read_bytes()


class TestContinuing:
    def test_killed_twice_it_ends_at_the_same_bytes(self, encoder, undisturbed, tmp_path, monkeypatch, capsys):
        folder = tmp_path / "x.parquet.parts"
        for goal in ("reference-00000.safetensors", "part-00000.parquet"):
            process = start(encoder, tmp_path)
            wait_until((folder / goal).exists, process)
            process.kill()
            output, _ = process.communicate()
            assert process.returncode == -signal.SIGKILL, output
        there = len(list(folder.glob("part-*")))
        assert there in (1, 2)
        monkeypatch.chdir(tmp_path)
        assert main(command(encoder)) == 0
        said = capsys.readouterr().out
        assert f"{there} of 3 parts are there" in said
        assert "reference:" not in said  # it is kept too
        assert (tmp_path / "x.parquet").read_bytes() == undisturbed
        assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]

    def test_two_processes_write_the_same_bytes(self, encoder, undisturbed, tmp_path):
        process = start_program(
            encoder, tmp_path, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
        )
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        assert "share of 1 of 2 processes" in output
        assert (tmp_path / "x.parquet").read_bytes() == undisturbed
        assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]

    def test_two_processes_without_a_launcher_write_the_same_rows(self, encoder, undisturbed, tmp_path):
        """Killed in the middle, the first takes the other along; then they go on from there."""
        folder = tmp_path / "x.parquet.parts"
        process = start_program(encoder, tmp_path, more=("--processes", "2"))
        wait_until((folder / "part-00000.parquet").exists, process)
        process.kill()
        process.communicate()
        process = start(encoder, tmp_path, "--processes", "2")
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        assert pq.read_table(tmp_path / "x.parquet").equals(pq.read_table(pa.BufferReader(undisturbed)))
        assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]

    def test_a_helper_that_is_killed_ends_the_command(self, encoder, tmp_path):
        process = start(encoder, tmp_path, "--processes", "2")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: children.read_text().split(), process)
        os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
        output, _ = process.communicate(timeout=120)  # without a look at it, it would wait for ever
        assert process.returncode == 1, output
        assert "One of 2 processes was ended by SIGKILL" in output

    def test_interrupted_it_takes_its_helper_along(self, encoder, tmp_path):
        process = start_program(encoder, tmp_path, more=("--processes", "2"))
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until((tmp_path / "x.parquet.parts" / "reference-00000.safetensors").exists, process)
        [helper] = children.read_text().split()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 130, output
        assert "interrupted" in output
        assert not Path(f"/proc/{helper}").exists()

    def test_pictures_mended_in_the_part_of_a_process_that_was_late(self, encoder, tmp_path, small_parts, monkeypatch):
        """All parts of an earlier command were there, and the second process had not yet looked at its own."""
        pictures = tmp_path / "pictures"
        pictures.mkdir()
        for i in range(300):
            Image.new("RGB", (8, 8), (i % 256, 0, 0)).save(pictures / f"{i:03d}.png")
        good = (pictures / "070.png").read_bytes()
        (pictures / "070.png").write_bytes(b"broken")
        request = Request(data=f"folder:{pictures}", out=tmp_path / "x.parquet", reference="none", views=0, max_bad=0.0)
        with monkeypatch.context() as patch:  # fills all parts, refuses to join
            patch.setattr(stream, "check_readable", lambda *_, **__: None)
            with pytest.raises(ProsminError, match=r"070.png"):
                embed(encoder, request)
        (pictures / "070.png").write_bytes(good)
        monkeypatch.setattr(run, "this_process", lambda *_: Process(0, 2, 0))  # part 1 is another's, who never comes
        assert len(pq.read_table(embed(encoder, request))) == 300

    def test_a_process_that_comes_when_all_is_done(self, tmp_path):
        """The first one has removed the folder between this one's look at the file and its lock."""
        folder = tmp_path / "x.parquet.parts"
        with parts.open_folder(folder, {}, Process(1, 2, 1), finished=lambda: True):
            pass
        assert not folder.exists()

    def test_a_process_writes_its_own_parts_and_no_others(self, encoder, specs, tmp_path, small_parts, monkeypatch):
        """The second of three processes: it waits for the first one's reference, and does not join."""
        request = Request(data=specs[1], out=tmp_path / "x.parquet", reference="none", views=0)
        monkeypatch.setattr(run, "this_process", lambda *_: Process(1, 3, 1))
        folder = tmp_path / "x.parquet.parts"
        folder.mkdir()
        monkeypatch.setattr(run, "_settings", lambda *_: {"a": 1})
        (folder / "settings.json").write_text('{"a": 1}')
        embed(encoder, request)
        assert sorted(path.name for path in folder.glob("part-*")) == ["part-00001.parquet", "part-00004.parquet"]
        assert not request.out.exists()
        monkeypatch.setattr(run, "this_process", lambda *_: Process(0, 1, 0))  # alone it does the rest
        assert len(pq.read_table(embed(encoder, request))) == 300

    def test_finished_it_does_nothing(self, encoder, specs, tmp_path, capsys, monkeypatch):
        request = Request(data=specs[1], out=tmp_path / "x.parquet", reference="none", views=0)
        before = embed(encoder, request).read_bytes()
        capsys.readouterr()
        monkeypatch.setattr(run, "fill", None)
        embed(encoder, request)
        assert "has been written already" in capsys.readouterr().out
        assert request.out.read_bytes() == before


def test_a_label_that_stands_for_none_has_no_name():
    assert [columns._name(("cat", "dog"), label) for label in (0, 1, -1, 2)] == ["cat", "dog", None, None]


def test_a_picture_is_its_own_however_its_path_is_written(tmp_path, monkeypatch):
    spec = write_pictures(tmp_path / "own.parquet", 12, seed=1)
    monkeypatch.chdir(tmp_path)
    own, same = (CheckedSource(open_source(name)) for name in (spec, "parquet:own.parquet"))
    groups, found = own_groups(same, own, torch.arange(12))
    assert torch.equal(groups, found)


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_parts_of_files_that_have_changed_are_made_again(encoder, tmp_path, small_parts, monkeypatch, kind):
    """Killed before the parts were joined; then some images are others under the same names."""

    def write(*, seed, only=()):
        if kind == "parquet":
            return write_pictures(tmp_path / "x.parquet", 150, seed=seed, labels=False)
        (tmp_path / "set").mkdir(exist_ok=True)
        for i, image in enumerate(coloured(150, seed=seed).images):
            if not only or i in only:
                (tmp_path / f"set/{i:03d}.png").write_bytes(png(image))
        return f"folder:{tmp_path}/set"

    request = Request(data=write(seed=1), out=tmp_path / "out.parquet", reference="none", views=0)
    stop_before_joining(encoder, request, monkeypatch)
    write(seed=2, only=(70, 71))
    made = []
    table = columns.table
    monkeypatch.setattr(
        columns, "table", lambda numbers, *a, **k: (made.append(int(numbers[0])), table(numbers, *a, **k))[1]
    )
    embed(encoder, request)
    assert sorted(made) == ([64] if kind == "folder" else [0, 64, 128])
    anew = Request(data=request.data, out=tmp_path / "anew.parquet", reference="none", views=0)
    assert torch.equal(
        column(pq.read_table(request.out), "features"), column(pq.read_table(embed(encoder, anew)), "features")
    )


def write_bmp(place, count, *, seed, only=()):
    """Images whose files all have one size: in a folder, or in a Parquet file where that is asked for."""
    files = []
    for image in coloured(count, seed=seed).images:
        file = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "BMP")
        files.append(file.getvalue())
    if place.suffix == ".parquet":
        table = pa.table({"image": files})
        pq.write_table(table, place, compression="none", use_dictionary=False, write_statistics=False)
        return f"parquet:{place}"
    place.mkdir(exist_ok=True)
    for i, data in enumerate(files):
        if not only or i in only:
            (place / f"{i:03d}.bmp").write_bytes(data)
    return f"folder:{place}"


def same_rows(one, other):
    return pq.read_table(one).equals(pq.read_table(other))


@pytest.mark.parametrize("name", ["set", "set.parquet"])
class TestFilesOfTheSameSize:
    """Other pixels, and nothing but the time of modification tells of it."""

    def test_parts_are_made_again(self, encoder, tmp_path, small_parts, monkeypatch, name):
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

    def test_a_reference_is_made_again_and_rows_with_it(self, encoder, specs, tmp_path, small_parts, monkeypatch, name):
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
        message = (
            rf"x\.parquet was written from other files: those of {spec} .* sizes or times of modification\. Remove"
        )
        with pytest.raises(ProsminError, match=message):
            embed(encoder, request)
        assert request.out.read_bytes() == before

    def test_a_file_of_an_earlier_prosmin_is_compared_by_sizes(self, encoder, tmp_path, capsys, name):
        request = Request(
            data=write_bmp(tmp_path / name, 30, seed=1), out=tmp_path / "x.parquet", reference="none", views=0
        )
        table = pq.read_table(embed(encoder, request))
        about = told(request.out) | {"files": files_marks([request.data])}
        del about["files_and_times"]
        pq.write_table(table.replace_schema_metadata({"prosmin": json.dumps(about)}), request.out)
        write_bmp(tmp_path / name, 30, seed=2)
        embed(encoder, request)
        assert "has been written already" in capsys.readouterr().out
        if name == "set":
            Image.new("RGB", (9, 9)).save(tmp_path / name / "003.bmp")
        else:
            write_pictures(tmp_path / name, 30, seed=2)
        with pytest.raises(ProsminError, match="was written from other files"):
            embed(encoder, request)


class TestUnderALauncher:
    """Its machines may have copies of the files, of other times: what one has made the others must not make again."""

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
        assert "has been written already" in capsys.readouterr().out
        Image.new("RGB", (9, 9)).save(tmp_path / "set" / "003.bmp")
        with pytest.raises(ProsminError, match="was written from other files"):
            embed(encoder, request)


def test_a_file_written_to_while_it_is_embedded_shows_afterwards(encoder, tmp_path, monkeypatch):
    request = Request(
        data=write_bmp(tmp_path / "set", 30, seed=1), out=tmp_path / "x.parquet", reference="none", views=0
    )
    join = run.join
    monkeypatch.setattr(run, "join", lambda *a, **k: (write_bmp(tmp_path / "set", 30, seed=2), join(*a, **k))[1])
    embed(encoder, request)
    with pytest.raises(ProsminError, match="was written from other files"):
        embed(encoder, request)


class TestRefusals:
    def test_a_finished_file_of_pictures_that_were_replaced(self, encoder, tmp_path):
        """The same names, other sizes: the rows that are there are those of other images."""
        spec = write_pictures(tmp_path / "new.parquet", 30, seed=2)
        request = Request(data=spec, out=tmp_path / "x.parquet", reference="none", views=0)
        before = embed(encoder, request).read_bytes()
        write_pictures(tmp_path / "new.parquet", 30, seed=3)
        with pytest.raises(ProsminError, match=r"x\.parquet was written from other files.*Remove it, or give another"):
            embed(encoder, request)
        assert request.out.read_bytes() == before

    def test_other_settings(self, encoder, specs, tmp_path, small_parts, monkeypatch):
        request = Request(data=specs[1], out=tmp_path / "x.parquet", reference="none", views=0)
        stop_before_joining(encoder, request, monkeypatch)
        other = Request(data=specs[0], out=request.out, reference=specs[0], views=2)
        message = r"x.parquet.parts was begun with other settings \(there -> asked for\):"
        message += r"\n  data: parquet:.*new.parquet -> parquet:.*own.parquet\n  images: 300 -> 400\n"
        with pytest.raises(ProsminError, match=message) as refusal:
            embed(encoder, other)
        assert "views: 0 -> 2" in str(refusal.value)
        embed(encoder, request)
        with pytest.raises(ProsminError, match=r"x\.parquet was written with other settings"):
            embed(encoder, other)

    def test_a_file_of_others_is_left_alone(self, encoder, specs, tmp_path):
        pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
        before = (tmp_path / "x.parquet").read_bytes()
        with pytest.raises(ProsminError, match="was not written by `prosmin embed`"):
            embed(encoder, Request(data=specs[1], out=tmp_path / "x.parquet"))
        assert (tmp_path / "x.parquet").read_bytes() == before

    def test_two_commands_do_not_write_one_file(self, encoder, specs, tmp_path, monkeypatch):
        request = Request(data=specs[1], out=tmp_path / "x.parquet", reference="none")

        def again(*_):
            with pytest.raises(ProsminError, match="Another process is writing to"):
                embed(encoder, request)
            raise ProsminError("seen")

        monkeypatch.setattr(run, "_write_rows", again)
        with pytest.raises(ProsminError, match="seen"):
            embed(encoder, request)
        assert list(tmp_path.iterdir()) == []

    def test_a_damaged_part_is_named(self, encoder, specs, tmp_path, small_parts, monkeypatch):
        request = Request(data=specs[1], out=tmp_path / "x.parquet", reference="none", views=0)
        stop_before_joining(encoder, request, monkeypatch)
        part = tmp_path / "x.parquet.parts" / "part-00002.parquet"
        part.write_bytes(part.read_bytes()[:-20])
        with pytest.raises(ProsminError, match=r"part-00002\.parquet is damaged.*Remove it"):
            embed(encoder, request)
        part.unlink()
        assert len(pq.read_table(embed(encoder, request))) == 300

    @pytest.mark.parametrize(
        ("options", "status", "words"),
        [
            (["--out", "x.csv"], 2, "a file named *.parquet"),
            (["--out", "x.parquet", "--false-alarms", "1"], 2, "a share above 0 and below 1"),
            (["--out", "x.parquet", "--reference", "none", "--false-alarms", "0.01"], 2, "leaves nothing to flag by"),
            (["--out", "x.parquet", "--views", "1"], 2, "2 or more to compare, or 0 for none"),
            (["--out", "x.parquet", "--batch", "0"], 2, "1 to 512"),
            (["--out", "x.parquet", "--batch", "513"], 2, "1 to 512"),
            (["--out", "x.parquet", "--max-bad", "2"], 2, "a share from 0 to 1"),
            (["--out", "x.parquet", "--precision", "half"], 2, "32-true, bf16-mixed"),
            (["--out", "x.parquet", "--data", "nowhere"], 2, "names no source"),
            (["--out", "x.parquet", "--reference", "folder:nowhere"], 2, "does not exist"),
            (["--out", "x.parquet", "--training.epochs", "2"], 2, "does not take"),
        ],
    )
    def test_wrong_use_is_one_sentence(self, encoder, tmp_path, monkeypatch, capsys, options, status, words):
        monkeypatch.chdir(tmp_path)
        data = [] if "--data" in options else ["--data", "photos@test"]
        assert main(["embed", str(encoder), *data, *options]) == status
        said = capsys.readouterr().err
        assert words in said
        assert said.startswith("prosmin: ")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(("reference", "file"), [("own", "reference-00000.safetensors"), ("none", ".parquet")])
    def test_files_larger_than_allowed(self, encoder, specs, tmp_path, capsys, reference, file):
        """As under `ulimit -f 8`: safetensors and pyarrow each have an error of their own for it."""
        request = ["--data", specs[1], "--reference", specs[0] if reference == "own" else "none"]
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
        try:
            assert main(["embed", str(encoder), *request, "--out", str(tmp_path / "x.parquet")]) == 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        said = capsys.readouterr().err
        assert f"{file} cannot be written: File too large. Raise the limit on the size of a file, `ulimit -f`" in said
        assert "unexpected" not in said
        assert not (tmp_path / "x.parquet").exists()

    def test_a_card_without_its_weights(self, encoder, specs, tmp_path, capsys):
        """Half a copy, and a folder of results, which has no weights on purpose."""
        card = json.loads((encoder / "encoder.json").read_text())
        (tmp_path / "half").mkdir()
        (tmp_path / "half" / "encoder.json").write_text(json.dumps(card))
        command = ["embed", str(tmp_path / "half"), "--data", specs[1], "--out", str(tmp_path / "x.parquet")]
        assert main(command) == 1
        assert capsys.readouterr().err == (
            f"prosmin: {tmp_path}/half holds no encoder.safetensors, the weights that its card encoder.json describes. "
            "Copy both again.\n"
        )
        (tmp_path / "half" / "encoder.json").write_text(json.dumps(card | {"run": "/data/run"}))
        assert main(command) == 1
        assert "half keeps results alone; its encoder is in /data/run: give that folder." in capsys.readouterr().err

    def test_training_pictures_that_are_gone(self, specs, tmp_path, capsys):
        folder = untrained(tiny_method("prosmin", data__spec="folder:gone")).save(tmp_path / "encoder")
        request = Request(data=specs[1], out=tmp_path / "x.parquet")
        with pytest.raises(UsageError, match=r"The reference is the run's own images.*gone.*--reference none"):
            embed(folder, request)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1, 0)),
        ({"SLURM_NTASKS": "6", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, (0, 1, 0)),
        (
            {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "1"},
            (5, 8, 1),
        ),
        ({"SLURM_STEP_NUM_TASKS": "6", "SLURM_PROCID": "4", "SLURM_LOCALID": "1"}, (4, 6, 1)),
        ({"PROSMIN_PROCESS": "1/3", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, (1, 3, 1)),
    ],
)
def test_a_launcher_says_which_process_this_is(environment, expected):
    found = this_process(environment, Helpers())
    assert (found.rank, found.world, found.local) == expected
    by_launcher = {"TORCHELASTIC_RUN_ID", "SLURM_STEP_NUM_TASKS"} & environment.keys()
    assert found.launched == (bool(by_launcher) and "PROSMIN_PROCESS" not in environment)


class Again(Recorded):
    """Stands in for a recording where there is no GPU: the same work on what is held."""

    def __call__(self):
        return self._function()


def made_of(folder, work, spec, *, size):
    """What `work` makes of the batches of a set, with an encoder that is told how."""
    encoder = load(folder)
    run = recorded.RecordedWork(lambda batch: work(encoder, batch), encoder.device, size)
    batches = picture_batches(load_pictures(spec), size=size, device=encoder.device)
    return [(run(batch), work(encoder, batch)) for batch in batches]


@pytest.mark.parametrize("views", [0, 2])
def test_recorded_work_is_the_same(encoder, specs, monkeypatch, views):
    """Batches of 80 out of 300 images: three are held, the last one of 60 goes the plain way."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(recorded, "Recorded", Again)
    for got, expected in made_of(encoder, lambda e, batch: e.summarise(batch, views=views), specs[1], size=80):
        for one, other in zip(got, expected, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other)
    for got, expected in made_of(encoder, lambda e, batch: e.batch_features(batch), specs[1], size=80):
        torch.testing.assert_close(got, expected)


def test_recorded_results_outlive_the_next_batch(encoder, specs, monkeypatch):
    if not torch.cuda.is_available():
        monkeypatch.setattr(recorded, "Recorded", Again)
    found = made_of(encoder, lambda e, batch: e.batch_features(batch), specs[1], size=100)
    assert not torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][0], found[0][1])


def test_a_damaged_reference_is_named(tmp_path):
    path = tmp_path / "reference.safetensors"
    path.write_bytes(b"cut")
    with pytest.raises(ProsminError, match=r"reference\.safetensors is damaged: .* Remove it; the same command"):
        reference.read_reference(path)
