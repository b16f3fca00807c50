"""Is one image a copy of another? Fingerprints are compared as a whole, mirrored, and one with crops of the other.

Two numbers decide. The correlation of brightness shows that light and dark areas agree. The correlation of detail,
which is brightness minus its local mean, shows that edges and textures agree too: different photographs of similar
scenes can reach a high first number, but only copies reach a high second one. Neither depends on brightness or
contrast.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from prosmin.inspect.fingerprint import COLOUR_SIDE, SIDE


class Rule(NamedTuple):
    """The least correlations of a copy, and how many pixels across the local mean is taken."""

    brightness: float
    detail: float
    local: int


# Chosen on Flowers-102's training images, Imagenette, CIFAR-10 and SVHN; judged on others in benchmarks/duplicates.py.
# 99 % of copies of the whole have a detail above 0.95, other photographs at most 0.66; crops 0.94, others at most 0.87.
WHOLE, CROP = Rule(0.9, 0.85, local=5), Rule(0.95, 0.9, local=3)
ALIKE = 0.3  # detail of an image and its neighbours: above it, different images look alike, as do digits and icons
STRICT = WHOLE._replace(detail=0.97)  # the rule for those
MAX_GAIN = 1.5  # ratio of the contrasts of copies
MAX_COLOUR, COLOUR_NOISE = 0.5, 4.0  # difference between the colours of copies: share of their variance; grey levels
MIN_CONTRAST = 1.0  # standard deviation of detail, in grey levels: below it, compression noise decides the correlation

_COARSE, _FINE, _COLOUR = 8, 16, 4  # samples per side: to search crops, to compare them, to compare their colours
_SHORTEST, _SPACING = 20, 2  # length of the shortest window that is tried, and pixels from one to the next
_PROMISING = 0.88  # coarse correlation of a crop that is examined further; real crops have 0.89 and more
_STEPS = (1.0, 0.5, 0.25, 0.125)  # pixels by which the edges of a window are moved until it fits best
_CHUNK = 128  # images or pairs at once: their windows take 26 MB


class Match(NamedTuple):
    """Two images that are copies of each other."""

    first: int
    second: int
    score: float  # correlation of detail
    how: str  # "resized or re-encoded", "mirrored" or "cropped"


class Prints:
    """The fingerprints of N images, compared in pairs."""

    def __init__(self, fingerprints: NDArray[np.uint8]) -> None:
        """(N, F) -> brightness (N, 32, 32) and colour (N, 2, 8, 8), both uint8: 100,000 images take 115 MB."""
        brightness, colour = np.split(fingerprints, [SIDE**2], axis=1)
        self.brightness = torch.from_numpy(brightness.reshape(-1, SIDE, SIDE).copy())
        self.colour = torch.from_numpy(colour.reshape(-1, 2, COLOUR_SIDE, COLOUR_SIDE).copy())

    def sketches(self, *, mirrored: bool = False) -> Tensor:
        """Short vectors that are close for copies of the whole image: (N, 96)."""
        parts = []
        for first in range(0, len(self.brightness), 4096):
            part = slice(first, first + 4096)
            brightness, colour = self.brightness[part].float(), self.colour[part].float() - 128
            if mirrored:
                brightness, colour = brightness.flip(-1), colour.flip(-1)
            shape = _unit(_pooled(brightness, _COARSE).flatten(1))
            colour = F.avg_pool2d(colour, COLOUR_SIDE // _COLOUR).flatten(1)
            # The 20 keeps the colour noise of grey images small; colours count less than shapes.
            parts.append(torch.cat([shape, 0.7 * colour / (colour.norm(dim=1, keepdim=True) + 20)], dim=1))
        return torch.cat(parts)

    def alike(self, neighbours: Tensor) -> Tensor:
        """Whether each image resembles most of its neighbours (N, k) in detail: (N,)."""
        found = []
        for rows in torch.arange(len(neighbours)).split(_CHUNK):
            own = _unit(_detail(self.brightness[rows].float(), WHOLE.local).flatten(1))  # (n, 1024)
            others = _detail(self.brightness[neighbours[rows].flatten()].float(), WHOLE.local)
            others = _unit(others.flatten(1)).view(len(rows), -1, own.shape[1])  # (n, k, 1024)
            found.append((others @ own[:, :, None])[..., 0].median(1).values >= ALIKE)
        return torch.cat(found)

    def matches(self, pairs: Tensor, *, strict: Tensor) -> Iterator[Match]:
        """Those of the pairs (P, 2) that are copies, each once; of `strict` images (N,) only nearly perfect ones."""
        hard = strict[pairs].any(1)
        for part in pairs[hard].split(64 * _CHUNK):
            yield from self._whole_matches(part, rule=STRICT)
        for part in pairs[~hard].split(64 * _CHUNK):
            found = list(self._whole_matches(part, rule=WHOLE))
            yield from found
            known = {match[:2] for match in found}
            rest = [pair for pair in part.tolist() if tuple(pair) not in known]
            yield from self._crop_matches(torch.tensor(rest, dtype=torch.int64).view(-1, 2))

    def _whole_matches(self, pairs: Tensor, *, rule: Rule) -> Iterator[Match]:
        for some in pairs.split(8 * _CHUNK):
            scores = self._whole(some, mirrored=False, rule=rule)
            yield from _listed(some, scores, "resized or re-encoded")
            some = some[scores.isnan()]
            yield from _listed(some, self._whole(some, mirrored=True, rule=rule), "mirrored")

    def _crop_matches(self, pairs: Tensor) -> Iterator[Match]:
        scores = self._crops(torch.cat([pairs, pairs.flip(1)]))  # either may be the crop
        best = scores.nan_to_num(-1).view(2, -1).amax(0)
        yield from _listed(pairs, best.where(best >= 0, torch.nan), "cropped")

    def _whole(self, pairs: Tensor, *, mirrored: bool, rule: Rule) -> Tensor:
        """Scores of pairs whose images are copies as a whole, NaN for others: (P, 2) -> (P,)."""
        brightness, colour = self.brightness[pairs].float(), self.colour[pairs].float()  # (P, 2, ...)
        others = (brightness[:, 1], colour[:, 1])
        if mirrored:
            others = (others[0].flip(-1), others[1].flip(-1))
        return _scores(brightness[:, 0], others[0], colour[:, 0], others[1], rule=rule)

    def _crops(self, pairs: Tensor) -> Tensor:
        """Scores of pairs (whole, crop) whose second image is a crop of the first, NaN for others: (P, 2) -> (P,)."""
        found = torch.full((len(pairs),), torch.nan)
        correlations, windows = self._best_windows(pairs)
        for rows in torch.nonzero(correlations > _PROMISING)[:, 0].split(_CHUNK):
            whole, crop = pairs[rows].T
            brightness, inside = self.brightness[whole].float(), _pooled(self.brightness[crop].float(), _FINE)
            window = _fitted(brightness, inside, windows[rows])
            colour = _cut(self.colour[whole].float(), window[:, None] * (COLOUR_SIDE / SIDE), _COLOUR)
            found[rows] = _scores(
                _cut(brightness, window, _FINE),
                inside,
                colour,
                F.avg_pool2d(self.colour[crop].float(), COLOUR_SIDE // _COLOUR),
                rule=CROP,
            )
        return found

    def _best_windows(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """The window of the first image most like the second: (P, 2) -> correlations (P,), windows (P, 4)."""
        edges = _all_edges()  # (E, 2)
        samples = _sampling(edges, _COARSE, SIDE).flatten(0, 1)  # (E * 8, 32)
        correlations, chosen = torch.empty(len(pairs)), torch.empty(len(pairs), dtype=torch.int64)
        order = pairs[:, 0].argsort(stable=True)
        wholes, counts = pairs[order, 0].unique_consecutive(return_counts=True)
        of_whole = order.split(counts.tolist())
        for first in range(0, len(wholes), _CHUNK):
            some = self.brightness[wholes[first : first + _CHUNK]].float()
            cuts = (samples @ some @ samples.T).view(-1, len(edges), _COARSE, len(edges), _COARSE)
            cuts = _unit(cuts.transpose(2, 3).reshape(len(some), len(edges) ** 2, _COARSE**2))
            for cut, rows in zip(cuts, of_whole[first : first + _CHUNK], strict=False):  # every window, every crop
                crops = _unit(_pooled(self.brightness[pairs[rows, 1]].float(), _COARSE).flatten(1))
                correlations[rows], chosen[rows] = (cut @ crops.T).max(0)
        return correlations, torch.cat([edges[chosen // len(edges)], edges[chosen % len(edges)]], dim=1)


def detailed(fingerprints: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether each image has enough contrast to be compared at all: (N, F) -> (N,)."""
    brightness = torch.from_numpy(fingerprints[:, : SIDE**2].reshape(-1, SIDE, SIDE).copy())
    return torch.cat(
        [_spread(_detail(part.float(), WHOLE.local)) >= MIN_CONTRAST for part in brightness.split(4096)]
    ).numpy()


