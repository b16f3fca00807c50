"""`prosmin search`: exact neighbours in the files of embed and inspect, by image or by key."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from coloured import coloured
from embedding import encoded
from prosmin.cli import main
from prosmin.embed.rows import compression, schema
from prosmin.encoder import load, stored, untrained
from prosmin.encoder.stored import open_stored
from prosmin.errors import MissingFileError, ProsminError, UsageError
from prosmin.search import search
from tiny_methods import tiny_method


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An encoder, 30 image files, and images.parquet with their features."""
    root = tmp_path_factory.mktemp("search")
    encoder = load(untrained(tiny_method("prosmin", views__global_size="16")).save(root / "encoder"), device="cpu")
    pictures = coloured(30, seed=3)
    for i, image in enumerate(pictures.images):
        (root / f"{i:02d}.png").write_bytes(encoded(image))
    keys = [f"{i:02d}" for i in range(30)]
    write(root / "images.parquet", encoder.features(pictures).numpy(), keys, encoder=encoder.card["hash"])
    return root


def write(path, features, keys, *, encoder="a hash", run="encoder"):
    """A file as `prosmin embed` writes it, in row groups of 8, with the columns that a search reads."""
    about = {"run": str(path.parent / run), "settings": {"encoder": encoder}}
    full = schema(features.shape[1], about)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(features.reshape(-1)), features.shape[1])
    found = pa.schema([full.field("key"), full.field("features")], metadata=full.metadata)
    table = pa.table([pa.array(keys), vectors], schema=found)
    pq.write_table(table, path, compression=compression(found), row_group_size=8)
    return path


def by_hand(features, query):
    """All rows, nearest first, and their distances on the unit sphere, in float64."""
    unit = features.astype(np.float64) / np.linalg.norm(features.astype(np.float64), axis=1, keepdims=True)
    distances = np.linalg.norm(unit - query / np.linalg.norm(query), axis=1)
    order = np.argsort(distances)
    return order, distances[order]


@pytest.mark.parametrize("rows", [5, 8, 1000])
def test_the_nearest_rows_are_exact_however_the_file_is_read(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(stored, "_ROWS", rows)
    random = np.random.default_rng(0)
    features = random.standard_normal((50, 6), dtype=np.float32) * random.uniform(0.1, 9, (50, 1)).astype(np.float32)
    query = random.standard_normal(6, dtype=np.float32)
    file = open_stored(write(tmp_path / "some.parquet", features, [str(i) for i in range(50)]))
    matches = file.search(torch.from_numpy(query)[None], 20)
    order, distances = by_hand(features, query)
    assert [match.key for match in matches] == [str(i) for i in order[:20]]
    # The square of a distance has float32's error of the cosine, about 1e-7; none of these is below 0.1.
    np.testing.assert_allclose([match.distance for match in matches], distances[:20], atol=1e-5)


def test_by_key_the_image_itself_is_left_out_and_no_encoder_is_needed(tmp_path):
    features = np.random.default_rng(1).standard_normal((50, 6), dtype=np.float32)
    write(tmp_path / "images.parquet", features, [f"a/{i}" for i in range(50)], run="nowhere")
    matches = search("a/43", tmp_path, 5)
    order, _ = by_hand(features, features[43])
    assert [match.key for match in matches] == [f"a/{i}" for i in order[1:6]]


def test_copies_are_found_and_a_small_file_gives_all_its_images(tmp_path):
    features = np.ones((20, 4), dtype=np.float32)
    write(tmp_path / "images.parquet", features, [str(i) for i in range(20)])
    matches = search("7", tmp_path, 100)
    assert sorted(int(match.key) for match in matches) == [i for i in range(20) if i != 7]
    assert max(match.distance for match in matches) < 1e-3  # the root of float32's error of a cosine


@pytest.mark.parametrize("count", [0, 1])
def test_a_file_without_other_images_gives_none(tmp_path, count):
    features = np.ones((count, 4), dtype=np.float32)
    file = open_stored(write(tmp_path / "few.parquet", features, ["only"][:count]))
    assert file.search(torch.ones(1, 4), 5, leave_out=file.row("only")) == []


def test_an_image_file_is_found_in_the_file_of_its_encoder(folder):
    for number in ("04", "29"):
        first, second, *_ = search(str(folder / f"{number}.png"), folder)
        assert first.key == number
        assert first.distance < 1e-3 < second.distance
    encoder = load(folder / "encoder", device="cpu")
    assert encoder.search(folder / "04.png", 3, within=folder) == search(str(folder / "04.png"), folder, 3)
    assert len(encoder.search(coloured(1).images[0], within=folder / "images.parquet")) == 24


def test_a_moved_encoder_is_given_by_hand_and_another_one_is_refused(folder, tmp_path):
    moved = load(folder / "encoder").save(tmp_path / "moved")
    features = np.random.default_rng(2).standard_normal((9, 192), dtype=np.float32)
    keys = [str(i) for i in range(9)]
    lost = write(tmp_path / "lost.parquet", features, keys, encoder=load(moved).card["hash"], run="lost")
    with pytest.raises(ProsminError, match=r"lost.*--encoder"):
        search(str(folder / "04.png"), lost)
    other = write(tmp_path / "other.parquet", features, keys, encoder="another hash", run="moved")
    with pytest.raises(ProsminError, match="another hash") as refused:
        search(str(folder / "04.png"), other)
    assert load(moved).card["hash"] in str(refused.value)
    assert search(str(folder / "04.png"), folder, 2, encoder=moved) == search(str(folder / "04.png"), folder, 2)


def test_what_cannot_be_searched_is_refused(folder, tmp_path):
    with pytest.raises(MissingFileError, match="nowhere"):
        search("04", tmp_path / "nowhere")
    with pytest.raises(MissingFileError, match=r"images\.parquet"):
        search("04", tmp_path)  # no inspection
    with pytest.raises(MissingFileError, match="31"):
        search("31", folder)  # neither a file nor a key
    with pytest.raises(UsageError, match="0"):
        search("04", folder, 0)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "others.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    for name in ("others.parquet", "broken.parquet"):
        with pytest.raises(ProsminError, match=name):
            search("04", tmp_path / name)
    with pytest.raises(ProsminError, match="2 images"):
        load(folder / "encoder").search([folder / "04.png"] * 2, within=folder)


def test_the_command_prints_a_table_or_json(folder, capsys):
    expected = search("04", folder, 3)
    assert main(["search", "04", "--in", str(folder), "-k", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[1:]] == [match.key for match in expected]
    assert main(["search", "04", "--in", str(folder / "images.parquet"), "-k", "3", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [match._asdict() for match in expected]
    assert main(["search", "31", "--in", str(folder)]) == 2


def test_a_hostile_name_does_not_reach_the_terminal(tmp_path, capsys):
    features = np.random.default_rng(3).standard_normal((3, 4), dtype=np.float32)
    write(tmp_path / "images.parquet", features, ["own", "\x1b[2J.png", "two\nlines"])
    assert main(["search", "own", "--in", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert len(out.splitlines()) == 3
