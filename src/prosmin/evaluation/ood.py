"""Out-of-distribution detection without labels: scores where higher means more unlike the training pictures.

A detector is fitted on the training pictures' features (M, D) and maps features (N, D) to scores (N,).
Their constants are fixed here or given by the caller; none is chosen on a test picture.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from prosmin.errors import ProsminError
from prosmin.evaluation.kmeans import kmeans
from prosmin.evaluation.knn import nearest
from prosmin.evaluation.ranking import auroc, average_precision
from prosmin.evaluation.spread import cross_view_energy, mean_log_scale, total_variance

_JUDGED = 10_000  # training pictures whose own distances are taken
_RIDGE = 1e-6  # added to a covariance, in units of its mean variance


@dataclass(frozen=True, kw_only=True)
class KnnDistance:
    """Distance to the k-th nearest training picture on the unit sphere: sqrt(2 - 2 cosine). bank (M, D)."""

    bank: Tensor
    k: int

    def __call__(self, features: Tensor) -> Tensor:
        """(N, D) -> (N,)."""
        similarities, _ = nearest(self.bank, features, self.k)
        return (2 - 2 * similarities[:, -1]).clamp_min(0).sqrt()


@dataclass(frozen=True, kw_only=True)
class SimilarityNorm:
    """Cosine to the nearest training picture times the feature's length, with its sign turned. bank (M, D).

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

    In a smaller bank the 50th nearest picture is not near: unless given, k is a thousandth of it, at most 50 and at
    least 2, so that one near copy does not make a strange picture known.
    """
    _check(train)
    if k is not None and not 1 <= k <= len(train):
        raise ProsminError(f"k is {k}; allowed: 1 to {len(train)}, the pictures of the reference.")
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
    """How far from training and how unsure, each in standard deviations of the training pictures, added.

    The two know different things: where a feature lies, and what the network could foretell of other views.
    """

    distances: tuple[float, float]  # mean and standard deviation over training
    log_scales: tuple[float, float]

    def __call__(self, distance: Tensor, log_scale: Tensor) -> Tensor:
        """(N,), (N,) -> (N,)."""
        return _standard(distance, *self.distances) + _standard(log_scale, *self.log_scales)


def fit_distance_and_scale(knn: KnnDistance, train: Tensor, log_scale: Tensor) -> DistanceAndScale:
    """On training pictures (M, D), (M,), each measured against the others; of many, `_JUDGED` spread over the set."""
    some = torch.arange(0, len(train), -(-len(train) // _JUDGED), device=train.device)
    others = KnnDistance(bank=knn.bank, k=min(knn.k + 1, len(knn.bank)))  # the nearest is the picture itself
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


def ood_metrics(scores_in: Tensor, scores_out: Tensor) -> dict[str, float]:
    """How well the scores tell OOD pictures (n_out,) from in-distribution ones (n_in,).

    auroc, aupr_out: OOD is the positive class. aupr_in: in-distribution is. Both aupr are average precisions.
    fpr_at_95_tpr_in: share of OOD accepted when at least 95 % of in-distribution is accepted.
    fpr_at_95_tpr_out: share of in-distribution flagged when at least 95 % of OOD is flagged.
    Ties at the threshold count against the score.
    """
    for name, scores in (("in-distribution", scores_in), ("OOD", scores_out)):
        if scores.ndim != 1 or len(scores) < 2:
            raise ProsminError(
                f"The {name} scores have shape {tuple(scores.shape)}; "
                "allowed: one score for each of 2 or more pictures."
            )
        if not bool(torch.isfinite(scores).all()):
            raise ProsminError(f"The {name} scores hold values that are not finite; look for NaN in the features.")
    return {
        "auroc": auroc(scores_in, scores_out),
        "aupr_in": average_precision(-scores_out, -scores_in),
        "aupr_out": average_precision(scores_in, scores_out),
        "fpr_at_95_tpr_in": _false_share(-scores_out, -scores_in),
        "fpr_at_95_tpr_out": _false_share(scores_in, scores_out),
    }


def _false_share(negatives: Tensor, positives: Tensor) -> float:
    """Share of negatives at or above the highest threshold that at least 95 % of the positives reach."""
    needed = -(-95 * len(positives) // 100)  # rounded up, in whole numbers: 0.95 is not one in floating point
    threshold = positives.double().sort(descending=True).values[needed - 1]
    return (negatives.double() >= threshold).double().mean().item()


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
            f"The training features have shape {tuple(train.shape)}; allowed: (M, D) with 2 pictures or more."
        )
    if not bool(torch.isfinite(train).all()):
        raise ProsminError("The training features hold values that are not finite; is the checkpoint sound?")
