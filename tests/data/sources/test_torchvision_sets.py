"""Small trees in the published layouts; only the checksums of files that are smaller here are lifted."""

import json
import pickle

import numpy as np
import pytest
import torch

from numbered_images import reds, write
from prosmin.data.image_sets import load_pictures
from prosmin.data.sources import open_source, split_spec
from prosmin.errors import ProsminError, UsageError

RNG = np.random.default_rng(0)


def cifar(root, monkeypatch, name: str, folder: str, label_key: str, meta: str, meta_key: str):
    import torchvision.datasets

    built = {"cifar10": torchvision.datasets.CIFAR10, "cifar100": torchvision.datasets.CIFAR100}[name]
    for listing in ("train_list", "test_list"):
        monkeypatch.setattr(built, listing, [[file, None] for file, _ in getattr(built, listing)])
    monkeypatch.setattr(built, "meta", {**built.meta, "md5": None})
    pixels = RNG.integers(0, 256, (4, 3072), dtype=np.uint8)
    for file, _ in built.train_list + built.test_list:
        content = {"data": pixels, label_key: [3, 1, 0, 2]}
        write(root / folder / file, pickle.dumps(content))
    write(root / folder / meta, pickle.dumps({meta_key: ["a", "b", "c", "d"]}))
    return torch.from_numpy(pixels.reshape(4, 3, 32, 32))


@pytest.mark.parametrize(
    ("name", "arguments", "train"),
    [
        ("cifar10", ("cifar-10-batches-py", "labels", "batches.meta", "label_names"), 20),
        ("cifar100", ("cifar-100-python", "fine_labels", "meta", "fine_label_names"), 4),
    ],
)
def test_cifar(tmp_path, monkeypatch, name, arguments, train):
    pixels = cifar(tmp_path, monkeypatch, name, *arguments)
    spec = f"torchvision:{name}@{tmp_path}"
    assert len(open_source(spec)) == train
    assert split_spec(spec, "test") == f"{spec}@test"
    pictures = load_pictures(f"{spec}@test")
    assert torch.equal(pictures.images, pixels)
    assert pictures.labels.tolist() == [3, 1, 0, 2]
    assert pictures.classes == ("a", "b", "c", "d")
    assert pictures.keys[1] == f"{name}[1]"


def test_svhn(tmp_path, monkeypatch):
    import torchvision.datasets
    from scipy.io import savemat

    splits = {k: [v[0], v[1], None] for k, v in torchvision.datasets.SVHN.split_list.items()}
    monkeypatch.setattr(torchvision.datasets.SVHN, "split_list", splits)
    pixels = RNG.integers(0, 256, (32, 32, 3, 5), dtype=np.uint8)
    savemat(tmp_path / "test_32x32.mat", {"X": pixels, "y": np.array([[10], [1], [2], [3], [9]])})
    pictures = load_pictures(f"torchvision:svhn@{tmp_path}@test")
    assert torch.equal(pictures.images, torch.from_numpy(pixels).permute(3, 2, 0, 1))
    assert pictures.labels.tolist() == [0, 1, 2, 3, 9]
    assert pictures.classes == tuple("0123456789")


def test_flowers(tmp_path, monkeypatch):
    import torchvision.datasets
    from scipy.io import savemat

    flowers = torchvision.datasets.Flowers102
    monkeypatch.setattr(flowers, "_file_dict", {k: (v[0], None) for k, v in flowers._file_dict.items()})
    for i in range(1, 7):
        write(tmp_path / f"flowers-102/jpg/image_{i:05d}.jpg", number=i)
    savemat(tmp_path / "flowers-102/imagelabels.mat", {"labels": [[1, 102, 3, 1, 2, 3]]})
    savemat(tmp_path / "flowers-102/setid.mat", {"trnid": [[4, 1]], "valid": [[2, 3]], "tstid": [[5, 6]]})
    pictures = load_pictures(f"torchvision:flowers102@{tmp_path}")
    assert reds(pictures) == [1, 4]
    assert pictures.labels.tolist() == [0, 0]
    assert pictures.classes[0] == "pink primrose"
    assert load_pictures(f"torchvision:flowers102@{tmp_path}@val").labels.tolist() == [101, 2]
    assert load_pictures(split_spec(f"torchvision:flowers102@{tmp_path}", "test")).labels.tolist() == [1, 2]
    assert pictures.keys[0].endswith("image_00001.jpg")


