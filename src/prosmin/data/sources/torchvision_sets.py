"""SPEC `torchvision:NAME@ROOT[@SPLIT]`: a published set in the form in which torchvision downloads it.

iNaturalist 2017 to 2019 is read as published instead: SUPERCATEGORY/SPECIES/*.jpg, and a JSON list for each split.
The tree is called train_val2018 in the archive and 2018 if torchvision downloaded it. The species is the class;
from 2018 on its folder is its number in the lists. Without train2018.json and val2018.json beside the tree there
are no splits.
"""

import json
import os
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prosmin.data.sources import splits
from prosmin.data.sources.kind import SourceKind, resolved
from prosmin.errors import ProsminError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

Labelled = tuple[str, int]  # path, number of the class


def list_inaturalist(root: Path, *, year: str, split: str) -> tuple[list[Labelled], tuple[str, ...]]:
    """The images of a split in the order of their paths, and the classes. No split: train, or all without a list."""
    tree = next((root / name for name in (year, f"train_val{year}") if (root / name).is_dir()), None)
    if tree is None:
        raise ProsminError(f"There is no folder {root / year} or {root / f'train_val{year}'}.")
    classes = tuple(sorted(_species(tree), key=_number))
    listed = _split_list(root, year, split)
    pairs = [
        (os.path.join(tree, species, name), number)
        for number, species in enumerate(classes)
        for name in os.listdir(tree / species)
        if not name.startswith(".") and (listed is None or f"{species}/{name}" in listed)
    ]
    if not pairs:
        raise ProsminError(f"There is no image of iNaturalist {year} {split} in {tree}. Unpack the archive there.")
    return sorted(pairs), classes


def _species(tree: Path) -> list[str]:
    """SUPERCATEGORY/SPECIES of every folder."""
    groups = [group for group in os.scandir(tree) if group.is_dir()]
    return [f"{group.name}/{species.name}" for group in groups for species in os.scandir(group) if species.is_dir()]


def _number(species: str) -> tuple[int, str]:
    """Sorts numbered folders by number, as the lists do, and the names of 2017 alphabetically."""
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
    """How a set is built."""

    build: Callable[..., Any]
    splits: dict[str, dict[str, Any]]  # arguments of each split
    files: bool = True  # the set lists paths, and takes a function that loads one
    always: dict[str, Any] = field(default_factory=dict)  # arguments of every split


@dataclass(frozen=True)
class TorchvisionSource:
    """Either paths or images (N, 3, H, W)."""

    spec: str
    name: str
    paths: list[str]
    images: "Tensor | None"
    labels: "Tensor | None"
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths) if self.images is None else len(self.images)

    def key(self, i: int) -> str:
        """The file's path, or the set and the number."""
        return self.paths[i] if self.images is None else f"{self.name}[{i}]"

    def read(self, i: int) -> "bytes | Tensor":
        """The file's bytes, or the image."""
        if self.images is not None:
            return self.images[i]
        with open(self.paths[i], "rb") as file:
            return file.read()