def _listed(pairs: Tensor, scores: Tensor, how: str) -> Iterator[Match]:
    for (first, second), score in zip(pairs.tolist(), scores.tolist(), strict=True):
        if score == score:  # not NaN
            yield Match(first, second, score, how)


def _scores(a: Tensor, b: Tensor, colour_a: Tensor, colour_b: Tensor, *, rule: Rule) -> Tensor:
    """Correlations of detail, NaN where the images are no copies: 2 x (P, n, n), 2 x (P, 2, m, m) -> (P,)."""
    detail = _correlation(_detail(a, rule.local), _detail(b, rule.local))
    gain = (_spread(a) / _spread(b).clamp_min(1e-3)).log().abs()
    shapes = (_correlation(a, b) >= rule.brightness) & (detail >= rule.detail) & (gain <= math.log(MAX_GAIN))
    variance = torch.maximum(_spread(colour_a), _spread(colour_b)) ** 2
    difference = (colour_a - colour_b).pow(2).mean((1, 2, 3))
    colours = difference <= MAX_COLOUR * variance + COLOUR_NOISE**2
    return detail.where(shapes & colours, torch.nan)


def _fitted(whole: Tensor, crop: Tensor, window: Tensor) -> Tensor:
    """Windows moved until they fit the crops: (P, 32, 32), (P, 16, 16), (P, 4) -> (P, 4)."""
    rows, target = torch.arange(len(window)), _unit(crop.flatten(1))[:, :, None]
    moves = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0])] * 2)  # (9, 2): of both edges
    for step in _STEPS:
        down, across = ((edges[:, None] + step * moves).clamp(0, SIDE) for edges in window.split(2, dim=1))  # (P, 9, 2)
        left = _sampling(down, _FINE, SIDE).flatten(1, 2)  # (P, 9 * 16, 32)
        right = _sampling(across, _FINE, SIDE).flatten(1, 2)
        cuts = (left @ whole @ right.mT).view(-1, len(moves), _FINE, len(moves), _FINE).transpose(2, 3)
        best = (_unit(cuts.reshape(len(window), len(moves) ** 2, _FINE**2)) @ target)[..., 0].argmax(1)
        window = torch.cat([down[rows, best // len(moves)], across[rows, best % len(moves)]], dim=1)
    return window


def _all_edges() -> Tensor:
    """Where the windows of the first search begin and end along one side: (E, 2)."""
    lengths = range(_SHORTEST, SIDE + 1, _SPACING)
    edges = [(start, start + length) for length in lengths for start in range(0, SIDE - length + 1, _SPACING)]
    return torch.tensor(edges, dtype=torch.float32)


def _cut(images: Tensor, windows: Tensor, count: int) -> Tensor:
    """Means of count x count cells of windows (top, bottom, left, right): (..., n, n), (..., 4) -> (..., c, c)."""
    down, across = (_sampling(edges, count, images.shape[-1]) for edges in windows.split(2, dim=-1))
    return down @ images @ across.mT


def _sampling(edges: Tensor, count: int, side: int) -> Tensor:
    """Weights of `side` pixels in the means of `count` cells between two edges: (..., 2) -> (..., count, side)."""
    start, end = edges[..., :1], edges[..., 1:]
    borders = start + (end - start) * torch.arange(count + 1) / count  # (..., count + 1)
    covered = (borders[..., None] - torch.arange(side)).clamp(0, 1)  # of each pixel, up to each border
    return covered.diff(dim=-2) / (end - start)[..., None] * count


def _pooled(images: Tensor, count: int) -> Tensor:
    """(P, 32, 32) -> (P, count, count)."""
    return F.avg_pool2d(images[:, None], SIDE // count)[:, 0]


def _detail(images: Tensor, local: int) -> Tensor:
    """Brightness minus its local mean: (P, n, n) -> (P, n, n)."""
    padded = F.pad(images[:, None], [local // 2] * 4, mode="replicate")
    return images - F.avg_pool2d(padded, local, stride=1)[:, 0]


def _correlation(a: Tensor, b: Tensor) -> Tensor:
    """(P, n, n), (P, n, n) -> (P,); 0 where one is constant."""
    return (_unit(a.flatten(1)) * _unit(b.flatten(1))).sum(1)


def _spread(images: Tensor) -> Tensor:
    """Standard deviation of each image: (P, ...) -> (P,)."""
    values = images.flatten(1)
    return (values - values.mean(1, keepdim=True)).pow(2).mean(1).sqrt()  # std() warns of no images


def _unit(vectors: Tensor) -> Tensor:
    """Vectors of mean 0 and length 1, or 0 where all numbers are equal."""
    return F.normalize(vectors - vectors.mean(-1, keepdim=True), dim=-1, eps=1e-3)
