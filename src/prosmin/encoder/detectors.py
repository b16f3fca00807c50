"""OOD scores without labels: fitted to reference features, or read from the forecast. Higher is stranger."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from prosmin import randomness
from prosmin.encoder.neighbours import nearest
from prosmin.errors import ProsminError
from prosmin.randomness import generator
from prosmin.scoring.distances import power_distance
from prosmin.scoring.gaussian import within_scores

_SMALLEST_SCALE = 1e-12  # keeps the logarithm finite where a forecast has no spread
_CPU_VALUES, _GPU_VALUES = 2**20, 2**25  # numbers held at once by the sampled score: a CPU's cache, a GPU's memory


def mean_log_scale(scale: Tensor) -> Tensor:
    """Mean over views and coordinates of ln(scale)."""
    _check_forecast(scale)
    return scale.clamp_min(_SMALLEST_SCALE).log().mean(dim=(0, 2))


def total_variance(mean: Tensor, scale: Tensor) -> Tensor:
    """Variance of the mixture of the views' forecasts, averaged over coordinates.

    mean over views of scale^2 + variance over views of mean.
    """
    _check_forecast(mean, scale)
    return scale.square().mean(dim=(0, 2)) + mean.var(dim=0, correction=0).mean(dim=1)


def cross_view_energy(mean: Tensor, scale: Tensor, *, samples: int = 16, seed: int = 0) -> Tensor:
    """Energy score of each view's forecast at every other view's mean, averaged over the V (V - 1) pairs.

    All images and views share one noise, so an image's score does not depend on its company.
    """
    _check_forecast(mean, scale)
    views, _, size = mean.shape
    if views < 2:
        raise ProsminError("The cross-view score compares the views of an image; 1 view was given, allowed: 2 or more.")
    # The score mirrors its noise, so half as many draws as samples.
    positions = torch.arange(samples // 2, device=mean.device)
    key = randomness.key(seed, 0, "cross-view energy")
    noise = randomness.normal(key, positions, (size,)).to(mean.dtype)  # (S / 2, K)
    score = partial(
        within_scores, distance=partial(power_distance, beta=1.0), estimator="paired", antithetic=True, lam=0.5
    )
    parts = []
    step = max(1, (_CPU_VALUES if mean.device.type == "cpu" else _GPU_VALUES) // (views * noise.numel()))
    for some, width in zip(mean.split(step, dim=1), scale.split(step, dim=1), strict=True):  # (V, n, K)
        scores = score(some, width, some, noise.expand(*some.shape[:2], -1, -1))  # (V, n, V): all pairs at once
        scores.diagonal(dim1=0, dim2=2).zero_()  # of a view with itself
        parts.append(scores.sum((0, 2)))
    return torch.cat(parts) / (views * (views - 1))


def _check_forecast(first: Tensor, second: Tensor | None = None) -> None:
    if first.ndim != 3 or first.numel() == 0 or (second is not None and second.shape != first.shape):
        shapes = " and ".join(str(tuple(t.shape)) for t in (first, second) if t is not None)
        raise ProsminError(f"The forecasts have shapes {shapes}; allowed: (V, N, K), the same for mean and scale.")


_RESTARTS = 4
_MAX_ROUNDS = 100


def kmeans(points: Tensor, clusters: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Centres (k, D) and each point's cluster (N,), for points (N, D).

    Lloyd's rounds from k-means++ starts; of four, the one with the least summed squared distance.
    """
    if not 1 <= clusters <= len(points):
        raise ProsminError(f"{len(points)} points cannot form {clusters} clusters; allowed: 1 to {len(points)}.")
    random = generator(seed, 0, "k-means")
    norms = points.square().sum(1)
    found = [_lloyd(points, norms, _plus_plus(points, norms, clusters, random)) for _ in range(_RESTARTS)]
    centres, assignment, _ = min(found, key=lambda result: result[2])
    return centres, assignment


def _squared_distances(points: Tensor, norms: Tensor, centres: Tensor) -> Tensor:
    """(N, D), (N,), (k, D) -> (N, k)."""
    return (norms[:, None] - points @ (2 * centres).T + centres.square().sum(1)).clamp_min(0)


def _plus_plus(points: Tensor, norms: Tensor, clusters: int, random: torch.Generator) -> Tensor:
    """Starting centres (k, D): each next one is a point drawn in proportion to its squared distance."""
    centres = points[torch.randint(len(points), (1,), generator=random).to(points.device)]
    distance = _squared_distances(points, norms, centres)[:, 0]
    while len(centres) < clusters:
        # Drawn by inverting the cumulative sum on the CPU: every device draws the same, for any N.
        sums = distance.double().cpu().cumsum(0)
        chosen = torch.searchsorted(sums, torch.rand(1, generator=random, dtype=torch.float64) * sums[-1])
        new = points[chosen.clamp_max(len(points) - 1).to(points.device)]
        centres = torch.cat([centres, new])
        distance = torch.minimum(distance, _squared_distances(points, norms, new)[:, 0])
    return centres


