"""Does the uncertainty predict where the representation is wrong? Retrieval and selective prediction."""

import math

import torch
from torch import Tensor

from prosmin.encoder.neighbours import nearest
from prosmin.errors import ProsminError
from prosmin.evaluation.metrics.ranking import auroc


def right_neighbours(features: Tensor, labels: Tensor, groups: Tensor | None = None) -> Tensor:
    """Whether the nearest other image, by cosine, has the image's class: (N, D), (N,) -> (N,).

    With `groups` (N,) of overlapping images, it is the nearest image of another group. The share of True is R@1 of
    the URL benchmark (Kirchhof et al., 2023), and `r_auroc` is its R-AUROC.
    """
    _, indices = nearest(features, features, 1, exclude_self=True, groups=groups)
    labels = labels.to(features.device)
    return labels[indices[:, 0]] == labels


def r_auroc(right: Tensor, uncertainty: Tensor) -> float:
    """AUROC of the uncertainty for a wrong neighbour: (N,), (N,); NaN if all neighbours are right, or none."""
    _check(right, uncertainty)
    uncertainty = uncertainty.to(right.device)
    one_sided = bool(right.all()) or not bool(right.any())
    return math.nan if one_sided else auroc(uncertainty[right], uncertainty[~right])


def risk_coverage(correct: Tensor, uncertainty: Tensor, *, points: int = 100) -> dict[str, float | list[float]]:
    """Error among the most certain images, by the share that is answered: correct (N,), uncertainty (N,).

    coverage, risk: the curve at `points` shares. aurc: mean risk over the coverages 1/N, 2/N, ..., 1.
    aurc_optimal: the same if all wrong answers are the least certain.
    aurc_random: the expectation in random order, which is the error rate.
    Images of equal uncertainty are averaged over their orders.
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
            "allowed: one uncertainty per image."
        )
    if not bool(torch.isfinite(uncertainty).all()):
        raise ProsminError("The uncertainties contain values that are not finite; look for NaN in the features.")
