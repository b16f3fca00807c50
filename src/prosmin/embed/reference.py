"""What belongs: the reference images, each image's own exclusion, and the distance from which an image is flagged."""

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from prosmin.data.sources import Source, group_names, place_of
from prosmin.data.sources.folder import FolderSource
from prosmin.data.unreadable import CheckedSource
from prosmin.encoder import LEAST_REFERENCE
from prosmin.encoder.detectors import KnnDistance, fit_knn_distance
from prosmin.errors import ProsminError, UsageError
from prosmin.files import writing
from prosmin.randomness import generator


def own_groups(source: CheckedSource, belonging: CheckedSource, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Groups of the reference's images with these numbers (M,), and of all images of a set (N,), -1: of none."""
    known: dict[str, int] = {}
    groups = [known.setdefault(name, len(known)) for name in _names(belonging, numbers.tolist())]
    own = [known.get(name, -1) for name in _names(source, range(len(source)))]
    return torch.tensor(groups), torch.tensor(own)


def _names(source: CheckedSource, numbers: list[int] | range) -> list[str]:
    """What makes images the same: the path of a file; elsewhere the SPEC and the number.

    Patches of the embedded photographs overlap within a block of theirs: the whole block is one image.
    """
    opened = source.source
    groups = group_names(source.spec, (opened.key(i) for i in numbers))
    if groups is not None:
        return groups
    if isinstance(opened, FolderSource):
        root = os.path.realpath(opened.root)
        return [os.path.join(root, opened.names[i]) for i in numbers]
    place = place_of(source.spec)
    return [f"{place} {i}" for i in numbers]


MOST = 50_000
"""Images of the reference that are used, chosen at random: a bank of this size fits everywhere."""

JUDGED = 5_000
"""Images of the bank that are measured against the others, chosen at random: more would move no threshold."""

FALSE_ALARMS = 0.05
"""The rate where none was asked for, if the reference can tell it."""

_SIMILARITIES = 2**25  # held at once: 128 MiB in float32


class Measured(NamedTuple):
    """Of N images: which of the bank is the nearest, how far it is, and how far the k-th nearest is: the score."""

    nearest: Tensor
    near: Tensor
    score: Tensor


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The bank with its k, number and group of each of its rows (M,), and the scores (n,) of its own images, rising.

    An image is never compared with the rows of its own group: with itself.
    """

    distance: KnnDistance
    numbers: Tensor
    groups: Tensor
    scores: Tensor

    def measure(self, features: Tensor, own: Tensor | None = None) -> Measured:
        """The nearest image of the bank by its number in the source, and the distances: (N, D) -> (N,) each.

        `own` (N,) are the groups of the images, which are passed over; -1 where an image is not of the reference.
        """
        found = _measure(self.distance, features, self.groups, own)
        return found._replace(nearest=self.numbers[found.nearest])

    def threshold(self, false_alarms: float) -> float:
        """A new image of the same kind scores above it with a chance of at most `false_alarms`.

        Among n + 1 exchangeable scores the new one has every rank alike: the threshold is the r-th smallest of the n,
        r = ceil((n + 1) (1 - false_alarms)).
        """
        return float(self.scores[_rank(len(self.scores), false_alarms) - 1])

    def reached(self, false_alarms: float) -> float:
        """The rate of that threshold, a multiple of 1 / (n + 1): the one asked for, or the next below it."""
        count = len(self.scores)
        return 1 - _rank(count, false_alarms) / (count + 1)

    def to(self, device: torch.device) -> "Reference":
        """The same with its bank on the device."""
        distance = KnnDistance(bank=self.distance.bank.to(device), k=self.distance.k)
        return replace(self, distance=distance, numbers=self.numbers.to(device), groups=self.groups.to(device))


def choose(source: Source) -> Tensor:
    """The numbers of the reference's images that are used, rising: all, or `MOST` of them."""
    if len(source) <= MOST:
        return torch.arange(len(source))
    return torch.randperm(len(source), generator=generator(0, 0, "reference"))[:MOST].sort().values


def check_size(count: int, spec: str) -> None:
    """An error where so few images make no reference."""
    if count < LEAST_REFERENCE:
        raise ProsminError(
            f"The reference {spec} has {count} readable images; allowed: {LEAST_REFERENCE} or more. "
            "Name more with --reference, or do without a score: --reference none."
        )


def possible_rate(count: int, asked: float | None) -> float:
    """The rate asked for; where none was, 5 % or the least that so many scores tell. Less than that is an error."""
    wanted = FALSE_ALARMS if asked is None else asked
    if _rank(count, wanted) <= count:
        return wanted
    if asked is None:
        return 1 / (count + 1)
    least = math.ceil(1e5 / (count + 1)) / 1e5
    needed = pictures_needed(asked)
    more = f"a --reference of {needed} images or more" if needed <= JUDGED else "another --reference"
    raise UsageError(
        f"--false-alarms is {asked:g}, but the threshold is set by {count} images of the reference, which tell rates "
        f"from {least:g} on. Give --false-alarms {least:g} or more, {more}, or do without a score: --reference none."
    )


def pictures_needed(false_alarms: float) -> int:
    """The images that tell of such a rate."""
    return math.ceil(1 / false_alarms - 1 - 1e-9)


def fit(features: Tensor, numbers: Tensor, groups: Tensor) -> Reference:
    """Bank and scores: (M, D), and each row's number in the source and group (M,)."""
    if not bool(features.isfinite().all()):
        raise ProsminError("The features of the reference hold values that are not finite; is the checkpoint sound?")
    distance = fit_knn_distance(features)
    judged = torch.randperm(len(features), generator=generator(0, 0, "threshold"))[:JUDGED].to(features.device)
    scores = _measure(distance, features[judged], groups, groups[judged]).score.cpu().sort().values
    return Reference(distance=distance, numbers=numbers, groups=groups, scores=scores)


def write_reference(reference: Reference, path: Path) -> None:
    """Keep it for the processes beside this one, and for the next start."""
    distance = reference.distance
    with writing(path) as part:
        rows = {"bank": distance.bank.cpu(), "numbers": reference.numbers.cpu(), "groups": reference.groups.cpu()}
        save_file(rows | {"scores": reference.scores, "k": torch.tensor(distance.k)}, part)


def read_reference(path: Path) -> Reference:
    """What `write_reference` wrote."""
    tensors = load_tensors(path)
    distance = KnnDistance(bank=tensors["bank"], k=int(tensors["k"]))
    return Reference(distance=distance, **{name: tensors[name] for name in ("numbers", "groups", "scores")})


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Those of a file that was begun before; one that is damaged is named."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ProsminError(f"{path} is damaged: {error}. Remove it; the same command makes it again.") from None


def _measure(distance: KnnDistance, features: Tensor, groups: Tensor, own: Tensor | None) -> Measured:
    """The nearest row of the bank, whose rows have length 1, and the distances: (N, D) -> (N,) each.

    Nothing is asked of a GPU, which so works on while the next batch is prepared.
    """
    rows = max(1, _SIMILARITIES // len(distance.bank))
    best, nearest = [], []
    for first in range(0, len(features), rows):
        part = F.normalize(features[first : first + rows].to(distance.bank), dim=1)
        similarity = part @ distance.bank.T  # (rows, M)
        if own is not None:
            similarity.masked_fill_(own[first : first + rows, None] == groups, -torch.inf)
        found = similarity.topk(distance.k, dim=1)
        best.append(found.values)
        nearest.append(found.indices[:, 0])
    distances = (2 - 2 * torch.cat(best)).clamp_min(0).sqrt()  # (N, k)
    return Measured(torch.cat(nearest), distances[:, 0], distances[:, -1])


def _rank(count: int, false_alarms: float) -> int:
    return math.ceil((count + 1) * (1 - false_alarms) - 1e-9)  # a product such as 19.000000000000004 is 19
