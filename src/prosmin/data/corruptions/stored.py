"""Corrupted sets as published, read one corruption and severity at a time: CIFAR-10-C and ImageNet-C.

CIFAR-10-C (and CIFAR-100-C): NAME.npy of shape (5 n, 32, 32, 3) with the severities one after the other, labels.npy.
ImageNet-C: NAME/SEVERITY/CLASS/*.JPEG.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from prosmin.data.corruptions.parameters import ALL, SEVERITIES
from prosmin.data.image_sets import Pictures, load_pictures
from prosmin.data.sources import parse
from prosmin.errors import ProsminError, UsageError

_WORDNET = re.compile(r"n\d{8}")  # the names of ImageNet's class folders


@dataclass(frozen=True)
class StoredSet:
    """A folder of corrupted images whose labels are numbers of the data's classes."""

    root: Path
    layout: str  # "CIFAR-C" or "ImageNet-C"
    names: tuple[str, ...]  # the corruptions it has
    classes: tuple[str, ...]

    @property
    def framed(self) -> bool:
        """Whether its images are already cropped for evaluation: ImageNet-C's are, to 224 pixels."""
        return self.layout == "ImageNet-C"

    def read(self, name: str, severity: int) -> Pictures:
        """The images of one corruption at one severity."""
        return (_read_folder if self.framed else _read_arrays)(self, name, severity)


def open_stored(spec: str, classes: tuple[str, ...]) -> StoredSet:
    """The set in a folder, `folder:PATH`; only names are read."""
    kind, rest = parse(spec)
    root = Path(rest).expanduser()
    if kind.name != "folder" or not root.is_dir():
        raise UsageError(
            f"The corrupted set {spec} is not a folder. Give folder:PATH with CIFAR-10-C (NAME.npy and labels.npy) or "
            "ImageNet-C (NAME/SEVERITY/CLASS/*.JPEG) as published."
        )
    arrays = (root / "labels.npy").is_file()
    names = tuple(name for name in ALL if (root / f"{name}.npy" if arrays else root / name / "1").exists())
    if not names:
        raise ProsminError(
            f"{root} contains no corruption: neither labels.npy with files such as gaussian_noise.npy (CIFAR-10-C) nor "
            "folders such as gaussian_noise/1 (ImageNet-C). Give the folder that contains these."
        )
    return StoredSet(root, "CIFAR-C" if arrays else "ImageNet-C", names, classes)


def _read_arrays(stored: StoredSet, name: str, severity: int) -> Pictures:
    labels = torch.from_numpy(_load(stored.root / "labels.npy", lazily=False)).long()
    pixels = _load(stored.root / f"{name}.npy", lazily=True)
    valid = pixels.ndim == 4 and pixels.shape[-1] == 3 and pixels.dtype == np.uint8
    if labels.ndim != 1 or not valid or len(pixels) != len(labels) or len(labels) % len(SEVERITIES):
        raise ProsminError(
            f"{stored.root / name}.npy has {pixels.dtype} {pixels.shape} and labels.npy {tuple(labels.shape)}; "
            "allowed: uint8 (5 n, H, W, 3) and (5 n,), the five severities one after the other. Copy both again."
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(stored.classes):
        raise ProsminError(
            f"The labels in {stored.root} run from {int(labels.min())} to {int(labels.max())}, but the data has "
            f"{len(stored.classes)} classes. Give the data these images were made from with --data."
        )
    count = len(labels) // len(SEVERITIES)
    block = slice((severity - 1) * count, severity * count)
    images = torch.from_numpy(np.array(pixels[block])).permute(0, 3, 1, 2)
    return Pictures(
        images=images.contiguous(),
        sizes=torch.tensor(images.shape[2:]).repeat(count, 1),
        labels=labels[block],
        classes=stored.classes,
        keys=tuple(f"{name}[{i}]" for i in range(count)),
        spec=f"{stored.root / name}.npy at severity {severity}",
    )


def _load(path: Path, *, lazily: bool) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r" if lazily else None)
    except (OSError, ValueError, EOFError) as error:
        raise ProsminError(f"{path} cannot be read as a numpy array: {error}. Copy it again.") from None


def _read_folder(stored: StoredSet, name: str, severity: int) -> Pictures:
    pictures = load_pictures(f"folder:{stored.root / name / str(severity)}")
    if pictures.labels is None:
        raise ProsminError(f"{pictures.spec} has no class folders; ImageNet-C has NAME/SEVERITY/CLASS/*.JPEG.")
    numbers = _class_numbers(pictures.classes, stored)
    return Pictures(
        images=pictures.images,
        sizes=pictures.sizes,
        labels=numbers[pictures.labels],
        classes=stored.classes,
        keys=pictures.keys,
        spec=pictures.spec,
        bad=pictures.bad,
    )


def _class_numbers(folders: tuple[str, ...], stored: StoredSet) -> Tensor:
    """The number of each class folder among the data's classes, by name."""
    if set(folders) <= set(stored.classes):
        number = {name: i for i, name in enumerate(stored.classes)}
        return torch.tensor([number[name] for name in folders])
    # If ImageNet's classes have names ("tench"), their order is still that of the folders.
    wordnet = all(_WORDNET.fullmatch(name) for name in folders)
    if wordnet and len(folders) == len(stored.classes) and not any(_WORDNET.fullmatch(name) for name in stored.classes):
        return torch.arange(len(folders))
    unknown = sorted(set(folders) - set(stored.classes))[:5]
    raise ProsminError(
        f"{stored.root} has classes that the data does not have, such as {', '.join(unknown)}. "
        "Give the data these images were made from with --data."
    )
