"""iNaturalist 2017 to 2019 as published: SUPERCATEGORY/SPECIES/*.jpg, and a JSON list for each split.

The tree is called train_val2018 in the archive and 2018 where torchvision fetched it. The species is the class;
from 2018 on its folder is its number in the lists. Without train2018.json and val2018.json beside the tree there
are no splits.
"""

import json
import os
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prosmin.data.sources import splits
from prosmin.errors import ProsminError, UsageError

Labelled = tuple[str, int]  # path, number of the class


def list_inaturalist(root: Path, *, year: str, split: str) -> tuple[list[Labelled], tuple[str, ...]]:
    """The images of a split in the order of their paths, and the classes. No split: train, or all without a list."""
    tree = _tree(root, year)
    classes = tuple(sorted(_species(tree), key=_number))
    wanted = _split_list(root, year, split)
    pairs = [
        (os.path.join(tree, species, name), number)
        for number, species in enumerate(classes)
        for name in os.listdir(tree / species)
        if not name.startswith(".") and (wanted is None or f"{species}/{name}" in wanted)
    ]
    if not pairs:
        raise ProsminError(f"No image of iNaturalist {year} {split} lies in {tree}. Unpack the archive there.")
    return sorted(pairs), classes


def _tree(root: Path, year: str) -> Path:
    names = (year, f"train_val{year}")
    for name in names:
        if (root / name).is_dir():
            return root / name
    raise ProsminError(f"There is no folder {root / names[0]} or {root / names[1]}.")


def _species(tree: Path) -> list[str]:
    """SUPERCATEGORY/SPECIES of every folder."""
    groups = [group for group in os.scandir(tree) if group.is_dir()]
    return [f"{group.name}/{species.name}" for group in groups for species in os.scandir(group) if species.is_dir()]


def _number(species: str) -> tuple[int, str]:
    """Numbered folders by their number, as the lists count; the names of 2017 by the alphabet."""
    name = species.rpartition("/")[2]
    return (int(name), species) if name.isdecimal() else (0, species)


def _split_list(root: Path, year: str, split: str) -> set[str] | None:
    """SUPERCATEGORY/SPECIES/FILE of a split's images; None for all."""
    file = root / f"{split or 'train'}{year}.json"
    if file.is_file():
        return {"/".join(image["file_name"].split("/")[-3:]) for image in json.loads(file.read_text())["images"]}
    if split:
        raise ProsminError(f"The split {split!r} of iNaturalist {year} needs the published list {file}.")
    return None


@dataclass(frozen=True)
class Set:
    """How a set is built: the class, and the arguments of each split. `files`: it takes a loader of paths."""

    build: Callable[..., Any]
    splits: dict[str, dict[str, Any]]
    files: bool = True
    always: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TorchvisionSource:
    """Either paths or images (N, 3, H, W)."""

    spec: str
    name: str
    paths: list[str]
    images: Tensor | None
    labels: Tensor | None
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths) if self.images is None else len(self.images)

    def key(self, i: int) -> str:
        """The file's path, or the set and the number."""
        return self.paths[i] if self.images is None else f"{self.name}[{i}]"

    def read(self, i: int) -> bytes | Tensor:
        """The file's bytes, or the image."""
        if self.images is not None:
            return self.images[i]
        with open(self.paths[i], "rb") as file:
            return file.read()


def known_sets() -> dict[str, Set]:
    """The sets by name. A function, since importing torchvision's data sets takes a moment."""
    from torchvision import datasets as tv

    train_flag = {"train": {"train": True}, "test": {"train": False}}
    train_test = {name: {"split": name} for name in ("train", "test")}
    three = {name: {"split": name} for name in ("train", "val", "test")}
    train_val = {name: {"split": name} for name in ("train", "val")}
    unlabelled = {**train_test, "unlabeled": {"split": "unlabeled"}}
    places = {"train": {"split": "train-standard"}, "val": {"split": "val"}}
    none: dict[str, dict[str, Any]] = {"": {}}
    sets = {
        "cifar10": Set(tv.CIFAR10, train_flag, files=False),
        "cifar100": Set(tv.CIFAR100, train_flag, files=False),
        "country211": Set(
            tv.Country211, {"train": {"split": "train"}, "val": {"split": "valid"}, "test": {"split": "test"}}
        ),
        "dtd": Set(tv.DTD, three),
        "eurosat": Set(tv.EuroSAT, none),
        "fashionmnist": Set(tv.FashionMNIST, train_flag, files=False),
        "fgvcaircraft": Set(tv.FGVCAircraft, three),
        "flowers102": Set(tv.Flowers102, three),
        "food101": Set(tv.Food101, train_test),
        "imagenet": Set(tv.ImageNet, train_val),
        "kmnist": Set(tv.KMNIST, train_flag, files=False),
        "mnist": Set(tv.MNIST, train_flag, files=False),
        "places365": Set(tv.Places365, places, always={"small": True}),
        "stanfordcars": Set(tv.StanfordCars, train_test),
        "stl10": Set(tv.STL10, unlabelled, files=False),
        "svhn": Set(tv.SVHN, {**train_test, "extra": {"split": "extra"}}, files=False),
    }
    for year in ("2017", "2018", "2019"):
        sets[f"inaturalist{year}"] = Set(tv.INaturalist, {"": {}, "train": {}, "val": {}}, always={"version": year})
    return sets


