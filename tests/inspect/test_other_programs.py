"""images.parquet opens in other programs without glue: each is asked what its user would ask."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inspecting import numbered, write_images
from prosmin.commands.explore import atlas_arguments
from prosmin.inspect import inspect

COUNT = 30


@pytest.fixture(scope="module")
def file(encoder, tmp_path_factory):
    """images.parquet of a folder of 30 images."""
    folder = write_images(tmp_path_factory.mktemp("others") / "images", numbered(COUNT))
    inspect(folder, folder.parent / "out", encoder=encoder)
    return folder.parent / "out/images.parquet"


@pytest.fixture(scope="module")
def table(file):
    return pq.read_table(file)


def test_the_columns_have_the_types_that_programs_look_for(table):
    types = {field.name: field.type for field in table.schema}
    assert pa.types.is_fixed_size_list(types["features"])
    assert types["features"].value_type == pa.float32()
    assert [name for name, kind in types.items() if pa.types.is_fixed_size_list(kind)] == ["features"]
    assert types["image"] == pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    assert types["neighbors"] == pa.struct([("ids", pa.list_(pa.int64())), ("distances", pa.list_(pa.float32()))])
    for row, found in enumerate(table["neighbors"].to_pylist()):
        assert len(found["ids"]) == len(found["distances"]) == 24
        assert row not in found["ids"]
        assert set(found["ids"]) <= set(range(COUNT))
        assert found["distances"] == sorted(found["distances"])


def test_pandas(file):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(file)
    assert frame["key"].tolist() == numbered(COUNT)
    assert np.stack(frame["features"]).shape == (COUNT, len(frame["features"][0]))
    assert frame["image"][0]["bytes"].startswith(b"\xff\xd8")  # JPEG
    assert len(frame["neighbors"][0]["ids"]) == 24


def test_datasets_shows_images(file, tmp_path):
    datasets = pytest.importorskip("datasets")
    found = datasets.Dataset.from_parquet(str(file), cache_dir=str(tmp_path))
    assert isinstance(found.features["image"], datasets.Image)
    assert found.features["features"].length == len(found[0]["features"])
    assert found[3]["image"].size == (24, 24)
    assert found[3]["key"] == "003.png"


def test_duckdb_queries_the_file_and_compares_features(file, table):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as database:
        rows = database.execute(
            "SELECT b.key FROM read_parquet($file) a, read_parquet($file) b WHERE a.key = '005.png' AND b.key <> a.key "
            "ORDER BY list_cosine_distance(a.features, b.features) LIMIT 3",
            {"file": str(file)},
        ).fetchall()
        first = database.execute("SELECT neighbors.ids[1] FROM read_parquet($file) LIMIT 1", {"file": str(file)})
        assert first.fetchone() == (table["neighbors"][0].as_py()["ids"][0],)
    assert [key for (key,) in rows] == nearest_by_hand(table, 5)[:3]


def test_polars(file, table):
    polars = pytest.importorskip("polars", reason="polars is not installed: 180 MB, it is no part of the test extra")
    frame = polars.read_parquet(file)
    assert frame["key"].to_list() == numbered(COUNT)
    assert frame["features"].dtype == polars.Array(polars.Float32, table.schema.field("features").type.list_size)
    assert frame["neighbors"].struct.field("ids").list.len().to_list() == [24] * COUNT


def test_lancedb_finds_the_vectors_without_being_told_the_column(file, table, tmp_path):
    lancedb = pytest.importorskip("lancedb")
    images = lancedb.connect(tmp_path).create_table("images", table)
    query = table["features"][5].as_py()
    found = images.search(query).distance_type("cosine").limit(4).select(["key", "_distance"]).to_list()
    assert [row["key"] for row in found] == ["005.png", *nearest_by_hand(table, 5)[:3]]


def test_embedding_atlas_shows_map_neighbours_and_thumbnails(file, tmp_path):
    pytest.importorskip(
        "embedding_atlas", reason="embedding-atlas is not installed: its dependencies need an older python-dateutil"
    )
    command = [sys.executable, "-m", "embedding_atlas.cli", *atlas_arguments(file)]
    done = subprocess.run([*command, "--export-application", str(tmp_path / "page")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = json.loads((tmp_path / "page/data/metadata.json").read_text())["props"]["data"]
    assert shown["projection"] == {"x": "x", "y": "y"}
    assert (shown["neighbors"], shown["image"], shown["text"]) == ("neighbors", "image", "key")


def nearest_by_hand(table, row):
    """The keys of the other images by their cosines with one, in float64."""
    features = np.array(table["features"].to_pylist())
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    order = np.argsort(-features @ features[row])
    return [table["key"][int(i)].as_py() for i in order if i != row]
