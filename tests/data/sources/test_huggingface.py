"""Hugging Face data sets: splits, labels, and sets that cannot be used."""

import re
import sys
from types import SimpleNamespace

import pytest

from numbered_images import encoded, reds
from prosmin.data.image_sets import load_pictures
from prosmin.data.sources import open_source, split_spec
from prosmin.errors import ProsminError, UsageError


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ProsminError, match=re.escape("pip install 'prosmin[datasets]'")):
        open_source("hf:cifar10")


def test_other_split_is_one_that_the_hub_has(monkeypatch):
    asked = []

    def names(*name):
        asked.append(name)
        return ["train", "validation"]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(get_dataset_split_names=names))
    assert split_spec("hf:owner/name:small@train", "test") == "hf:owner/name:small@validation"
    assert asked == [("owner/name", "small")]
    with pytest.raises(UsageError, match=r"'ood'.*: train, validation"):
        split_spec("hf:owner/name", "ood")
    with pytest.raises(UsageError, match="'hf:'"):
        split_spec("hf:", "test")


@pytest.mark.filterwarnings("ignore")  # raised by the package itself
def test_saved_data_sets(tmp_path, monkeypatch):
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
    with pytest.raises(UsageError, match=r"'ood'.*: train, test"):
        open_source(f"hf:{tmp_path}/both@ood")
    with pytest.raises(UsageError, match="'test'"):
        open_source(f"hf:{tmp_path}/one@test")
    with pytest.raises(UsageError, match="'test'"):  # evaluate then tests on a tenth of it
        split_spec(f"hf:{tmp_path}/one", "test")
    for split, numbers in (("train", [7]), ("validation", [8, 9])):
        (tmp_path / "files").mkdir(exist_ok=True)
        rows(numbers).to_parquet(str(tmp_path / f"files/{split}-0.parquet"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    assert reds(load_pictures(f"hf:{tmp_path}/files")) == [7]
    assert reds(load_pictures(split_spec(f"hf:{tmp_path}/files", "test"))) == [8, 9]
    with pytest.raises(ProsminError, match=r"hf:.*/missing"):
        open_source(f"hf:{tmp_path}/missing")
    datasets.Dataset.from_dict({"text": ["x"]}).save_to_disk(str(tmp_path / "text"))
    with pytest.raises(ProsminError, match=r"Image.*: text"):
        open_source(f"hf:{tmp_path}/text")


def saved(path, labels: list[int | None]) -> str:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    content = {"image": [{"bytes": encoded(i), "path": None} for i in range(len(labels))], "label": labels}
    datasets.Dataset.from_dict(content, features=features).save_to_disk(str(path))
    return f"hf:{path}"


@pytest.mark.parametrize("labels", [[-1, -1], [None, None], [None, -1]])
def test_a_split_published_without_labels_has_none(tmp_path, labels):
    source = open_source(saved(tmp_path / "hidden", labels))
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
def test_labels_that_some_rows_lack(tmp_path, labels, what):
    with pytest.raises(ProsminError, match=rf"'label' of the data hf:.* {what}"):
        open_source(saved(tmp_path / "some", labels))
