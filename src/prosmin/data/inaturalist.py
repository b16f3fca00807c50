"""iNaturalist 2017 to 2019 as published: SUPERCATEGORY/SPECIES/*.jpg, and a JSON list for each split.

The tree is called train_val2018 in the archive and 2018 where torchvision fetched it. The species is the class;
from 2018 on its folder is its number in the lists. Without train2018.json and val2018.json beside the tree there
are no splits.
"""

import json
import os
from pathlib import Path

from prosmin.errors import ProsminError

Labelled = tuple[str, int]  # path, number of the class


def list_inaturalist(root: Path, *, year: str, split: str) -> tuple[list[Labelled], tuple[str, ...]]:
    """The pictures of a split in the order of their paths, and the classes. No split: train, or all without a list."""
    tree = _tree(root, year)
    classes = tuple(sorted(_species(tree), key=_number))
    wanted = _listed(root, year, split)
    pairs = [
        (os.path.join(tree, species, name), number)
        for number, species in enumerate(classes)
        for name in os.listdir(tree / species)
        if not name.startswith(".") and (wanted is None or f"{species}/{name}" in wanted)
    ]
    if not pairs:
        raise ProsminError(f"No picture of iNaturalist {year} {split} lies in {tree}. Unpack the archive there.")
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


def _listed(root: Path, year: str, split: str) -> set[str] | None:
    """SUPERCATEGORY/SPECIES/FILE of a split's pictures; None for all."""
    file = root / f"{split or 'train'}{year}.json"
    if file.is_file():
        return {"/".join(image["file_name"].split("/")[-3:]) for image in json.loads(file.read_text())["images"]}
    if split:
        raise ProsminError(f"The split {split!r} of iNaturalist {year} needs the published list {file}.")
    return None
