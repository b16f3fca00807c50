"""The embedded photographs: counts, no test pixel in training, no shortcut, the same everywhere."""

import pytest
import torch

from prosmin.data.image_sets import load_pictures
from prosmin.data.sources import photos
from prosmin.errors import ProsminError, UsageError

PNG_HASH = "bafaf1c31f69ee3ead4681fcb88186e8"


@pytest.fixture(scope="module")
def splits():
    return {split: photos.open_photos(split) for split in photos.SPLITS}


def corners(source):
    """Photograph, y and x of every patch, from its key."""
    for key in source.keys:
        name, _, place = key.split("/")
        yield name, int(place[1:4]), int(place[5:8])


def test_counts_and_classes(splits):
    assert [len(splits[s]) for s in photos.SPLITS] == [14 * 240, 14 * 60, 4 * 300]
    assert splits["train"].labels.bincount().tolist() == [240] * 14
    assert splits["test"].labels.bincount().tolist() == [60] * 14
    assert splits["train"].classes == splits["test"].classes == tuple(sorted(splits["train"].classes))
    assert splits["ood"].classes == ("coins", "hubble_deep_field", "page", "retina")
    assert not set(splits["ood"].classes) & set(splits["train"].classes)
    assert splits["train"].images.shape[1:] == (3, 32, 32)


def test_no_test_pixel_in_training(splits):
    used = {}
    for split in ("train", "test"):
        for name, y, x in corners(splits[split]):
            mask = used.setdefault((name, split), torch.zeros(512, 1024, dtype=torch.bool))
            mask[y : y + 32, x : x + 32] = True
    for name in splits["train"].classes:
        assert not (used[name, "train"] & used[name, "test"]).any()
        assert used[name, "train"].sum() > 2 * used[name, "test"].sum()


def test_patches_are_where_their_keys_say_and_distinct(splits):
    files = photos.photograph_files()
    loaded = {name: photos.load_photograph(files[name]) for name in splits["test"].classes}
    for i, (name, y, x) in enumerate(corners(splits["test"])):
        assert torch.equal(splits["test"].read(i), loaded[name][:, y : y + 32, x : x + 32])
    for source in splits.values():
        assert len(set(source.keys)) == len(source)


def test_shorter_side_and_flat_patches(splits):
    for path in photos.photograph_files().values():
        assert min(photos.load_photograph(path).shape[1:]) <= 400
    for source in splits.values():
        grey = source.images.double().mean(1).flatten(1)
        assert grey.std(1, correction=0).min() >= photos.FLAT


def test_flat_patches_are_those_of_low_deviation():
    generator = torch.Generator().manual_seed(0)
    photograph = torch.randint(0, 30, (3, 40, 44), generator=generator).to(torch.uint8)
    photograph[:, :, 20:] = 7  # patches to the right are nearly flat
    windows = photograph.double().mean(0).unfold(0, 32, 1).unfold(1, 32, 1).flatten(2)
    expected = windows.std(-1, correction=0) >= photos.FLAT
    assert torch.equal(photos.visible(photograph), expected)
    assert expected.any()
    assert not expected.all()


def test_same_patches_on_every_machine(splits):
    # A change of this means that figures on `photos` can no longer be compared with earlier ones. Photographs
    # stored without loss only: a JPEG decoder may round differently in another version.
    files = photos.photograph_files()
    lossless = torch.tensor([files[name].suffix == ".png" for name in splits["train"].classes])
    pictures = load_pictures("photos")
    assert pictures.subset(lossless[pictures.labels]).content_hash() == PNG_HASH
    assert torch.equal(pictures.images, splits["train"].images)


def test_held_out_photographs_are_processed_like_the_others(splits):
    """Grey and colour, small and large photographs are in both groups, so only their content differs."""
    files = photos.photograph_files()
    for held_out in (True, False):
        names = [name for name in files if (name in photos.HELD_OUT) == held_out]
        pictures = [photos.load_photograph(files[name]) for name in names]
        grey = [bool((p[0] == p[1]).all() and (p[1] == p[2]).all()) for p in pictures]
        small = [min(p.shape[1:]) < 400 for p in pictures]
        assert any(grey)
        assert not all(grey)
        assert any(small)
        assert not all(small)


def test_wrong_split_names_those_that_exist():
    with pytest.raises(UsageError, match="photos@train, photos@test, photos@ood"):
        photos.open_photos("validation")


@pytest.mark.parametrize(("package", "install"), [("skimage", "scikit-image"), ("sklearn", "scikit-learn")])
def test_missing_package_is_named(monkeypatch, package, install):
    find = photos.importlib.util.find_spec
    monkeypatch.setattr(photos.importlib.util, "find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(ProsminError, match=f"pip install --force-reinstall {install}"):
        photos.open_photos()


def test_missing_file_is_named(monkeypatch):
    monkeypatch.setattr(photos, "SCIKIT_IMAGE", ("no_such_photograph.png",))
    with pytest.raises(ProsminError, match=r"no_such_photograph\.png.*scikit-image"):
        photos.open_photos()