def known_sets() -> dict[str, Set]:
    """The sets by name. A function, since importing torchvision's data sets takes time."""
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
    import torch

    name, root, split = _parse(rest)
    chosen = known_sets()[name]
    if not root.is_dir():  # some classes would create it
        raise ProsminError(f"The folder {root} of the data torchvision:{rest} does not exist. {_how(chosen, root)}")
    if name.startswith("inaturalist"):  # torchvision knows neither its splits nor its folder's name in the archive
        return _open_inaturalist(rest, name, root, split)
    try:
        extra: dict[str, Any] = {"loader": os.fspath} if chosen.files else {}
        built = chosen.build(str(root), **chosen.splits[split], **chosen.always, **extra)
    except (RuntimeError, OSError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise ProsminError(f"The data torchvision:{rest} cannot be opened: {error} {_how(chosen, root)}") from None
    if chosen.files:
        # The loader returns the path itself, so this opens no file.
        pairs = sorted((path, -1 if target is None else int(target)) for path, target in _items(built))
        paths, targets, images = [path for path, _ in pairs], [target for _, target in pairs], None
    else:
        paths, images = [], _as_rgb(built.data)
        targets = [int(t) for t in (built.labels if name in ("svhn", "stl10") else built.targets)]
    labels = torch.tensor(targets, dtype=torch.int64)
    if len(labels) and int(labels.min()) < 0:  # STL-10 marks images without a label by -1
        return TorchvisionSource(f"torchvision:{rest}", name, paths, images, None, ())
    return TorchvisionSource(f"torchvision:{rest}", name, paths, images, labels, _class_names(built, labels))


def other_split(rest: str, split: str) -> str:
    """The rest of another split's SPEC."""
    name, root, _ = _parse(rest)
    available = [s for s in known_sets()[name].splits if s]
    return f"{name}@{root}@{splits.choose(split, available, spec=f'torchvision:{name}@{root}')}"


def _place(rest: str) -> str:
    name, at, place = rest.partition("@")
    root, _, split = place.partition("@")
    return f"{name}@{resolved(root)}@{split or 'train'}" if at else name


KIND = SourceKind(
    name="torchvision",
    form="torchvision:NAME@ROOT[@SPLIT]",
    open=open_torchvision,
    other_split=other_split,
    place=_place,
    labelled=True,
)


def _parse(rest: str) -> tuple[str, Path, str]:
    """Name, folder and split; by default the first split, `train` for most sets."""
    name, _, place = rest.partition("@")
    sets = known_sets()
    if name not in sets:
        raise UsageError(f"The torchvision set {name!r} is not supported; allowed: {', '.join(sets)}.")
    if not place:
        raise UsageError(f"The data torchvision:{rest} names no folder; write torchvision:{name}@ROOT.")
    available = list(sets[name].splits)
    if not Path(place).expanduser().is_dir() and "@" in place:
        root, _, split = place.rpartition("@")
        split = splits.choose(split, [s for s in available if s], spec=f"torchvision:{name}@{root}")
        return name, Path(root).expanduser(), split
    return name, Path(place).expanduser(), available[0]


def _items(built: Any) -> Iterable[tuple[str, int | None]]:
    return (built[i] for i in range(len(built)))


def _open_inaturalist(rest: str, name: str, root: Path, split: str) -> TorchvisionSource:
    import torch

    try:
        pairs, classes = list_inaturalist(root, year=name[-4:], split=split)
    except (OSError, ValueError, KeyError) as error:
        raise ProsminError(f"The data torchvision:{rest} cannot be opened: {error}.") from None
    except ProsminError as error:
        raise ProsminError(f"{error} {_how(known_sets()[name], root)}") from None
    paths, targets = [path for path, _ in pairs], torch.tensor([target for _, target in pairs])
    return TorchvisionSource(f"torchvision:{rest}", name, paths, None, targets, classes)


def _as_rgb(data: Any) -> "Tensor":
    """torchvision's arrays (N, H, W), (N, H, W, 3) or (N, 3, H, W) as (N, 3, H, W)."""
    import torch

    images = torch.as_tensor(data)
    if images.ndim == 3:
        return images[:, None].expand(-1, 3, -1, -1)
    return images.permute(0, 3, 1, 2) if images.shape[-1] == 3 else images


def _class_names(built: Any, labels: "Tensor") -> tuple[str, ...]:
    """Names where the set has them, else numbers; WordNet's numbers for ImageNet, which has two classes named crane."""
    names = getattr(built, "wnids", None) or getattr(built, "classes", None)
    return tuple(names) if names else tuple(str(i) for i in range(int(labels.max()) + 1 if len(labels) else 0))


def _how(chosen: Set, root: Path) -> str:
    """How to get the set."""
    name = chosen.build.__name__
    if name == "ImageNet":
        return (
            f"torchvision needs ILSVRC2012_devkit_t12.tar.gz and ILSVRC2012_img_*.tar in {root}; "
            f"if you only have the class folders, write folder:{root}@train."
        )
    more = "".join(f", {key}={value!r}" for key, value in chosen.always.items())
    code = f"from torchvision.datasets import {name}; {name}('{root}'{more}, download=True)"
    return f'To download it: python -c "{code}"'