def test_imagenet(tmp_path):
    torch.save(({"n1": ("crane",), "n2": ("crane", "machine")}, ["n1"]), tmp_path / "meta.bin")
    write(tmp_path / "train/n1/a.JPEG", number=1)
    write(tmp_path / "train/n2/b.JPEG", number=2)
    write(tmp_path / "val/n1/c.JPEG", number=3)
    write(tmp_path / "val/n2/d.JPEG", number=4)
    spec = f"torchvision:imagenet@{tmp_path}"
    assert reds(load_pictures(spec)) == [1, 2]
    assert split_spec(spec, "test") == f"{spec}@val"
    pictures = load_pictures(f"{spec}@val")
    assert reds(pictures) == [3, 4]
    assert pictures.labels.tolist() == [0, 1]
    assert pictures.classes == ("n1", "n2")  # two have the same name


@pytest.mark.parametrize("folder", ["2018", "train_val2018"])
def test_inaturalist(tmp_path, folder):
    for number, name in enumerate(["Aves/10/b.jpg", "Aves/10/a.jpg", "Plantae/2/c.jpg", "Plantae/2/d.jpg"]):
        write(tmp_path / folder / name, number=number)
    write(tmp_path / folder / "Aves/10/.DS_Store", b"")
    spec = f"torchvision:inaturalist2018@{tmp_path}"
    pictures = load_pictures(spec)
    assert reds(pictures) == [1, 0, 2, 3]
    assert pictures.labels.tolist() == [1, 1, 0, 0]  # by the species' number, as the published lists count
    assert pictures.classes == ("Plantae/2", "Aves/10")
    with pytest.raises(ProsminError, match=r"'val'.*val2018\.json"):
        open_source(f"{spec}@val")
    for split, names in (("train", ["Aves/10/a.jpg", "Plantae/2/d.jpg"]), ("val", ["Plantae/2/c.jpg"])):
        content = {"images": [{"file_name": f"train_val2018/{name}"} for name in names]}
        write(tmp_path / f"{split}2018.json", json.dumps(content).encode())
    assert reds(load_pictures(spec)) == [1, 3]
    assert reds(load_pictures(split_spec(spec, "test"))) == [2]
    assert load_pictures(f"{spec}@val").classes == pictures.classes
    write(tmp_path / "val2018.json", b"{}")
    with pytest.raises(ProsminError, match=r"inaturalist2018.*'images'"):
        open_source(f"{spec}@val")
    write(tmp_path / "val2018.json", b'{"images": []}')
    with pytest.raises(ProsminError, match="iNaturalist 2018 val"):
        open_source(f"{spec}@val")
    with pytest.raises(ProsminError, match=r"/2019 or .*/train_val2019.*version='2019', download=True"):
        open_source(f"torchvision:inaturalist2019@{tmp_path}")


def test_dtd(tmp_path):
    write(tmp_path / "dtd/dtd/images/banded/1.jpg", number=1)
    write(tmp_path / "dtd/dtd/images/dotted/2.jpg", number=2)
    write(tmp_path / "dtd/dtd/labels/train1.txt", b"dotted/2.jpg\nbanded/1.jpg\n")
    pictures = load_pictures(f"torchvision:dtd@{tmp_path}")
    assert reds(pictures) == [1, 2]
    assert [pictures.classes[i] for i in pictures.labels] == ["banded", "dotted"]


def test_every_set_accepts_the_arguments_of_the_table():
    import inspect

    from prosmin.data.sources.torchvision_sets import known_sets

    for name, known in known_sets().items():
        accepted = inspect.signature(known.build.__init__).parameters
        if "kwargs" not in accepted:  # ImageNet passes all of them on
            assert ("loader" in accepted) == known.files, name
        for arguments in known.splits.values():
            assert set(arguments) | set(known.always) <= set(accepted), name


def test_unusable_sets_are_named(tmp_path):
    with pytest.raises(UsageError, match=r"'cifar11'.*: cifar10, cifar100"):
        open_source(f"torchvision:cifar11@{tmp_path}")
    with pytest.raises(UsageError, match="torchvision:cifar10@ROOT"):
        open_source("torchvision:cifar10")
    with pytest.raises(UsageError, match=r"'val'.*: train, test"):
        open_source(f"torchvision:cifar10@{tmp_path}@val")
    with pytest.raises(ProsminError, match=r"import CIFAR10; CIFAR10\('.*', download=True\)"):
        open_source(f"torchvision:cifar10@{tmp_path}")
    with pytest.raises(ProsminError, match=r"/missing.*version='2018', download=True"):
        open_source(f"torchvision:inaturalist2018@{tmp_path}/missing")
    assert not (tmp_path / "missing").exists()
    with pytest.raises(ProsminError, match=r"ILSVRC2012_devkit_t12.*folder:"):
        open_source(f"torchvision:imagenet@{tmp_path}")
    with pytest.raises(UsageError, match="'test'"):
        split_spec(f"torchvision:eurosat@{tmp_path}", "test")