def _lloyd(points: Tensor, norms: Tensor, centres: Tensor) -> tuple[Tensor, Tensor, float]:
    """Centres, assignment and the summed squared distance once no point changes its cluster."""
    distances, assignment = _squared_distances(points, norms, centres).min(dim=1)
    for _ in range(_MAX_ROUNDS):
        members = F.one_hot(assignment, len(centres)).to(points.dtype)  # (N, k)
        counts = members.sum(0)
        # A product, not scattered additions: a GPU repeats it to the bit. An empty cluster keeps its centre.
        means = (members.T @ points) / counts.clamp_min(1)[:, None]
        centres = torch.where(counts[:, None] > 0, means, centres)
        distances, moved = _squared_distances(points, norms, centres).min(dim=1)
        if torch.equal(moved, assignment):
            break
        assignment = moved
    return centres, assignment, distances.sum().item()


_JUDGED = 10_000  # training images whose own distances are taken
_RIDGE = 1e-6  # added to a covariance, in units of its mean variance


@dataclass(frozen=True, kw_only=True)
class KnnDistance:
    """Distance to the k-th nearest training image on the unit sphere: sqrt(2 - 2 cosine). bank (M, D)."""

    bank: Tensor
    k: int

    def __call__(self, features: Tensor) -> Tensor:
        """(N, D) -> (N,)."""
        similarities, _ = nearest(self.bank, features, self.k)
        return (2 - 2 * similarities[:, -1]).clamp_min(0).sqrt()


@dataclass(frozen=True, kw_only=True)
class SimilarityNorm:
    """Cosine to the nearest training image times the feature's length, with its sign turned. bank (M, D).

    What was learned makes long features; what is strange makes short ones, in whatever direction.
    """

    bank: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """(N, D) -> (N,)."""
        similarities, _ = nearest(self.bank, features, 1)
        return -similarities[:, 0] * features.norm(dim=1)


@dataclass(frozen=True, kw_only=True)
class Mahalanobis:
    """Squared Mahalanobis distance of the normalised feature to training: mean (D,), whitening (D, D)."""

    mean: Tensor
    whitening: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """(N, D) -> (N,)."""
        return ((_normalise(features) - self.mean) @ self.whitening).square().sum(1).float()


@dataclass(frozen=True, kw_only=True)
class RelativeMahalanobis:
    """Least squared distance to a cluster, in the metric within clusters, less the distance to the whole.

    What is far from every cluster and from all of training alike is merely unusual; the difference keeps what
    no cluster explains. centres (k, D) are whitened; whitening (D, D).
    """

    centres: Tensor
    whitening: Tensor
    background: Mahalanobis

    def __call__(self, features: Tensor) -> Tensor:
        """(N, D) -> (N,)."""
        whitened = _normalise(features) @ self.whitening
        own = torch.cdist(whitened, self.centres).square().amin(1)
        return own.float() - self.background(features)


@dataclass(frozen=True, kw_only=True)
class Residual:
    """Length of the part outside training's principal subspace: mean (D,), complement (D, D - dim)."""

    mean: Tensor
    complement: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """(N, D) -> (N,)."""
        return ((features.double() - self.mean) @ self.complement).norm(dim=1).float()


def fit_knn_distance(train: Tensor, *, k: int | None = None) -> KnnDistance:
    """The k-th neighbour's distance (Sun et al., 2022), with their share for CIFAR: the 50th of 50,000.

    In a smaller bank the 50th nearest image is not near: unless given, k is a thousandth of it, at most 50 and at
    least 2, so that one near copy does not make a strange image known.
    """
    _check(train)
    if k is not None and not 1 <= k <= len(train):
        raise ProsminError(f"k is {k}; allowed: 1 to {len(train)}, the images of the reference.")
    k = max(2, min(50, round(len(train) / 1000))) if k is None else k
    return KnnDistance(bank=F.normalize(train.float(), dim=1), k=k)


def fit_similarity_norm(train: Tensor) -> SimilarityNorm:
    """CSI's score of a contrastive network (Tack et al., 2020), of features and without its further views."""
    _check(train)
    return SimilarityNorm(bank=F.normalize(train.float(), dim=1))