def open_torchvision(rest: str) -> TorchvisionSource:
    """The images of a torchvision set."""
    name, root, split = _parse(rest)
    chosen = known_sets()[name]
    if not root.is_dir():  # some classes would create it
        raise ProsminError(f"The folder {root} of the data torchvision:{rest} does not exist. {_how(chosen, root)}")
    if name.startswith("inaturalist"):  # torchvision knows neither its splits nor the archive's name of its folder
        return _open_inaturalist(rest, name, root, split)
    try:
        extra: dict[str, Any] = {"loader": os.fspath} if chosen.files else {}
        built = chosen.build(str(root), **chosen.splits[split], **chosen.always, **extra)
    except (RuntimeError, OSError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise ProsminError(f"The data torchvision:{rest} cannot be opened: {error} {_how(chosen, root)}") from None
    if chosen.files:
        # With a loader that returns the path itself, going through a set opens no file.
        pairs = sorted(_listed(built[i] for i in range(len(built))))
        paths, targets, images = [path for path, _ in pairs], [target for _, target in pairs], None
    else:
        paths, images = [], _as_rgb(built.data)
        targets = [int(t) for t in (built.labels if name in ("svhn", "stl10") else built.targets)]
    labels = torch.tensor(targets, dtype=torch.int64)
    if len(labels) and int(labels.min()) < 0:  # STL-10 marks images without a label by -1
        return TorchvisionSource(f"torchvision:{rest}", name, paths, images, None, ())
    return TorchvisionSource(f"torchvision:{rest}", name, paths, images, labels, _class_names(built, labels))


def other_split(rest: str, split: str) -> str:
    """What follows `torchvision:` for another split of the same set."""
    name, root, _ = _parse(rest)
    available = [s for s in known_sets()[name].splits if s]
    return f"{name}@{root}@{splits.choose(split, available, spec=f'torchvision:{name}@{root}')}"


def _parse(rest: str) -> tuple[str, Path, str]:
    """Name, folder and split; the split is `train` where none is given and the set has one."""
    name, _, place = rest.partition("@")
    sets = known_sets()
    if name not in sets:
        raise UsageError(f"There is no torchvision set {name!r} here; there are: {', '.join(sets)}.")
    if not place:
        raise UsageError(f"The data torchvision:{rest} names no folder; write torchvision:{name}@ROOT.")
    available = list(sets[name].splits)
    if not Path(place).expanduser().is_dir() and "@" in place:
        root, _, split = place.rpartition("@")
        split = splits.choose(split, [s for s in available if s], spec=f"torchvision:{name}@{root}")
        return name, Path(root).expanduser(), split
    return name, Path(place).expanduser(), available[0]


def _listed(items: Iterable[tuple[str, int | None]]) -> list[tuple[str, int]]:
    return [(path, -1 if target is None else int(target)) for path, target in items]


def _open_inaturalist(rest: str, name: str, root: Path, split: str) -> TorchvisionSource:
    try:
        pairs, classes = list_inaturalist(root, year=name[-4:], split=split)
    except (OSError, ValueError, KeyError) as error:
        raise ProsminError(f"The data torchvision:{rest} cannot be opened: {error}.") from None
    except ProsminError as error:
        raise ProsminError(f"{error} {_how(known_sets()[name], root)}") from None
    paths, targets = [path for path, _ in pairs], torch.tensor([target for _, target in pairs])
    return TorchvisionSource(f"torchvision:{rest}", name, paths, None, targets, classes)


def _as_rgb(data: Any) -> Tensor:
    """torchvision's arrays as (N, 3, H, W): they come as (N, H, W), (N, H, W, 3) or (N, 3, H, W)."""
    images = torch.as_tensor(data)
    if images.ndim == 3:
        return images[:, None].expand(-1, 3, -1, -1)
    return images.permute(0, 3, 1, 2) if images.shape[-1] == 3 else images


def _class_names(built: Any, labels: Tensor) -> tuple[str, ...]:
    """Names where the set has them, else numbers.

    ImageNet's are WordNet's numbers: two of its classes are called crane, and its relatives have folders by number.
    """
    names = getattr(built, "wnids", None) or getattr(built, "classes", None)
    return tuple(names) if names else tuple(str(i) for i in range(int(labels.max()) + 1 if len(labels) else 0))


def _how(chosen: Set, root: Path) -> str:
    """How to get the set."""
    name = chosen.build.__name__
    if name == "ImageNet":
        return (
            f"torchvision wants ILSVRC2012_devkit_t12.tar.gz and ILSVRC2012_img_*.tar in {root}; "
            f"for class folders alone write folder:{root}@train."
        )
    more = "".join(f", {key}={value!r}" for key, value in chosen.always.items())
    code = f"from torchvision.datasets import {name}; {name}('{root}'{more}, download=True)"
    return f'To fetch it: python -c "{code}"'
