"""Images that belong, as an encoder sees them: how far a new image is from them, and how far they are apart there."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from prosmin.encoder.detectors import chord
from prosmin.encoder.neighbours import search
from prosmin.encoder.space import Space, check_features, fit_space

NEIGHBOURS = 10
"""Neighbours that an image is compared with; of a small set a third of it. See benchmarks/geometry.py."""

AMONG_THEMSELVES = 50
"""The same where images are compared with each other, so that some OOD images of one kind do not hide each other."""

AROUND = (5, 10, 20)
"""Neighbours whose disagreement counts, of a small set at most a third of it: kinds of images are small and large."""

ROUNDS = 2
"""How often each image's place is replaced by the mean of its neighbours' places, which removes what is its own."""

BELONGS = 0.9
"""Share of the images that belong; the others, the furthest from their neighbours, are less certain than all of these.
"""

FEW = 100
"""Images of which the distance counts twice; the fewer they are the more, since what few neighbours say of each other
is noise. See benchmarks/disagreement.py for these four numbers."""

MOST = 10_000
"""Images that the disagreement looks at: more do not make it better, and every one is compared with every other."""

SAME = 0.15
"""A query nearer to an image than this share of the usual distance between neighbours is that image, in bfloat16."""

_ROWS = 4096  # at most used for the moments
_VALUES = 2**24  # of neighbours' places in memory at once
_SMALLEST = 1e-6  # standard deviation, for images that are all alike


class Nearest(NamedTuple):
    """Of N images: the row of the nearest image of the neighbourhood, its distance, and the score."""

    row: Tensor
    distance: Tensor
    score: Tensor


class Located(NamedTuple):
    """Of N images: what `Nearest` has, the disagreement of the neighbours, and the uncertainty."""

    row: Tensor
    distance: Tensor
    score: Tensor
    disagreement: Tensor
    uncertainty: Tensor


@dataclass(frozen=True, kw_only=True)
class Neighbourhood:
    """M images, with the space in which distances to them are measured.

    An image is never its own neighbour: rows of the same group as the query are left out, if groups are given.
    """

    features: Tensor  # (M, D)
    space: Space  # of a background: which directions vary in images of all kinds
    groups: Tensor | None = None  # (M,): which image each row is, see neighbours.py
    neighbours: int = NEIGHBOURS  # that count for the OOD score

    def __post_init__(self) -> None:
        check_features(self.features, least=2)

    @property
    def k(self) -> int:
        """Neighbours that the OOD score looks at."""
        return min(self.neighbours, max(1, len(self.features) // 3))

    def __call__(self, features: Tensor, groups: Tensor | None = None) -> Tensor:
        """OOD score, larger is more OOD: the mean distance to the k nearest images. (N, D), (N,) -> (N,)."""
        return self.nearest(features, groups).score

    def nearest(self, features: Tensor, groups: Tensor | None = None) -> Nearest:
        """The nearest image and the OOD score; on a GPU nothing waits for the result."""
        cosines, rows = search(self._bank, self.space(features), self.k, groups=self.groups, query_groups=groups)
        distances = chord(cosines)  # (N, k)
        return Nearest(rows[:, 0], distances[:, 0], distances.mean(1))

    def recognise(self, features: Tensor) -> Tensor:
        """The group of the image that each of these is, -1 for other images: (N, D) -> (N,); by features alone."""
        row, distance, _ = self.nearest(features)
        assert self.groups is not None
        return torch.where(distance < SAME * self._usual_gap, self.groups[row], -1)

    def uncertainty(self, features: Tensor, groups: Tensor | None = None) -> Tensor:
        """How unclear an image's place is: (N, D), (N,) -> (N,); larger is less certain.

        The disagreement of its neighbours plus the OOD score, which counts 1 + FEW / M times, in standard deviations of
        these images themselves. An image that is further away than BELONGS of them comes after all others, by its
        distance: noise may have neighbours that agree.
        """
        return self.locate(features, groups).uncertainty

    def locate(self, features: Tensor, groups: Tensor | None = None) -> Located:
        """Everything about the places of images (N, D), of these groups (N,)."""
        nearest, disagreement = self.nearest(features, groups), self.disagreement(features, groups)
        usual = self._usual
        unclear = self._unclear(nearest.score, disagreement)
        near = ((unclear - usual.mean) / usual.spread).clamp_max(usual.largest)
        far = usual.largest + (nearest.score - usual.limit) / usual.score_spread
        return Located(*nearest, disagreement, torch.where(nearest.score > usual.limit, far, near))

    def _unclear(self, score: Tensor, disagreement: Tensor) -> Tensor:
        return disagreement + (1 + FEW / len(self.features)) * score

    def disagreement(self, features: Tensor, groups: Tensor | None = None) -> Tensor:
        """How different the images around this one are, 0 to about 1: (N, D), (N,) -> (N,).

        One minus the mean cosine between the smoothed places of the nearest images, averaged over AROUND.
        """
        found = self._some
        counts = sorted({max(2, min(count, len(found.features) // 3)) for count in AROUND})
        rows = found._own_rows(features, counts[-1], groups)
        return torch.stack([_dispersion(found._places, rows[:, :count]) for count in counts]).mean(0)

    def dispersion(self, features: Tensor, groups: Tensor | None = None) -> Tensor:
        """One minus the mean cosine between the k nearest images, 0 to about 1: (N, D), (N,) -> (N,).

        The disagreement without smoothing, for one number of neighbours: the simplest ranking of its kind.
        """
        return _dispersion(self._own_space[1], self._own_rows(features, max(2, min(NEIGHBOURS, self.k)), groups))

    def to(self, device: torch.device | str) -> "Neighbourhood":
        """The same on the device; itself, with what it has computed, if it is there already."""
        if self.features.device == torch.device(device):
            return self
        groups = None if self.groups is None else self.groups.to(device)
        return replace(self, features=self.features.to(device), space=self.space.to(device), groups=groups)

    @cached_property
    def _bank(self) -> Tensor:
        return self.space(self.features)

    @cached_property
    def _some(self) -> "Neighbourhood":
        """At most MOST of these images."""
        if len(self.features) <= MOST:
            return self
        rows = torch.linspace(0, len(self.features) - 1, MOST, dtype=torch.float64).long().to(self.features.device)
        return replace(self, features=self.features[rows], groups=None if self.groups is None else self.groups[rows])

    @cached_property
    def _own_space(self) -> tuple[Space, Tensor]:
        """The space of these images themselves, and the images in it: it separates kinds within them best."""
        own = fit_space(self.features)
        return own, own(self.features)

    def _own_rows(self, features: Tensor, k: int, groups: Tensor | None) -> Tensor:
        """The rows of the k nearest images in the space of these images: (N, k)."""
        own, bank = self._own_space
        return search(bank, own(features), k, groups=self.groups, query_groups=groups)[1]

    @cached_property
    def _places(self) -> Tensor:
        """Each image's place in its own space after ROUNDS of smoothing, centred and at length 1: (M, D)."""
        places, groups = self._own_space[1], self._each.groups
        _, rows = search(places, places, min(NEIGHBOURS, self.k), groups=groups, query_groups=groups)
        for _ in range(ROUNDS):
            places = F.normalize(torch.cat([places[some].mean(1) for some in _parts(rows, places)]), dim=1)
        return F.normalize(places - places.mean(0), dim=1)

    @cached_property
    def _each(self) -> "Neighbourhood":
        """The same with a group for each image, so that none is its own neighbour."""
        rows = torch.arange(len(self.features), device=self.features.device)
        return self if self.groups is not None else replace(self, groups=rows)

    @cached_property
    def _usual_gap(self) -> Tensor:
        """The median distance of some of these images to the nearest other one."""
        each, step = self._each, -(-len(self.features) // _ROWS)
        assert each.groups is not None
        return each.nearest(self.features[::step], each.groups[::step]).distance.median()

    @cached_property
    def _usual(self) -> "_Usual":
        """What is usual among some of these images, each compared with the others."""
        each, step = self._each, -(-len(self.features) // _ROWS)
        assert each.groups is not None
        some = self.features[::step], each.groups[::step]
        score = each(*some)
        unclear = each._unclear(score, each.disagreement(*some))
        mean, spread = unclear.mean(), _spread(unclear)
        rank = min(len(score), math.ceil(BELONGS * (len(score) + 1))) - 1  # as of new images, on average
        largest = (unclear.max() - mean) / spread
        return _Usual(mean, spread, largest, score.sort().values[rank], _spread(score))


class _Usual(NamedTuple):
    """How unclear the places of images that belong are (mean, standard deviation, largest), and their OOD scores."""

    mean: Tensor
    spread: Tensor
    largest: Tensor  # in standard deviations
    limit: Tensor  # the score that BELONGS of them do not exceed
    score_spread: Tensor


def _spread(values: Tensor) -> Tensor:
    return values.std(correction=0).clamp_min(_SMALLEST)


def _parts(rows: Tensor, places: Tensor) -> tuple[Tensor, ...]:
    """Rows of neighbours (N, k) in parts whose places (n, k, D) fit into memory."""
    return rows.split(max(1, _VALUES // (rows.shape[1] * places.shape[1])))


def _dispersion(places: Tensor, rows: Tensor) -> Tensor:
    """One minus the mean cosine between the places (M, D) of these rows (N, k), of length 1: (N,)."""
    k = rows.shape[1]
    # |sum of k unit vectors|^2 = k + the cosines of all ordered pairs; the neighbours of all rows would fill memory
    length = torch.cat([places[some].sum(1).square().sum(1) for some in _parts(rows, places)])  # (n, k, D) -> (n,)
    return 1 - (length - k) / (k * (k - 1))
