"""The reference, images that belong: their features, the score of an image, and the threshold of the OOD flag."""

import math
import os
from collections.abc import Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from prosmin.data.sources import group_names, place_of
from prosmin.data.sources.folder import FolderSource
from prosmin.data.sources.kind import resolved
from prosmin.data.unreadable import CheckedSource
from prosmin.encoder import LEAST_REFERENCE
from prosmin.encoder.neighbourhood import NEIGHBOURS, Neighbourhood
from prosmin.encoder.space import Space
from prosmin.errors import ProsminError, UsageError
from prosmin.files import writing
from prosmin.randomness import generator

MOST = 50_000
"""Images of the reference that are used, chosen at random: a bank of this size fits into any memory."""

SCORED = 5_000
"""Images of the reference whose own scores set the threshold, chosen at random: more would hardly change it."""

FALSE_ALARMS = 0.05
"""The default rate of false alarms, if the reference has enough images for it."""


def own_groups(source: CheckedSource, belonging: CheckedSource, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Which image is which: groups of the reference images with these numbers (M,), and of all images of a set (N,).

    Images with the same group are the same image; -1 is an image that is not in the reference.
    """
    known: dict[str, int] = {}
    groups = [known.setdefault(name, len(known)) for name in _names(belonging, numbers.tolist())]
    own = [known.get(name, -1) for name in _names(source, range(len(source)))]
    return torch.tensor(groups), torch.tensor(own)


def _names(source: CheckedSource, numbers: list[int] | range) -> list[str]:
    """The identity of images: the path of a file, elsewhere SPEC and number; overlapping patches of a photo are one."""
    opened = source.source
    groups = group_names(source.spec, (opened.key(i) for i in numbers))
    if groups is not None:
        return groups
    if isinstance(opened, FolderSource):
        root = resolved(str(opened.root))
        return [os.path.join(root, opened.names[i]) for i in numbers]
    place = place_of(source.spec)
    return [f"{place} {i}" for i in numbers]


SCORE = (
    "mean distance to the nearest 10 reference images (50 within one set, at most a third), half-whitened, "
    "without the image itself and its copies"
)
"""What `ood_score` is: part of the settings, since scores of another kind cannot be compared."""


class Distances(NamedTuple):
    """Of N images: the number of the nearest reference image, its distance, and the rest of `Located`."""

    nearest: Tensor
    near: Tensor
    score: Tensor
    disagreement: Tensor
    uncertainty: Tensor


class Copies(NamedTuple):
    """What is known of the image of each of G groups; the last place is for images of no group."""

    first: Tensor  # (G + 1,): the group of its first copy, its own if it repeats none
    other: Tensor  # (G + 1,): the number of another copy, -1 if there is none

    def of(self, groups: Tensor) -> "Copies":
        """The same of images of these groups: (N,)."""
        places = groups.clamp_max(len(self.first) - 1)  # -1 is the last place
        return Copies(self.first[places], self.other[places])

    def to(self, device: torch.device) -> "Copies":
        """The same on the device."""
        return Copies(self.first.to(device), self.other.to(device))


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Reference images. The score of an image is its mean distance to the nearest of them.

    Never to itself or a copy of itself: an image that does not belong may be there several times. Only the nearest
    image is a copy if there is one.
    """

    images: Neighbourhood  # different images, with the group of the first copy of each
    numbers: Tensor  # (M,): the images' numbers in their source
    copies: Copies
    scores: Tensor  # (n,): scores of some of the reference images, rising

    def measure(self, features: Tensor, groups: Tensor | None = None) -> Distances:
        """(N, D) -> (N,) each. `groups` (N,) are the groups of the images, if some may be reference images."""
        first, other = (None, None) if groups is None else self.copies.of(groups)
        row, near, *scores = self.images.locate(features, first)
        nearest = self.numbers[row]
        if other is not None:
            nearest, near = torch.where(other < 0, nearest, other), torch.where(other < 0, near, 0.0)
        return Distances(nearest, near, *scores)

    def threshold(self, false_alarms: float) -> float:
        """A new image of the same kind scores above it with a probability of at most `false_alarms`.

        Among n + 1 exchangeable scores the new one has every rank with the same probability: the threshold is the
        r-th smallest of the n, r = ceil((n + 1) (1 - false_alarms)).
        """
        return float(self.scores[_rank(len(self.scores), false_alarms) - 1])

    def reached(self, false_alarms: float) -> float:
        """The rate of that threshold, a multiple of 1 / (n + 1): the requested rate or the next below it."""
        count = len(self.scores)
        return 1 - _rank(count, false_alarms) / (count + 1)

    def to(self, device: torch.device) -> "Reference":
        """The same with its images on the device."""
        numbers, copies = self.numbers.to(device), self.copies.to(device)
        return replace(self, images=self.images.to(device), numbers=numbers, copies=copies)


def _rank(count: int, false_alarms: float) -> int:
    return math.ceil((count + 1) * (1 - false_alarms) - 1e-9)  # a product such as 19.000000000000004 is 19


def choose(source: Sized) -> Tensor:
    """The numbers of the reference images that are used, rising: all, or `MOST` of them."""
    if len(source) <= MOST:
        return torch.arange(len(source))
    return torch.randperm(len(source), generator=generator(0, 0, "reference"))[:MOST].sort().values


def check_size(count: int, spec: str) -> None:
    """An error for a reference of too few images."""
    if count < LEAST_REFERENCE:
        raise ProsminError(
            f"The reference {spec} has {count} different readable images; allowed: {LEAST_REFERENCE} or more. "
            "Give more with --reference, or --reference none for no score."
        )


def possible_rate(count: int, requested: float | None) -> float:
    """The requested rate of false alarms, an error if n scores cannot give it; by default 5 %, or 1 / (n + 1)."""
    rate = FALSE_ALARMS if requested is None else requested
    if _rank(count, rate) <= count:
        return rate
    if requested is None:
        return 1 / (count + 1)
    least = math.ceil(1e5 / (count + 1)) / 1e5
    needed = images_needed(requested)
    more = f"a --reference of {needed} images or more" if needed <= SCORED else "another --reference"
    raise UsageError(
        f"--false-alarms is {requested:g}, but {count} images of the reference set the threshold, and allow {least:g} "
        f"or more. Give --false-alarms {least:g} or more, or {more}."
    )


def images_needed(false_alarms: float) -> int:
    """The number of reference images that such a rate needs."""
    return math.ceil(1 / false_alarms - 1 - 1e-9)


def fit(
    features: Tensor,
    numbers: Tensor,
    groups: Tensor,
    *,
    space: Space,
    neighbours: int = NEIGHBOURS,
    first: Tensor | None = None,
) -> Reference:
    """The reference of features (M, D), with the number and the group of each image (M,).

    `first` (M,) is the row of the first copy of each image, see `first_of_copies`; None: all are different. Of copies
    only the first counts: with copies of itself beside it every image would seem to have close neighbours.
    """
    rows = torch.arange(len(features), device=features.device)
    first = rows if first is None else first
    copies, kept = _find_copies(numbers, groups, first), first == rows
    features, groups = features[kept], copies.of(groups[kept]).first
    images = Neighbourhood(
        features=features, space=space.to(features.device), groups=groups, neighbours=neighbours
    )  # fmt: skip
    some = torch.randperm(len(features), generator=generator(0, 0, "threshold"))[:SCORED].to(features.device)
    scores = images(features[some], groups[some]).cpu().sort().values
    return Reference(images=images, numbers=numbers[kept], copies=copies, scores=scores)


def _find_copies(numbers: Tensor, groups: Tensor, first: Tensor) -> Copies:
    """The copies among images with these numbers and groups (M,), and the row of the first copy of each (M,)."""
    alone = groups.bincount()[groups] == 1  # overlapping images are no copies because two of them have some
    repeats = ((first != torch.arange(len(first), device=first.device)) & alone & alone[first]).nonzero()[:, 0]
    one, other = first[repeats], repeats
    firsts = torch.arange(int(groups.max()) + 2, device=groups.device)
    firsts[-1] = -1
    firsts[groups[other]] = groups[one]
    others = torch.full_like(firsts, -1)
    others[groups[other]] = numbers[one]
    return Copies(firsts, others.scatter_reduce(0, groups[one], numbers[other], "amin", include_self=False))


def write_reference(reference: Reference, path: Path) -> None:
    """Save it for the other processes, and for a command that continues."""
    images = reference.images
    assert images.groups is not None
    rows = {"features": images.features, "numbers": reference.numbers, "groups": images.groups}
    rows |= {
        "first": reference.copies.first,
        "other": reference.copies.other,
        "scores": reference.scores,
        "neighbours": torch.tensor(images.neighbours),
        "mean": images.space.mean,
        "matrix": images.space.matrix,
    }
    with writing(path) as part:
        save_file({name: tensor.cpu().contiguous() for name, tensor in rows.items()}, part)


def read_reference(path: Path) -> Reference:
    """What `write_reference` wrote."""
    tensors = load_tensors(path)
    space = Space(tensors["mean"], tensors["matrix"])
    count = int(tensors["neighbours"])
    images = Neighbourhood(features=tensors["features"], space=space, groups=tensors["groups"], neighbours=count)
    copies = Copies(tensors["first"], tensors["other"])
    return Reference(images=images, numbers=tensors["numbers"], copies=copies, scores=tensors["scores"])


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file that an earlier command or another process wrote."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ProsminError(f"{path} is damaged: {error}. Remove it; the same command writes it again.") from None
