"""Which SPEC names which source, and the errors for one that names none."""

import re

import pytest

from numbered_images import write
from prosmin.data.sources import open_source, place_of, split_spec
from prosmin.errors import UsageError


@pytest.mark.parametrize("spec", ["", "photographs", "folder", "ftp:x", "photos:train", "PHOTOS"])
def test_unknown_spec_lists_the_allowed_forms(spec):
    with pytest.raises(UsageError, match=r"folder:PATH.*parquet:PATH.*torchvision:NAME@ROOT.*hf:NAME"):
        open_source(spec)


@pytest.mark.parametrize(
    ("spec", "suggestion"),
    [
        ("fodler:a/b@c", "folder:a/b@c"),
        ("Parquet:x", "parquet:x"),
        ("torchvison:CIFAR10@data", "torchvision:CIFAR10@data"),
        ("photo@test", "photos@test"),
        ("photos:train", "photos@train"),
        ("PHOTOS", "photos"),
    ],
)
def test_a_misspelt_kind_is_corrected(spec, suggestion):
    with pytest.raises(UsageError, match=re.escape(f"{spec!r}") + ".*" + re.escape(f" {suggestion}?")):
        open_source(spec)


@pytest.mark.parametrize("spec", ["", "ftp:x", "folder", "C:\\images"])
def test_no_suggestion_for_a_spec_unlike_all_others(spec):
    with pytest.raises(UsageError, match=re.escape(repr(spec))) as caught:
        open_source(spec)
    assert "?" not in str(caught.value)


def test_a_path_alone_is_suggested_with_its_kind(tmp_path):
    with pytest.raises(UsageError, match=re.escape(f" folder:{tmp_path}?")):
        open_source(str(tmp_path))
    write(tmp_path / "x.parquet", b"")
    with pytest.raises(UsageError, match=re.escape(f" parquet:{tmp_path / 'x.parquet'}?")):
        open_source(str(tmp_path / "x.parquet"))


def test_splits_of_photos():
    assert split_spec("photos", "test") == "photos@test"
    assert split_spec("photos@train", "ood") == "photos@ood"
    with pytest.raises(UsageError, match="train, test, ood"):
        split_spec("photos", "val")


def test_one_place_has_one_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "set")
    same = (
        ("folder:set", f"folder:{tmp_path}/set", "folder:./link"),
        ("hf:set", "hf:./set@train", f"hf:{tmp_path}/set@train"),
        ("torchvision:cifar10@set", "torchvision:cifar10@./set@train"),
        ("photos@train", "photos@train"),
    )
    names = [{place_of(spec) for spec in specs} for specs in same]
    assert [len(each) for each in names] == [1, 1, 1, 1]
    assert len(set.union(*names)) == 4
    assert place_of("hf:set@test") != place_of("hf:set")
    assert place_of("torchvision:cifar10@set@test") != place_of("torchvision:cifar10@set")
