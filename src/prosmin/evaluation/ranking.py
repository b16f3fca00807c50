"""How well a score ranks one group above another: area under the ROC and the precision-recall curve.

No value is squashed or binned, so scores of any size are ranked as they are, and ties are counted exactly.
"""

import torch
from torch import Tensor


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

    The threshold sits at the positive's own score, so all items that tie with it are let in with it.
    (The trapezoid rule of some packages is too kind: between two points precision does not run straight.)
    """
    low, high = negatives.double().sort().values, positives.double().sort().values
    true_positives = len(high) - torch.searchsorted(high, high, right=False)
    false_positives = len(low) - torch.searchsorted(low, high, right=False)
    return (true_positives / (true_positives + false_positives).double()).mean().item()
