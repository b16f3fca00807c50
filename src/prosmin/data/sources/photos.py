"""SPEC `photos`: 32 px patches of the photographs inside the scikit-image and scikit-learn wheels.

Each photograph is reduced until its shorter side is 400 px (smaller ones stay) and cut into blocks of 96
px. A fifth of the blocks is for testing; patches lie within a block, so no test pixel is in a training
patch. Nearly uniform patches are left out. The photograph is the class. Four photographs are never trained on:
their patches, made the same way, are the out-of-distribution images.
Integer arithmetic and a fixed seed: the same on every machine.
"""

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from prosmin.data.sources import splits
from prosmin.data.sources.kind import SourceKind
from prosmin.errors import ProsminError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

SHORTER_SIDE = 400
BLOCK = 96
PATCH = 32
TRAIN, TEST = 240, 60  # patches of each photograph
FLAT = 4  # grey levels of standard deviation below which a patch is flat
LEAST = 80  # patches a block needs to count: the smallest photograph has three blocks for 240

SCIKIT_IMAGE = (
    "astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "coins.png", "grass.png",
    "gravel.png", "hubble_deep_field.jpg", "ihc.png", "moon.png", "motorcycle_left.png", "page.png",
    "retina.jpg", "rocket.jpg", "text.png",
)  # fmt: skip
SCIKIT_LEARN = ("china.jpg", "flower.jpg")
HELD_OUT = ("coins", "hubble_deep_field", "page", "retina")
SPLITS = ("train", "test", "ood")


@dataclass(frozen=True)
class PhotosSource:
    """Patches in memory: read(i) is uint8 (3, 32, 32)."""

    spec: str
    images: "Tensor"  # (N, 3, 32, 32)
    labels: "Tensor"  # (N,)
    classes: tuple[str, ...]
    keys: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.images)

    def key(self, i: int) -> str:
        """Photograph, split and corner of patch i."""
        return self.keys[i]

    def read(self, i: int) -> "Tensor":
        """Patch i."""
        return self.images[i]


def photograph_files() -> dict[str, Path]:
    """Each photograph's name and its file in the installed wheels, in alphabetical order."""
    files = {}
    for package, install, folder, names in (
        ("skimage", "scikit-image", "data", SCIKIT_IMAGE),
        ("sklearn", "scikit-learn", "datasets/images", SCIKIT_LEARN),
    ):
        found = importlib.util.find_spec(package)  # finds the package without importing it
        root = Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None
        for name in names:
            path = root / folder / name if root else None
            if path is None or not path.is_file():
                where = f"{path} is missing" if path else f"the package {install} is not installed"
                raise ProsminError(
                    f"The embedded images need {name}, but {where}: pip install --force-reinstall {install}"
                )
            files[path.stem] = path
    return dict(sorted(files.items()))


def open_photos(rest: str = "") -> PhotosSource:
    """The patches of a split, by default `train`."""
    import torch

    split = rest or "train"
    if split not in SPLITS:
        raise UsageError(f"The data photos@{split} does not exist; there are: photos@{', photos@'.join(SPLITS)}.")
    files = {name: path for name, path in photograph_files().items() if (name in HELD_OUT) == (split == "ood")}
    images, labels, keys = [], [], []
    for label, (name, path) in enumerate(files.items()):
        photograph = load_photograph(path)
        for part, corners in patch_corners(photograph, name=name).items():
            if part == split or split == "ood":  # of held-out photographs both parts
                images += [photograph[:, y : y + PATCH, x : x + PATCH] for y, x in corners]
                labels += [label] * len(corners)
                keys += [f"{name}/{part}/y{y:03d}x{x:03d}" for y, x in corners]
    spec = f"photos@{split}" if rest else "photos"
    return PhotosSource(spec, torch.stack(images), torch.tensor(labels), tuple(files), tuple(keys))