def fit_mahalanobis(train: Tensor) -> Mahalanobis:
    """SSD with one cluster (Sehwag et al., 2021)."""
    _check(train)
    normal = _normalise(train)
    mean = normal.mean(0)
    return Mahalanobis(mean=mean, whitening=_whitening(normal - mean))


def fit_relative_mahalanobis(train: Tensor, *, clusters: int = 10, seed: int = 0) -> RelativeMahalanobis:
    """The relative distance of Ren et al. (2021), with clusters of k-means where they have classes."""
    background = fit_mahalanobis(train)
    normal = _normalise(train)
    centres, assignment = kmeans(normal.float(), min(clusters, len(normal)), seed=seed)
    centres = centres.double()
    whitening = _whitening(normal - centres[assignment])
    return RelativeMahalanobis(centres=centres @ whitening, whitening=whitening, background=background)


def fit_residual(train: Tensor, *, dim: int | None = None) -> Residual:
    """ViM's residual (Wang et al., 2022) about the training mean, beyond `dim` axes (default D // 2).

    Features are not normalised, as in ViM; ViM's own origin needs a classifier, the mean does not.
    """
    _check(train)
    dim = train.shape[1] // 2 if dim is None else dim
    if not 0 <= dim < train.shape[1]:
        raise ProsminError(f"The principal subspace has {dim} axes; allowed: 0 to {train.shape[1] - 1}.")
    mean = train.double().mean(0)
    _, axes = torch.linalg.eigh(_covariance(train.double() - mean))  # variances rise
    return Residual(mean=mean, complement=axes[:, : train.shape[1] - dim])


@dataclass(frozen=True, kw_only=True)
class DistanceAndScale:
    """How far from training and how unsure, each in standard deviations of the training images, added.

    The two know different things: where a feature lies, and what the network could foretell of other views.
    """

    distances: tuple[float, float]  # mean and standard deviation over training
    log_scales: tuple[float, float]

    def __call__(self, distance: Tensor, log_scale: Tensor) -> Tensor:
        """(N,), (N,) -> (N,)."""
        return _standard(distance, *self.distances) + _standard(log_scale, *self.log_scales)


def fit_distance_and_scale(knn: KnnDistance, train: Tensor, log_scale: Tensor) -> DistanceAndScale:
    """On training images (M, D), (M,), each measured against the others; of many, `_JUDGED` spread over the set."""
    some = torch.arange(0, len(train), -(-len(train) // _JUDGED), device=train.device)
    others = KnnDistance(bank=knn.bank, k=min(knn.k + 1, len(knn.bank)))  # the nearest is the image itself
    return DistanceAndScale(distances=_moments(others(train[some])), log_scales=_moments(log_scale))


def _standard(values: Tensor, mean: float, deviation: float) -> Tensor:
    return (values - mean) / deviation


def _moments(values: Tensor) -> tuple[float, float]:
    """Mean and standard deviation, which is not 0."""
    values = values.double()
    return values.mean().item(), values.std(correction=0).clamp_min(torch.finfo(torch.float32).tiny).item()


Detector = Callable[[Tensor], Tensor]
DETECTORS: dict[str, Callable[[Tensor], Detector]] = {
    "knn_distance": fit_knn_distance,
    "similarity_norm": fit_similarity_norm,
    "mahalanobis": fit_mahalanobis,
    "relative_mahalanobis": fit_relative_mahalanobis,
    "residual": fit_residual,
}
"""Scores of the features: name -> fit(train features), which gives the score."""

SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean_log_scale": lambda mean, scale: mean_log_scale(scale),
    "total_variance": total_variance,
    "cross_view_energy": cross_view_energy,
}
"""Scores of the network's own forecasts: name -> function of mean and scale (V, N, K)."""

JOINT = "distance_and_scale"
"""The score of features and forecast together."""


def _normalise(features: Tensor) -> Tensor:
    return F.normalize(features.double(), dim=1)


def _covariance(centred: Tensor) -> Tensor:
    return centred.T @ centred / len(centred)


def _whitening(centred: Tensor) -> Tensor:
    """A matrix with |x @ matrix|^2 = x' covariance^-1 x: (M, D) -> (D, D).

    The ridge keeps directions in which training never moved: moving there is the clearest sign of all.
    """
    variance, axes = torch.linalg.eigh(_covariance(centred))
    variance = variance.clamp_min(0)
    return axes / (variance + _RIDGE * variance.mean()).sqrt()


def _check(train: Tensor) -> None:
    if train.ndim != 2 or len(train) < 2:
        raise ProsminError(
            f"The training features have shape {tuple(train.shape)}; allowed: (M, D) with 2 images or more."
        )
    if not bool(torch.isfinite(train).all()):
        raise ProsminError("The training features hold values that are not finite; is the checkpoint sound?")
