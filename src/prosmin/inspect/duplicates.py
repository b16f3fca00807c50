"""Groups of images that are copies of each other.

The features of the encoder and a sketch of the image propose pairs; the fingerprints decide (`copies.py`). A weak
encoder can therefore miss a copy, but it cannot put two different images into a group.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prosmin.encoder.neighbours import nearest
from prosmin.inspect.copies import Match, Prints, detailed

BY_FEATURES, BY_SKETCH = 8, 4
"""Neighbours that are compared with each image: a copy is nearly always the first."""


class DuplicateGroup(NamedTuple):
    """Copies of one image. A group with one near duplicate is a group of near duplicates."""

    kind: str  # "exact_duplicate": same bytes or same pixels; "near_duplicate": anything else
    members: tuple[int, ...]  # rows, the one to keep first: the largest, the sharpest, no link, the first
    score: float  # the least similarity of a member to the kept one, up to 1
    notes: tuple[str, ...]  # how each member was made of the kept one, whose own note is empty


def find_duplicates(
    *,
    content: Sequence[str],
    pixels: NDArray[np.int64],
    fingerprints: NDArray[np.uint8],
    features: NDArray[np.float32],
    sizes: NDArray[np.int64],
    sharpness: NDArray[np.float64],
    links: NDArray[np.bool_],
) -> list[DuplicateGroup]:
    """The groups of N images, in the order of the images to keep; every image is in at most one.

    `content` (N,) and `pixels` (N,) are hashes of files and of decoded images, `fingerprints` (N, F), `features`
    (N, D), `sizes` (N, 2) height and width, `links` (N,) which files are symbolic links: without its target, a link
    that is kept would lead nowhere. Every member of a group is a copy of the kept image, not only of another member.
    Images of nearly one colour are grouped only if their pixels are the same.
    """
    order = np.lexsort((np.arange(len(content)), links, -sharpness, -sizes.prod(1)))
    best = np.empty(len(order), dtype=np.int64)  # place in the order of preference, by row
    best[order] = np.arange(len(order))
    same = [(pixels[row], *sizes[row]) for row in range(len(content))]
    exact = _components(len(content), [*_repeats(content), *_repeats(same)], by=best)
    twins = {rows[0]: rows for rows in exact}

    rows = np.array(sorted(twins), dtype=np.int64)
    rows = rows[detailed(fingerprints[rows])]  # (M,): one image of each kind
    near = _near(Prints(fingerprints[rows]), torch.from_numpy(features[rows]), best[rows])
    groups = []
    for kept, matches in near.items():
        others = {int(rows[other]): match for other, match in matches.items()}
        groups.append(_group(int(rows[kept]), others, twins, content))
    grouped = {row for group in groups for row in group.members}
    groups += [_group(row, {}, twins, content) for row in twins if len(twins[row]) > 1 and row not in grouped]
    return sorted(groups, key=lambda group: group.members[0])


def _group(kept: int, others: dict[int, Match], twins: dict[int, list[int]], content: Sequence[str]) -> DuplicateGroup:
    """The kept image, its exact copies, and its near copies with theirs."""
    members, notes = [kept], [""]
    for row in twins[kept][1:]:
        members.append(row)
        notes.append("same bytes" if content[row] == content[kept] else "same pixels")
    for row, match in others.items():
        members += twins[row]
        notes += [match.how] * len(twins[row])
    score = min((match.score for match in others.values()), default=1.0)
    return DuplicateGroup("near_duplicate" if others else "exact_duplicate", tuple(members), score, tuple(notes))


def _near(prints: Prints, features: Tensor, best: NDArray[np.int64]) -> dict[int, dict[int, Match]]:
    """Image to keep -> its near copies, of M different images with places in the order of preference (M,)."""
    if len(features) < 2:
        return {}
    features = features - features.mean(0)
    neighbours = nearest(features, features, min(2 * BY_FEATURES, len(features) - 1), exclude_self=True)[1]
    strict = torch.zeros(len(features), dtype=torch.bool)
    if neighbours.shape[1] == 2 * BY_FEATURES:
        # The farther half: unless there are very many copies of one image, none of them is one.
        strict = prints.alike(neighbours[:, BY_FEATURES:])
    pairs = _candidates(prints, neighbours[:, :BY_FEATURES])
    found = {(match.first, match.second): match for match in prints.matches(pairs, strict=strict)}
    # In a large group some copies were not among the neighbours of the image to keep.
    missing = [
        (min(group[0], other), max(group[0], other))
        for group in _components(len(features), found, by=best)
        for other in group[1:]
    ]
    missing = [pair for pair in missing if pair not in found]
    if missing:
        more = prints.matches(torch.tensor(missing), strict=strict)
        found |= {(match.first, match.second): match for match in more}
    return _stars(found, by=best)


def _candidates(prints: Prints, neighbours: Tensor) -> Tensor:
    """Pairs (P, 2) that may be copies, the lower number first, each once: neighbours (M, k), and similar sketches."""
    count = len(neighbours)
    own = torch.arange(count)
    sketches, mirrored = prints.sketches(), prints.sketches(mirrored=True)
    bank, k = sketches - sketches.mean(0), min(BY_SKETCH, count - 1)
    queries = (bank, mirrored - sketches.mean(0))
    similar = [nearest(bank, some, k, groups=own, query_groups=own)[1] for some in queries]
    others = torch.cat([neighbours, *similar], dim=1)  # (M, K)
    own = own[:, None].expand_as(others)
    pairs = (torch.minimum(own, others) * count + torch.maximum(own, others)).unique()
    return torch.stack([pairs // count, pairs % count], dim=1)


def _stars(matches: dict[tuple[int, int], Match], *, by: NDArray[np.int64]) -> dict[int, dict[int, Match]]:
    """Groups around the best image that is left, of its direct copies only: a chain of copies is cut."""
    near: dict[int, dict[int, Match]] = {}
    for (first, second), match in matches.items():
        near.setdefault(first, {})[second] = match
        near.setdefault(second, {})[first] = match
    place: Callable[[int], int] = by.__getitem__
    taken: set[int] = set()
    groups = {}
    for row in sorted(near, key=place):
        others = [other for other in sorted(near[row], key=place) if other not in taken]
        if row not in taken and others:
            groups[row] = {other: near[row][other] for other in others}
            taken |= {row, *others}
    return groups


def _repeats(keys: Sequence[object]) -> list[tuple[int, int]]:
    """Each later occurrence of a key with the first one."""
    first: dict[object, int] = {}
    found = ((first.setdefault(key, row), row) for row, key in enumerate(keys))
    return [(start, row) for start, row in found if start != row]


def _components(count: int, pairs: Iterable[tuple[int, int]], *, by: NDArray[np.int64]) -> list[list[int]]:
    """Connected components of `count` rows, each sorted by preference."""
    parent = list(range(count))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = row = parent[parent[row]]
        return row

    for first, second in pairs:
        parent[root(first)] = root(second)
    members: dict[int, list[int]] = {}
    for row in np.argsort(by).tolist():
        members.setdefault(root(row), []).append(row)
    return list(members.values())
