"""ImageNet and its relatives as published, in small: the same classes everywhere, a mask where a set has some."""

import pytest
import torch
from PIL import Image

from prosmin.data.classes import class_numbers, relabelled
from prosmin.data.pictures import load_pictures
from prosmin.data.sources import open_source, split_spec
from prosmin.errors import ProsminError
from prosmin.evaluation.masks import class_mask, masked_softmax

WNIDS = ("n01440764", "n01443537", "n01484850", "n02012849", "n03126707")
SOME = (WNIDS[4], WNIDS[1])


def write(path, number: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 4), (number, 0, 0)).save(path, "JPEG")


@pytest.fixture
def trees(tmp_path):
    """ImageNet in torchvision's layout with its unlabelled test pictures, ImageNet-O, -A and -C."""
    for i, wnid in enumerate(WNIDS):
        write(tmp_path / f"imagenet/train/{wnid}/{wnid}_1.JPEG", i)
        write(tmp_path / f"imagenet/val/{wnid}/ILSVRC2012_val_0000000{i}.JPEG", i)
        write(tmp_path / f"imagenet-c/fog/3/{wnid}/ILSVRC2012_val_0000000{i}.JPEG", i)
    write(tmp_path / "imagenet/test/ILSVRC2012_test_00000001.JPEG")
    for wnid in SOME:
        write(tmp_path / f"imagenet-o/{wnid}/n00005787_13.JPEG")
        write(tmp_path / f"imagenet-a/{wnid}/0.000116_digital clock _ digital clock_0.865662.jpg")
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


def test_subsets_are_counted_as_the_whole_set_is(trees):
    pictures = load_pictures(f"folder:{trees}/imagenet-a")
    assert pictures.labels.tolist() == [0, 1]
    assert pictures.classes == (WNIDS[1], WNIDS[4])
    counted = relabelled(pictures, WNIDS)
    assert counted.labels.tolist() == [1, 4]
    assert counted.classes == WNIDS
    assert relabelled(counted, WNIDS) is counted
    assert relabelled(load_pictures(f"folder:{trees}/imagenet/test"), WNIDS).labels is None


def test_classes_that_are_not_there_are_named(trees):
    with pytest.raises(ProsminError, match=rf"imagenet-a has 1 classes .* 2 known ones, such as {WNIDS[4]}"):
        relabelled(load_pictures(f"folder:{trees}/imagenet-a"), WNIDS[:2])
    with pytest.raises(ProsminError, match="Two classes are called 'crane'"):
        class_numbers(["crane"], ["crane", "tench", "crane"], spec="x")


def test_the_mask_of_imagenet_o_leaves_its_own_classes(trees):
    ood = open_source(f"folder:{trees}/imagenet-o")
    mask = class_mask(ood.classes, WNIDS, spec=ood.spec)
    assert mask.tolist() == [False, True, False, False, True]
    logits = torch.tensor([[9.0, 1.0, 8.0, 7.0, 1.0], [-900.0, 0.0, 0.0, 0.0, torch.log(torch.tensor(3.0))]])
    # as if the classifier had never had the others
    expected = torch.tensor([[0, 0.5, 0, 0, 0.5], [0, 0.25, 0, 0, 0.75]])
    torch.testing.assert_close(masked_softmax(logits, mask), expected)
    assert torch.equal(masked_softmax(logits, torch.ones(5, dtype=torch.bool)), logits.softmax(-1))
