"""Parquet files: columns of images and labels, splits, and files that cannot be used."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from numbered_images import encoded, reds, write
from prosmin.data.image_sets import load_pictures
from prosmin.data.sources import open_source, split_spec
from prosmin.errors import ProsminError, UsageError


def table(path, columns, **options) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns, **options), path, row_group_size=3)
    return f"parquet:{path}"


def test_images_labels_and_names(tmp_path):
    columns = {
        "image": [encoded(i) for i in range(8)],
        "label": [2, 0, 2, 0, 2, 0, 2, 0],
        "label_name": ["c", "a"] * 4,
    }
    pictures = load_pictures(table(tmp_path / "x.parquet", columns))
    assert reds(pictures) == list(range(8))
    assert pictures.labels.tolist() == columns["label"]
    assert pictures.classes == ("a", "1", "c")
    assert pictures.keys[3] == "x.parquet[3]"


def test_labels_may_be_missing_or_names(tmp_path):
    images = [encoded(i) for i in range(3)]
    assert open_source(table(tmp_path / "x.parquet", {"image": images})).labels is None
    nothing = pa.array([None, None, None], pa.int32())
    assert open_source(table(tmp_path / "x.parquet", {"image": images, "label": nothing})).labels is None
    named = open_source(table(tmp_path / "x.parquet", {"image": images, "label": ["dog", "cat", "dog"]}))
    assert named.classes == ("cat", "dog")
    assert named.labels.tolist() == [1, 0, 1]


def test_labels_that_are_true_or_false(tmp_path):
    columns = {"image": [encoded(i) for i in range(3)], "label": [True, False, True]}
    source = open_source(table(tmp_path / "x.parquet", columns))
    assert (source.labels.dtype, source.labels.tolist()) == (torch.int64, [1, 0, 1])
    assert source.classes == ("0", "1")


def test_files_may_differ_in_the_width_of_their_labels(tmp_path):
    told = {"huggingface": json.dumps({"info": {"features": {"label": {"names": ["cat", "dog"]}}}})}
    for name, kind in (("a", pa.int32()), ("b", pa.int64())):
        schema = pa.schema([("image", pa.binary()), ("label", kind)], metadata=told)
        table(tmp_path / f"{name}.parquet", {"image": [encoded()] * 2, "label": [1, 0]}, schema=schema)
    source = open_source(f"parquet:{tmp_path}")
    assert (source.labels.dtype, source.labels.tolist()) == (torch.int64, [1, 0, 1, 0])
    assert source.classes == ("cat", "dog")


def test_names_of_labels_may_all_be_missing_but_not_some(tmp_path):
    columns = {"image": [b""] * 3, "label": [0, 1, 1]}
    nothing = pa.array([None] * 3, pa.string())
    source = open_source(table(tmp_path / "x.parquet", columns | {"label_name": nothing}))
    assert source.classes == ("0", "1")
    with pytest.raises(ProsminError, match=r"'label_name'.*\b1 rows of 3"):
        open_source(table(tmp_path / "x.parquet", columns | {"label_name": ["a", None, "b"]}))


def test_numbers_too_large_for_classes(tmp_path):
    columns = {"image": [b""] * 2, "label": [3, 1609459]}
    with pytest.raises(ProsminError, match=r"'label'.*1609459.*1,000,000"):
        open_source(table(tmp_path / "x.parquet", columns))


def test_at_sign_in_a_path_below_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for split in ("train", "test"):
        table(tmp_path / "my@pics" / f"{split}.parquet", {"image": [b""]})
    assert split_spec("parquet:~/my@pics", "test") == "parquet:~/my@pics@test"


def test_hugging_face_struct_and_class_names(tmp_path):
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
    spec = table(tmp_path / "x.parquet", {"image": images, "label": [1, 0, 1, 1]}, schema=schema)
    pictures = load_pictures(spec, max_bad=0.5)
    assert reds(pictures) == [0, 1]
    assert pictures.classes == ("zero", "one", "two")
    assert [line.partition(":")[0] for line in pictures.bad] == ["x.parquet[2]", "x.parquet[3]"]


@pytest.mark.parametrize(
    ("kinds", "labels", "classes"),
    [
        ({"img": None, "fine": ["x", "y"]}, [1, 0], ("x", "y")),
        ({"img": None, "fine": ["x", "y"], "coarse": ["z"]}, None, ()),  # two candidates
        ({"img": None, "label": None, "fine": ["x", "y"]}, [1, 0], ("0", "1")),  # the names belong to another column
    ],
)
def test_published_files_have_other_names(tmp_path, kinds, labels, classes):
    columns = {"img": [encoded(4), encoded(5)]} | {name: [1, 0] for name in kinds if name != "img"}
    features = {name: {"names": names, "_type": "ClassLabel"} if names else {} for name, names in kinds.items()}
    told = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table(columns).replace_schema_metadata(told)
    pq.write_table(table, tmp_path / "x.parquet")
    pictures = load_pictures(f"parquet:{tmp_path}/x.parquet")
    assert reds(pictures) == [4, 5]
    assert (None if pictures.labels is None else pictures.labels.tolist()) == labels
    assert pictures.classes == classes


def test_folder_of_files_and_splits(tmp_path):
    for name, numbers in (("train-0", [0, 1]), ("train-1", [2]), ("test-0", [3])):
        table(tmp_path / f"{name}.parquet", {"image": [encoded(i) for i in numbers]})
    assert reds(load_pictures(f"parquet:{tmp_path}")) == [0, 1, 2]
    assert reds(load_pictures(f"parquet:{tmp_path}@test")) == [3]
    assert split_spec(f"parquet:{tmp_path}", "test") == f"parquet:{tmp_path}@test"
    assert split_spec(f"parquet:{tmp_path}/train-0.parquet", "test") == f"parquet:{tmp_path}/test-0.parquet"
    with pytest.raises(UsageError, match=r"'ood'.*test, train"):
        open_source(f"parquet:{tmp_path}@ood")
    with pytest.raises(UsageError, match="'test'"):
        split_spec(f"parquet:{tmp_path}/train-1.parquet", "test")


@pytest.mark.parametrize(
    ("train", "test"),
    [("default/train/0", "default/test/0"), ("training-0", "testing-0"), ("a/train/train_1", "a/train/test_1")],
)
def test_a_folder_of_several_splits_means_its_train(tmp_path, train, test):
    """The hub writes one folder per split; the name of a file counts more than its folder."""
    table(tmp_path / f"{train}.parquet", {"image": [encoded(1), encoded(2)]})
    table(tmp_path / f"{test}.parquet", {"image": [encoded(3)]})
    assert reds(load_pictures(f"parquet:{tmp_path}")) == [1, 2]
    assert reds(load_pictures(f"parquet:{tmp_path}@train")) == [1, 2]
    assert reds(load_pictures(split_spec(f"parquet:{tmp_path}", "test"))) == [3]


def test_features_of_any_kind_in_the_metadata(tmp_path):
    features = {"label": {"names": ["cat", "dog"]}, "tags": [{"dtype": "string"}], "image": {"_type": "Image"}}
    told = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"image": [encoded(1), encoded(2)], "label": [0, 1]}).replace_schema_metadata(told)
    pq.write_table(table, tmp_path / "x.parquet")
    assert open_source(f"parquet:{tmp_path}/x.parquet").classes == ("cat", "dog")


def test_unusable_files_are_named(tmp_path):
    write(tmp_path / "y.parquet", b"not parquet at all")
    with pytest.raises(ProsminError, match=r"y\.parquet"):
        open_source(f"parquet:{tmp_path}/y.parquet")
    with pytest.raises(UsageError, match=r"z\.parquet"):
        open_source(f"parquet:{tmp_path}/z.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ProsminError, match=r"\*\.parquet.*/empty"):
        open_source(f"parquet:{tmp_path}/empty")
    with pytest.raises(ProsminError, match=r"no images in parquet:.*x\.parquet"):
        load_pictures(table(tmp_path / "x.parquet", {"image": pa.array([], pa.binary())}))


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"picture": ["a.png"], "label": [0]}, "no column 'image'.*: picture, label"),
        ({"a": [b""], "b": [b""]}, "several others.*: a, b"),
        ({"image": ["a.jpg"]}, "'image'.* string"),
        ({"image": [b"", b""], "label": [0, None]}, "'label'.*1 rows of 2"),
        ({"image": [b""], "label": [0.5]}, "'label'.* double"),
        ({"image": [b""] * 3, "label": [0, -1, -2]}, "'label'.*2 rows of 3.* -1"),
    ],
)
def test_unusable_columns_are_named(tmp_path, columns, named):
    with pytest.raises(ProsminError, match=named):
        open_source(table(tmp_path / "x.parquet", columns))