def block_names(keys: Iterable[str]) -> list[str]:
    """The block "photograph/row/column" of each patch, from the keys: patches of one block overlap."""
    origins = {}
    for name, path in photograph_files().items():
        with Image.open(path) as image:  # reads the header alone
            width, height = _reduced(image.size)
        origins[name] = (height % BLOCK // 2, width % BLOCK // 2)
    names = []
    for key in keys:
        name, _, corner = key.split("/")
        y, x = (int(number) for number in corner[1:].split("x"))
        top, left = origins[name]
        names.append(f"{name}/{(y - top) // BLOCK}/{(x - left) // BLOCK}")
    return names


KIND = SourceKind(
    name="photos",
    form="photos[@train|test|ood]",
    open=open_photos,
    other_split=lambda rest, split: splits.choose(split, SPLITS, spec="photos"),
    groups=block_names,
    separator="@",
    labelled=True,
)


def _reduced(size: tuple[int, int]) -> tuple[int, int]:
    """Width and height once the shorter side is at most 400 px."""
    ratio = min(1.0, SHORTER_SIDE / min(size))
    return round(size[0] * ratio), round(size[1] * ratio)


def load_photograph(path: Path) -> "Tensor":
    """The photograph as RGB, its shorter side at most 400 px: uint8 (3, H, W)."""
    import torch

    with Image.open(path) as image:
        photograph = image.convert("RGB")
    size = _reduced(photograph.size)
    # Pillow's filter is antialiased and in fixed point, so every machine gets the same patches.
    reduced = photograph.resize(size, Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(reduced)).permute(2, 0, 1).contiguous()


def patch_corners(photograph: "Tensor", *, name: str) -> dict[str, list[tuple[int, int]]]:
    """Upper left corners (y, x) of the training and the test patches, spread evenly over their blocks."""
    import torch

    from prosmin.randomness import generator

    draw = generator(0, 0, f"photos/{name}")
    seen = visible(photograph)
    blocks = []
    for top, left in block_corners(*photograph.shape[1:]):
        offsets = seen[top : top + BLOCK - PATCH + 1, left : left + BLOCK - PATCH + 1].nonzero()
        offsets = offsets[torch.randperm(len(offsets), generator=draw)[:TRAIN]] + torch.tensor([top, left])
        if len(offsets) >= LEAST:
            blocks.append([(y, x) for y, x in offsets.tolist()])
    blocks = [blocks[i] for i in torch.randperm(len(blocks), generator=draw).tolist()]
    tests = max(1, round(len(blocks) * TEST / (TRAIN + TEST)))
    parts = {"train": (blocks[tests:], TRAIN), "test": (blocks[:tests], TEST)}
    # The blocks take turns, so that each gives as many patches.
    return {part: [some[k % len(some)][k // len(some)] for k in range(count)] for part, (some, count) in parts.items()}


def block_corners(height: int, width: int) -> list[tuple[int, int]]:
    """Upper left corners of the disjoint 96 px blocks, their grid centred in the photograph."""
    tops = [(height % BLOCK) // 2 + BLOCK * i for i in range(height // BLOCK)]
    lefts = [(width % BLOCK) // 2 + BLOCK * i for i in range(width // BLOCK)]
    return [(top, left) for top in tops for left in lefts]


def visible(photograph: "Tensor") -> "Tensor":
    """Whether the patch with its corner here is not flat: (3, H, W) -> bool (H - 31, W - 31)."""
    grey = photograph.long().sum(0)  # three times the grey level
    count = PATCH * PATCH
    # count^2 * variance, exactly
    spread = count * _patch_sums(grey * grey) - _patch_sums(grey) ** 2
    return spread >= (3 * FLAT * count) ** 2


def _patch_sums(values: "Tensor") -> "Tensor":
    """Sum over every 32 x 32 window, from running sums: (H, W) -> (H - 31, W - 31)."""
    import torch

    total = torch.nn.functional.pad(values, (1, 0, 1, 0)).cumsum(0).cumsum(1)
    return total[PATCH:, PATCH:] - total[:-PATCH, PATCH:] - total[PATCH:, :-PATCH] + total[:-PATCH, :-PATCH]
