"""Pictures that show the same thing: patches of an embedded photograph overlap within a block of theirs.

A patch whose half is known would be found without any learning, so a block stays together where answers are judged:
it is held out as a whole, dealt to one fold, and for R@1 and R-AUROC none of it is a neighbour of another.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from prosmin.data import photos


def groups_of(keys: Sequence[str], spec: str) -> Tensor | None:
    """The number of each picture's group, from 0 on, (N,); None where every picture stands for itself."""
    if spec.partition("@")[0] != "photos":
        return None
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(name, len(numbers)) for name in photos.block_names(keys)])
