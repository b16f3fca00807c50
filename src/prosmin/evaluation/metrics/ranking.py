"""How well a score ranks one group above another: AUROC, average precision, FPR95, rank correlation."""

import torch
from torch import Tensor

from prosmin.errors import ProsminError


def spearman(x: Tensor, y: Tensor) -> Tensor:
    """Spearman's correlation along the last dimension: twice (..., n) -> (...); NaN where one is constant."""
    a, b = _centred_ranks(x), _centred_ranks(y)
    return (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt()


def _centred_ranks(x: Tensor) -> Tensor:
    """Ranks less their mean; equal values share the mean of their ranks: (..., n) -> (..., n)."""
    x = x.double().contiguous()
    ordered = x.sort(-1).values
    below, up_to = (torch.searchsorted(ordered, x, right=right) for right in (False, True))
    return (below + up_to).double() / 2 - x.shape[-1] / 2


def auroc(negatives: Tensor, positives: Tensor) -> float:
    """P(positive > negative) + P(positive = negative) / 2, for a random pair: (n,), (m,) -> share."""
    low = negatives.double().sort().values
    high = positives.double()
    below = torch.searchsorted(low, high, right=False).sum()
    up_to = torch.searchsorted(low, high, right=True).sum()
    # Twice the number of pairs is a whole number, so the division is the only rounding.
    return (below + up_to).item() / (2 * len(low) * len(high))


def average_precision(negatives: Tensor, positives: Tensor) -> float:
    """Area under the precision-recall curve by steps: the precision at each positive, averaged.

    The threshold is the score of the positive, so all items that tie with it are included.
    (The trapezoid rule of some packages is too optimistic: precision is not linear between two points.)
    """
    low, high = negatives.double().sort().values, positives.double().sort().values
    true_positives = len(high) - torch.searchsorted(high, high, right=False)
    false_positives = len(low) - torch.searchsorted(low, high, right=False)
    return (true_positives / (true_positives + false_positives).double()).mean().item()


def ood_metrics(scores_in: Tensor, scores_out: Tensor) -> dict[str, float]:
    """How well the scores separate OOD images (n_out,) from in-distribution ones (n_in,).

    auroc, aupr_out: OOD is the positive class. aupr_in: in-distribution is. Both aupr are average precisions.
    fpr_at_95_tpr_in: share of OOD accepted when at least 95 % of in-distribution is accepted.
    fpr_at_95_tpr_out: share of in-distribution flagged when at least 95 % of OOD is flagged.
    Ties at the threshold count against the score.
    """
    for name, scores in (("in-distribution", scores_in), ("OOD", scores_out)):
        if scores.ndim != 1 or len(scores) < 2:
            raise ProsminError(
                f"The {name} scores have shape {tuple(scores.shape)}; allowed: one score for each of 2 or more images."
            )
        if not bool(torch.isfinite(scores).all()):
            raise ProsminError(f"The {name} scores contain values that are not finite; look for NaN in the features.")
    return {
        "auroc": auroc(scores_in, scores_out),
        "aupr_in": average_precision(-scores_out, -scores_in),
        "aupr_out": average_precision(scores_in, scores_out),
        "fpr_at_95_tpr_in": _false_share(-scores_out, -scores_in),
        "fpr_at_95_tpr_out": _false_share(scores_in, scores_out),
    }


def _false_share(negatives: Tensor, positives: Tensor) -> float:
    """Share of negatives at or above the highest threshold that at least 95 % of the positives reach."""
    needed = -(-95 * len(positives) // 100)  # rounded up, in integers: 0.95 is not exact in floating point
    threshold = positives.double().sort(descending=True).values[needed - 1]
    return (negatives.double() >= threshold).double().mean().item()
