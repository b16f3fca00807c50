"""OOD scores that need no labels: of features, fitted to training features, or of the forecast. Higher is more OOD."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from prosmin import randomness
from prosmin.encoder.neighbours import nearest
from prosmin.encoder.space import check_features
from prosmin.errors import ProsminError
from prosmin.models.radius import log_radius
from prosmin.scoring.distances import power_distance
from prosmin.scoring.gaussian import within_scores

_SMALLEST_SCALE = 1e-12  # keeps the logarithm finite where a scale is 0
_CPU_VALUES, _GPU_VALUES = 2**20, 2**25  # numbers in memory at once in the sampled score: they fit a CPU's cache


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


def cross_view_energy(
    mean: Tensor, scale: Tensor, target: Tensor | None = None, *, samples: int = 16, seed: int = 0
) -> Tensor:
    """Energy score of each view's forecast at every other view's `target`, averaged over the V (V - 1) pairs.

    The target is the other view's mean, or what the target network sees in that view: (V, N, K). All images and views
    share the same noise, so an image's score does not depend on the other images.
    """
    _check_views(mean, scale, target)
    views, _, size = mean.shape
    # The score mirrors its noise, so half as many draws as samples.
    positions = torch.arange(samples // 2, device=mean.device)
    key = randomness.key(seed, 0, "cross-view energy")
    noise = randomness.normal(key, positions, (size,)).to(mean.dtype)  # (S / 2, K)
    score = partial(
        within_scores, distance=partial(power_distance, beta=1.0), estimator="paired", antithetic=True, lam=0.5
    )
    parts = []
    step = max(1, (_CPU_VALUES if mean.device.type == "cpu" else _GPU_VALUES) // (views * noise.numel()))
    split = (x.split(step, dim=1) for x in (mean, scale, mean if target is None else target))
    for some, width, aim in zip(*split, strict=True):  # (V, n, K)
        scores = score(some, width, aim, noise.expand(*some.shape[:2], -1, -1))  # (V, n, V): all pairs at once
        scores.diagonal(dim1=0, dim2=2).zero_()  # a view with itself
        parts.append(scores.sum((0, 2)))
    return torch.cat(parts) / (views * (views - 1))


def standardised_error(mean: Tensor, scale: Tensor, target: Tensor) -> Tensor:
    """Mean over the pairs of different views of the log size of the standardised error: three times (V, N, K) -> (N,).

    An image whose target embedding is not where its forecasts expected it, relative to what they expected.
    """
    _check_views(mean, scale, target)
    views = range(len(mean))
    errors = [log_radius(mean[v], scale[v], target[w]) for v in views for w in views if v != w]
    return torch.stack(errors).mean(0)


def _check_views(mean: Tensor, scale: Tensor, target: Tensor | None) -> None:
    _check_forecast(mean, scale)
    if len(mean) < 2:
        raise ProsminError("This score compares the views of an image. It got 1 view; allowed: 2 or more.")
    if target is not None:
        _check_forecast(mean, target)


def _check_forecast(first: Tensor, second: Tensor | None = None) -> None:
    if first.ndim != 3 or first.numel() == 0 or (second is not None and second.shape != first.shape):
        shapes = " and ".join(str(tuple(t.shape)) for t in (first, second) if t is not None)
        raise ProsminError(f"The forecasts have shapes {shapes}; allowed: (V, N, K), the same for mean and scale.")


_SAMPLED = 10_000  # training images whose distances to the others are computed
_RIDGE = 1e-6  # added to a covariance, in units of its mean variance


@dataclass(frozen=True, kw_only=True)
class KnnDistance:
    """Distance to the k-th nearest training image on the unit sphere: sqrt(2 - 2 cosine)."""

    bank: Tensor  # (M, D), rows of length 1
    k: int
    groups: Tensor | None = None  # (M,): which image each row is, see neighbours.py

    def __call__(self, features: Tensor, groups: Tensor | None = None) -> Tensor:
        """(N, D) -> (N,). With `groups` (N,) rows of an image's own group are left out."""
        own = None if self.groups is None else groups
        similarities, _ = nearest(self.bank, features, self.k, groups=self.groups, query_groups=own)
        return chord(similarities[:, -1])

    def to(self, device: torch.device | str) -> "KnnDistance":
        """The same on the device."""
        groups = None if self.groups is None else self.groups.to(device)
        return replace(self, bank=self.bank.to(device), groups=groups)


def chord(cosine: Tensor) -> Tensor:
    """The distance between two points of the unit sphere, from the cosine of their angle."""
    return (2 - 2 * cosine).clamp_min(0).sqrt()


