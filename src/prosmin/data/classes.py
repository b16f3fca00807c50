"""Classes by name: sets that share some, such as ImageNet and its 200-class relatives, counted in one way."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from prosmin.data.pictures import Pictures
from prosmin.errors import ProsminError


def class_numbers(names: Sequence[str], among: Sequence[str], *, spec: str) -> Tensor:
    """The number of each name among other classes, (C,). Names that are not there are an error about `spec`."""
    if len(set(among)) < len(among):
        twice = next(name for i, name in enumerate(among) if name in among[:i])
        raise ProsminError(f"Two classes are called {twice!r}, so that those of {spec} cannot be told apart by name.")
    number = {name: i for i, name in enumerate(among)}
    unknown = [name for name in names if name not in number]
    if unknown:
        raise ProsminError(
            f"{spec} has {len(unknown)} classes that are not among the {len(among)} known ones, such as "
            f"{', '.join(unknown[:5])}. Give sets whose classes have the same names."
        )
    return torch.tensor([number[name] for name in names], dtype=torch.int64)


def relabelled(pictures: Pictures, classes: Sequence[str]) -> Pictures:
    """The same pictures with their labels counted as `classes` does: ImageNet-A by ImageNet's thousand."""
    if pictures.labels is None or pictures.classes == tuple(classes):
        return pictures
    numbers = class_numbers(pictures.classes, classes, spec=pictures.spec).to(pictures.labels.device)
    return dataclasses.replace(pictures, labels=numbers[pictures.labels], classes=tuple(classes))
