"""Images that belong, as an encoder sees them: how far a new image is from them, and how far they are apart there."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from prosmin.encoder.detectors import chord
from prosmin.encoder.neighbours import search
from prosmin.encoder.space import Space, check_features, fit_space

NEIGHBOURS = 10
"""Neighbours that an image is compared with; of a small set a third of it. See benchmarks/geometry.py."""

AMONG_THEMSELVES = 50
"""The same where images are compared with each other, so that some OOD images of one kind do not hide each other."""

_ROWS = 4096  # whose neighbours are in memory at once, and at most used for the moments
_SMALLEST = 1e-6  # standard deviation, for images that are all alike


class Nearest(NamedTuple):
    """Of N images: the row of the nearest image of the neighbourhood, its distance, and the score."""

    row: Tensor
    distance: Tensor
    score: Tensor


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

    def uncertainty(self, features: Tensor, groups: Tensor | None = None) -> Tensor:
        """How unclear an image's place is: (N, D), (N,) -> (N,); 0 is average, larger is less certain.

        The larger of the OOD score and the dispersion of its neighbours, each in standard deviations of these images
        themselves. The dispersion alone ranks errors as well, but can be lowest for noise, far from all images.
        """
        (far, far_spread), (apart, apart_spread) = self._moments
        distance = (self(features, groups) - far) / far_spread
        return torch.maximum(distance, (self.dispersion(features, groups) - apart) / apart_spread)

    def dispersion(self, features: Tensor, groups: Tensor | None = None) -> Tensor:
        """One minus the mean cosine between the k nearest images, 0 to about 1: (N, D), (N,) -> (N,).

        Where the images around this one are alike, its place is clear; where they differ, it lies between kinds.
        """
        own, bank = self._own_space
        k = max(2, min(NEIGHBOURS, self.k))
        _, rows = search(bank, own(features), k, groups=self.groups, query_groups=groups)
        # |sum of k unit vectors|^2 = k + the cosines of all ordered pairs; the neighbours of all rows would fill memory
        length = torch.cat([bank[some].sum(1).square().sum(1) for some in rows.split(_ROWS)])  # (n, k, D) -> (n,)
        return 1 - (length - k) / (k * (k - 1))

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
    def _own_space(self) -> tuple[Space, Tensor]:
        """The space of these images themselves, and the images in it: it separates kinds within them best."""
        own = fit_space(self.features)
        return own, own(self.features)

    @cached_property
    def _moments(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Mean and standard deviation of score and dispersion of these images, each compared with the others."""
        rows = torch.arange(len(self.features), device=self.features.device)
        others = self if self.groups is not None else replace(self, groups=rows)
        some = rows[:: -(-len(rows) // _ROWS)]
        assert others.groups is not None
        values = [score(self.features[some], others.groups[some]) for score in (others, others.dispersion)]
        return tuple((each.mean(), each.std(correction=0).clamp_min(_SMALLEST)) for each in values)  # type: ignore[return-value]