@dataclass(frozen=True, kw_only=True)
class SimilarityNorm:
    """Minus the cosine to the nearest training image times the feature's length. bank (M, D).

    Images like those of training have long features; OOD images have short ones, whatever their direction.
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
    """Smallest squared distance to a cluster, whitened within clusters, minus the distance to the whole.

    The difference removes what is unusual for every cluster and keeps what no cluster explains.
    centres (k, D) are whitened; whitening (D, D).
    """

    centres: Tensor
    whitening: Tensor
    background: Mahalanobis

    def __call__(self, features: Tensor) -> Tensor:
        """(N, D) -> (N,)."""
        whitened = _normalise(features) @ self.whitening
        smallest = torch.cdist(whitened, self.centres).square().amin(1)
        return smallest.float() - self.background(features)


@dataclass(frozen=True, kw_only=True)
class Residual:
    """Length of the part outside the principal subspace of training: mean (D,), complement (D, D - dim)."""

    mean: Tensor
    complement: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """(N, D) -> (N,)."""
        return ((features.double() - self.mean) @ self.complement).norm(dim=1).float()


def fit_knn_distance(train: Tensor, *, k: int | None = None) -> KnnDistance:
    """Distance to the k-th neighbour (Sun et al., 2022). Default k: a thousandth of the images, limited to 2 to 50.

    A thousandth is their share for CIFAR, the 50th of 50,000. From 2 on, one near-duplicate cannot hide an OOD image.
    """
    check_features(train, least=2)
    if k is not None and not 1 <= k <= len(train):
        raise ProsminError(f"k is {k}; allowed: 1 to {len(train)}, the images of the reference.")
    k = max(2, min(50, round(len(train) / 1000))) if k is None else k
    return KnnDistance(bank=F.normalize(train.float(), dim=1), k=k)


def fit_similarity_norm(train: Tensor) -> SimilarityNorm:
    """CSI's score of a contrastive network (Tack et al., 2020), on features and without its augmented views."""
    check_features(train, least=2)
    return SimilarityNorm(bank=F.normalize(train.float(), dim=1))


def fit_mahalanobis(train: Tensor) -> Mahalanobis:
    """SSD with one cluster (Sehwag et al., 2021)."""
    check_features(train, least=2)
    normal = _normalise(train)
    mean = normal.mean(0)
    return Mahalanobis(mean=mean, whitening=_whitening(normal - mean))


def fit_relative_mahalanobis(train: Tensor, *, clusters: int = 10, seed: int = 0) -> RelativeMahalanobis:
    """The relative distance of Ren et al. (2021), with k-means clusters instead of their classes."""
    from sklearn.cluster import KMeans  # takes a second to import, and most users never come here
    from sklearn.exceptions import ConvergenceWarning

    background = fit_mahalanobis(train)
    normal = _normalise(train)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters
        found = KMeans(min(clusters, len(normal)), n_init=4, random_state=seed).fit(normal.cpu().numpy())
    centres = torch.from_numpy(found.cluster_centers_).to(normal)
    assignment = torch.from_numpy(found.labels_).to(normal.device, torch.int64)
    whitening = _whitening(normal - centres[assignment])
    return RelativeMahalanobis(centres=centres @ whitening, whitening=whitening, background=background)


def fit_residual(train: Tensor, *, dim: int | None = None) -> Residual:
    """ViM's residual (Wang et al., 2022) outside the first `dim` principal axes (default D // 2).

    Features are not normalised, as in ViM. The origin is the training mean, since ViM's needs a classifier.
    """
    check_features(train, least=2)
    dim = train.shape[1] // 2 if dim is None else dim
    if not 0 <= dim < train.shape[1]:
        raise ProsminError(f"The principal subspace has {dim} axes; allowed: 0 to {train.shape[1] - 1}.")
    mean = train.double().mean(0)
    _, axes = torch.linalg.eigh(_covariance(train.double() - mean))  # variances in rising order
    return Residual(mean=mean, complement=axes[:, : train.shape[1] - dim])


@dataclass(frozen=True, kw_only=True)
class DistanceAndScale:
    """Sum of the distance to training and the log scale, each in standard deviations of the training images.

    The two carry different information: where a feature lies, and how well other views can be predicted.
    """

    distances: tuple[float, float]  # mean and standard deviation over training
    log_scales: tuple[float, float]

    def __call__(self, distance: Tensor, log_scale: Tensor) -> Tensor:
        """(N,), (N,) -> (N,)."""
        (mean, deviation), (log_mean, log_deviation) = self.distances, self.log_scales
        return (distance - mean) / deviation + (log_scale - log_mean) / log_deviation


def fit_distance_and_scale(knn: KnnDistance, train: Tensor, log_scale: Tensor) -> DistanceAndScale:
    """On training images (M, D), (M,), each compared with the others; at most `_SAMPLED`, evenly spaced."""
    some = torch.arange(0, len(train), -(-len(train) // _SAMPLED), device=train.device)
    others = replace(knn, k=min(knn.k, len(train) - 1), groups=torch.arange(len(train), device=train.device))
    return DistanceAndScale(distances=_moments(others(train[some], some)), log_scales=_moments(log_scale))


def _moments(values: Tensor) -> tuple[float, float]:
    """Mean and standard deviation; the latter is never 0."""
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
"""Scores of the features: name -> a function that fits the score to training features."""

SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean_log_scale": lambda mean, scale: mean_log_scale(scale),
    "total_variance": total_variance,
    "cross_view_energy": cross_view_energy,
}
"""Scores of the forecasts: name -> function of mean and scale (V, N, K)."""

SURPRISES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "surprise": cross_view_energy,
    "standardised_error": standardised_error,
}
"""Scores of forecasts at what the target network sees in the other views: of mean, scale and target (V, N, K)."""

JOINT = "distance_and_scale"
"""The score that uses features and forecast together."""


def _normalise(features: Tensor) -> Tensor:
    return F.normalize(features.double(), dim=1)


def _covariance(centred: Tensor) -> Tensor:
    return centred.T @ centred / len(centred)


def _whitening(centred: Tensor) -> Tensor:
    """A matrix with |x @ matrix|^2 = x' covariance^-1 x: (M, D) -> (D, D).

    The ridge keeps directions in which training images do not vary: a shift there is the clearest sign of OOD.
    """
    variance, axes = torch.linalg.eigh(_covariance(centred))
    variance = variance.clamp_min(0)
    return axes / (variance + _RIDGE * variance.mean()).sqrt()
