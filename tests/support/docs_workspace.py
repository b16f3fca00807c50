"""A folder with every image, file and run that the documentation's commands name, all of them tiny."""

import dataclasses
import io
import json
import shutil
import tarfile
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import timm
import torch
from PIL import Image

from coloured import coloured
from prosmin import config as configs
from prosmin.data.corruptions.parameters import COMMON
from prosmin.data.image_sets import Pictures
from prosmin.training.pretrain import pretrain
from published_layouts import dino_checkpoint
from tiny_run import TINY

SIDE = 32
"""Pixels: the least a corruption is defined for."""

RUNS = ("mine", "demo", "cifar", "imagenet")
"""Run folders that commands read without having made them."""

WNIDS = ("n01440764", "n01443537", "n01484850")


def make_workspace(root: Path) -> None:
    """Fill an empty folder; every set has the three colours of `coloured` as its classes."""
    train, test = _doubtful(coloured(120, seed=0, side=SIDE)), _doubtful(coloured(24, seed=1, side=SIDE))
    _write_flat(root / "my-images", coloured(200, side=SIDE))
    _write_flat(root / "ood-images", coloured(12, seed=2, side=SIDE), inverted=True)
    shutil.copytree(root / "my-images", root / "clean-images")
    shutil.copytree(root / "ood-images", root / "new-images")
    for name in ("my-labelled-images", "my-other-set"):
        _write_classes(root / name / "train", train)
        _write_classes(root / name / "test", test)
    _write_parquet(root / "my-parquet/train-00000.parquet", train)
    _write_parquet(root / "my-parquet/test-00000.parquet", test)
    _write_shards(root / "shards", train)
    _write_published(root / "data", train, test)
    _write_weights(root)
    (root / "twin.yaml").write_text(_block_of_twin())
    _train(root)


def _doubtful(pictures: Pictures) -> Pictures:
    """Every fifth label is wrong: probes of classes that can be told apart without error take long to fit."""
    assert pictures.labels is not None
    wrong = torch.arange(len(pictures)) % 5 == 0
    return dataclasses.replace(pictures, labels=torch.where(wrong, (pictures.labels + 1) % 3, pictures.labels))


def _jpeg(pictures: Pictures, i: int, path: Path, *, inverted: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = pictures.images[i].permute(1, 2, 0).numpy()
    Image.fromarray(255 - pixels if inverted else pixels).save(path, "JPEG", quality=90)


def _write_flat(folder: Path, pictures: Pictures, *, inverted: bool = False) -> None:
    for i in range(len(pictures)):
        _jpeg(pictures, i, folder / f"{i:03d}.jpg", inverted=inverted)


def _write_classes(folder: Path, pictures: Pictures, names: tuple[str, ...] = ("red", "green", "blue")) -> None:
    assert pictures.labels is not None
    for i, label in enumerate(pictures.labels.tolist()):
        _jpeg(pictures, i, folder / names[label] / f"{i:03d}.jpg")


def _encoded(pictures: Pictures) -> list[bytes]:
    encoded = []
    for picture in pictures.images:
        file = io.BytesIO()
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=90)
        encoded.append(file.getvalue())
    return encoded


def _write_parquet(file: Path, pictures: Pictures) -> None:
    assert pictures.labels is not None
    file.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"image": _encoded(pictures), "label": pictures.labels.tolist()}), file)


def _write_shards(folder: Path, pictures: Pictures) -> None:
    assert pictures.labels is not None
    folder.mkdir()
    data, half = _encoded(pictures), len(pictures) // 2
    for shard in range(2):
        with tarfile.open(folder / f"train-{shard:03d}.tar", "w") as archive:
            for i in range(shard * half, (shard + 1) * half):
                for suffix, content in (("jpg", data[i]), ("cls", str(int(pictures.labels[i])).encode())):
                    member = tarfile.TarInfo(f"{i:04d}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))


def _write_published(data: Path, train: Pictures, test: Pictures) -> None:
    """ImageNet, ImageNet-C, CIFAR-10-C and iNaturalist 2018 in their own layouts."""
    _write_classes(data / "imagenet/train", train, WNIDS)
    _write_classes(data / "imagenet/val", test, WNIDS)
    words = {wnid: (name,) for wnid, name in zip(WNIDS, ("tench", "goldfish", "shark"), strict=True)}
    torch.save((words, [WNIDS[int(label)] for label in test.labels]), data / "imagenet/meta.bin")
    (data / "CIFAR-10-C").mkdir()
    np.save(data / "CIFAR-10-C/labels.npy", test.labels.repeat(5).numpy())
    for name in COMMON[:2]:
        np.save(data / f"CIFAR-10-C/{name}.npy", test.images.permute(0, 2, 3, 1).repeat(5, 1, 1, 1).numpy())
        for severity in range(1, 6):
            _write_classes(data / f"imagenet-c/{name}/{severity}", test, WNIDS)
    names = []
    for i in range(len(test)):
        names.append(f"train_val2018/Plantae/{i % 3}/{i:03d}.jpg")
        _jpeg(test, i, data / "inaturalist" / names[-1])
    for split, some in (("train", names[:12]), ("val", names[12:])):
        listed = {"images": [{"file_name": name} for name in some]}
        (data / f"inaturalist/{split}2018.json").write_text(json.dumps(listed))


def write_huggingface(folder: Path) -> None:
    """A data set as the package `datasets` saves it; apart, as the package takes seconds to import."""
    import datasets

    pictures = coloured(24, side=SIDE)
    assert pictures.labels is not None
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=list(pictures.classes)))
    rows = {"image": [{"bytes": data} for data in _encoded(pictures)], "label": pictures.labels.tolist()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        split = datasets.Dataset.from_dict(rows, features=features)
        datasets.DatasetDict(train=split).save_to_disk(str(folder))


def _write_weights(root: Path) -> None:
    """timm's smallest networks: a ViT as DINO publishes its own, a ResNet as a plain state dict."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vit = timm.create_model("test_vit", num_classes=0).state_dict()
        torch.save(dino_checkpoint(vit, student=vit), root / "dino_vits16.pth")
        torch.save(timm.create_model("test_resnet").state_dict(), root / "test_resnet.pth")


def _block_of_twin() -> str:
    """The grid file that docs/ablations.md shows."""
    text = (Path(__file__).parents[2] / "docs/ablations.md").read_text()
    return text.partition("```yaml\n")[2].partition("```")[0]


def _train(root: Path) -> None:
    """One ResNet, copied to every name, and one ViT."""
    fields = TINY | {"data.spec": f"folder:{root}/my-images", "training.max_steps": "3"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = pretrain(configs.resolve(recipe="demo", overrides=fields), root / "runs" / RUNS[0])
        vit = {"backbone.patch_size": "8", "backbone.width": "32", "backbone.depth": "2", "backbone.heads": "2"}
        fields = {name: value for name, value in fields.items() if name != "backbone.name"} | vit
        pretrain(configs.resolve(recipe="demo-vit", overrides=fields), root / "runs/vit")
    for name in RUNS[1:]:
        shutil.copytree(run, root / "runs" / name)
