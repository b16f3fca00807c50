"""ImageNet and its relatives as published, in small: the same classes everywhere, under the same names."""

import pytest
from PIL import Image

from prosmin.data.sources import open_source, split_spec

WNIDS = ("n01440764", "n01443537", "n01484850", "n02012849", "n03126707")
SOME = (WNIDS[4], WNIDS[1])


def write(path, number: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 4), (number, 0, 0)).save(path, "JPEG")


@pytest.fixture
def trees(tmp_path):
    """ImageNet in torchvision's layout with its unlabelled test images, ImageNet-O and -C."""
    for i, wnid in enumerate(WNIDS):
        write(tmp_path / f"imagenet/train/{wnid}/{wnid}_1.JPEG", i)
        write(tmp_path / f"imagenet/val/{wnid}/ILSVRC2012_val_0000000{i}.JPEG", i)
        write(tmp_path / f"imagenet-c/fog/3/{wnid}/ILSVRC2012_val_0000000{i}.JPEG", i)
    write(tmp_path / "imagenet/test/ILSVRC2012_test_00000001.JPEG")
    for wnid in SOME:
        write(tmp_path / f"imagenet-o/{wnid}/n00005787_13.JPEG")
    (tmp_path / "imagenet-o/README.txt").write_text("200 classes")
    return tmp_path


def test_imagenet_is_tested_on_val(trees):
    spec = f"folder:{trees}/imagenet"
    assert split_spec(spec, "test") == f"{spec}@val"
    train, test = open_source(split_spec(spec, "train")), open_source(split_spec(spec, "test"))
    assert train.classes == test.classes == WNIDS
    assert test.labels.tolist() == [0, 1, 2, 3, 4]


def test_corrupted_pictures_have_the_same_classes(trees):
    assert open_source(f"folder:{trees}/imagenet-c/fog/3").classes == WNIDS
    assert open_source(f"folder:{trees}/imagenet-c/fog@3").labels.tolist() == [0, 1, 2, 3, 4]


def test_imagenet_o_has_some_of_the_classes_by_their_names(trees):
    """Which is how the ood protocol knows that it is to be held against the images of these."""
    own = open_source(f"folder:{trees}/imagenet-o").classes
    assert own == (WNIDS[1], WNIDS[4])
    assert set(own) < set(open_source(f"folder:{trees}/imagenet@val").classes)
