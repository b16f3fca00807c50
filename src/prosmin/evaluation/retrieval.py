"""Does the uncertainty know where the representation is wrong? Retrieval and selective prediction."""

import math

import torch
from torch import Tensor

from prosmin.errors import ProsminError
from prosmin.evaluation.knn import nearest
from prosmin.evaluation.ranking import auroc


def recall_at_1_and_r_auroc(features: Tensor, labels: Tensor, uncertainty: Tensor) -> dict[str, float]:
    """R@1 and R-AUROC of the URL benchmark (Kirchhof et al., 2023): (N, D), (N,), (N,) -> two numbers.

    recall_at_1: share of pictures whose nearest other picture, by cosine, has their class.
    r_auroc: AUROC of the uncertainty for a wrong neighbour; NaN where all neighbours are right, or none is.
    """
    _, indices = nearest(features, features, 1, exclude_self=True)
    labels = labels.to(features.device)
    right = labels[indices[:, 0]] == labels
    _check(right, uncertainty)
    uncertainty = uncertainty.to(features.device)
    one_sided = bool(right.all()) or not bool(right.any())
    return {
        "recall_at_1": right.double().mean().item(),
        "r_auroc": math.nan if one_sided else auroc(uncertainty[right], uncertainty[~right]),
    }


def risk_coverage(correct: Tensor, uncertainty: Tensor, *, points: int = 100) -> dict[str, float | list[float]]:
    """Error among the most certain pictures, by the share that is answered: correct (N,), uncertainty (N,).

    coverage, risk: the curve at `points` shares. aurc: mean risk over the coverages 1/N, 2/N, ..., 1.
    aurc_optimal: the same when all wrong answers are the least certain.
    aurc_random: the expectation when the order says nothing, which is the error rate.
    Pictures of equal uncertainty have no order: the mean over their orders is taken.
    """
    _check(correct, uncertainty)
    wrong = 1 - correct.double().cpu()
    size = len(wrong)
    answered = torch.arange(1, size + 1, dtype=torch.float64)
    _, group, counts = torch.unique(uncertainty.double().cpu(), return_inverse=True, return_counts=True)
    share = torch.bincount(group, weights=wrong) / counts
    risk = torch.repeat_interleave(share, counts).cumsum(0) / answered
    optimal = wrong.sort().values.cumsum(0) / answered
    shown = torch.linspace(1, size, min(points, size), dtype=torch.float64).round().long() - 1
    return {
        "coverage": (answered[shown] / size).tolist(),
        "risk": risk[shown].tolist(),
        "aurc": risk.mean().item(),
        "aurc_optimal": optimal.mean().item(),
        "aurc_random": wrong.mean().item(),
    }


def _check(correct: Tensor, uncertainty: Tensor) -> None:
    if correct.shape != uncertainty.shape or correct.ndim != 1 or len(correct) == 0:
        raise ProsminError(
            f"The answers have shape {tuple(correct.shape)}, the uncertainties {tuple(uncertainty.shape)}; "
            "allowed: one uncertainty a picture."
        )
    if not bool(torch.isfinite(uncertainty).all()):
        raise ProsminError("The uncertainties hold values that are not finite; look for NaN in the features.")
