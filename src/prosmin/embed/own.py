"""Which pictures are those of the reference: nobody is his own neighbour.

Who embeds the folder that an encoder learned from would find every picture at distance 0 from itself.
"""

import os

import torch
from torch import Tensor

from prosmin.data import photos
from prosmin.data.folder import FolderSource
from prosmin.data.noting import Noting
from prosmin.data.sources import place_of


def own_groups(source: Noting, belonging: Noting, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Groups of the reference's pictures with these numbers (M,), and of all pictures of a set (N,), -1: of none."""
    known: dict[str, int] = {}
    groups = [known.setdefault(name, len(known)) for name in _names(belonging, numbers.tolist())]
    own = [known.get(name, -1) for name in _names(source, range(len(source)))]
    return torch.tensor(groups), torch.tensor(own)


def _names(source: Noting, numbers: list[int] | range) -> list[str]:
    """What makes pictures the same: the path of a file; elsewhere the SPEC and the number.

    Patches of the embedded photographs overlap within a block of theirs: the whole block is one picture.
    """
    opened = source.source
    if isinstance(opened, photos.PhotosSource):
        return photos.block_names(opened.key(i) for i in numbers)
    if isinstance(opened, FolderSource):
        root = os.path.realpath(opened.root)
        return [os.path.join(root, opened.names[i]) for i in numbers]
    place = place_of(source.spec)
    return [f"{place} {i}" for i in numbers]
