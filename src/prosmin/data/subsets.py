"""Seeded, class-balanced choices among labelled images: folds, the held-out tenth, low-shot subsets, groups."""

from collections.abc import Sequence

import torch
from torch import Tensor

from prosmin.data.sources import group_names
from prosmin.errors import ProsminError
from prosmin.randomness import generator


def groups_of(keys: Sequence[str], spec: str) -> Tensor | None:
    """The number of each image's group, from 0 on, (N,); None if the source has no groups."""
    names = group_names(spec, keys)
    numbers: dict[str, int] = {}
    return None if names is None else torch.tensor([numbers.setdefault(name, len(numbers)) for name in names])


def deal_folds(labels: Tensor, count: int, *, seed: int, groups: Tensor | None = None) -> Tensor:
    """A fold number from 0 to count - 1 for each image, every class spread evenly: (N,) -> (N,).

    Fold sizes differ by at most one, in total and within a class. The only image of a class stays in training: its
    fold is -1. With `groups` (N,), numbers of images of one class that stay together, whole groups are assigned.
    """
    if groups is not None:
        numbers, group = torch.unique(groups.to(labels.device), return_inverse=True)
        group_labels = labels.new_empty(len(numbers))
        group_labels[group] = labels
        return deal_folds(group_labels, count, seed=seed)[group]
    if not 2 <= count <= len(labels):
        raise ProsminError(f"{len(labels)} labels cannot be divided into {count} folds; allowed: 2 to {len(labels)}.")
    order, _, size = _shuffled_by_class(labels, seed, "folds")
    dealt = torch.arange(len(order)) % count
    fold = torch.empty_like(order)
    fold[order] = torch.where(size > 1, dealt, -1)
    return fold.to(labels.device)


def held_out_tenth(labels: Tensor, *, seed: int, groups: Tensor | None = None) -> Tensor:
    """True for the tenth of the images, fixed by the seed, on which choices are made: (N,) -> (N,) mask."""
    if len(labels) < 10:
        raise ProsminError(
            f"There are {len(labels)} training images, too few to hold out a tenth for choices; allowed: 10 or more, "
            "better some hundreds."
        )
    return deal_folds(labels, 10, seed=seed, groups=groups) == 0


def balanced_subset(labels: Tensor, share: float, *, seed: int) -> Tensor:
    """Indices, rising, of round(share * N) images, equally many of each class where class sizes allow.

    For one seed a smaller share is a subset of a larger one.
    """
    if not 0 < share <= 1:
        raise ProsminError(f"The share of labels is {share}; allowed: above 0, at most 1.")
    total, classes = round(share * len(labels)), len(torch.unique(labels))
    if total < max(classes, 1):
        raise ProsminError(
            f"A share of {share:.3g} of {len(labels)} labels is {total}, fewer than the {classes} classes; "
            "allowed: at least one label per class."
        )
    order, rank, _ = _shuffled_by_class(labels, seed, "balanced subset")
    # Every class gives its first image, then its second, ...: small classes run out and the others continue.
    # They take turns in a shuffled order, so that an incomplete last round favours no class.
    _, class_of = torch.unique(labels.cpu()[order], return_inverse=True)
    turn = torch.randperm(classes, generator=generator(seed, 0, "balanced subset: turns"))[class_of]
    chosen = order[torch.argsort(rank * classes + turn)[:total]]
    return chosen.sort().values.to(labels.device)


def _shuffled_by_class(labels: Tensor, seed: int, purpose: str) -> tuple[Tensor, Tensor, Tensor]:
    """Indices grouped by class and shuffled within it, their ranks in the class, and its size: (N,) each."""
    shuffled = torch.randperm(len(labels), generator=generator(seed, 0, purpose))
    grouped, by_class = labels.cpu()[shuffled].sort(stable=True)
    _, sizes = torch.unique_consecutive(grouped, return_counts=True)
    size = torch.repeat_interleave(sizes, sizes)
    start = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    return shuffled[by_class], torch.arange(len(labels)) - start, size


def held_out_mask(labels: Tensor, keys: Sequence[str], spec: str, *, seed: int = 0) -> Tensor:
    """True for the held-out tenth, balanced over the classes, in whole groups: (N,) mask."""
    return held_out_tenth(labels, seed=seed, groups=groups_of(keys, spec))
