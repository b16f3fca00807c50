"""95 % confidence intervals in closed form: Wilson's for an accuracy, DeLong's for an AUROC."""

import math
from collections.abc import Sequence

import numpy as np

NORMAL = 1.959964  # 95 % of a normal distribution are within this many standard deviations


def wilson(share: float, size: int) -> tuple[float, float]:
    """The 95 % interval of a share of `size` independent answers (Wilson, 1927)."""
    z2 = NORMAL**2 / size
    middle = (share + z2 / 2) / (1 + z2)
    half = NORMAL / (1 + z2) * math.sqrt(share * (1 - share) / size + z2 / (4 * size))
    return max(0.0, middle - half), min(1.0, middle + half)


def auroc_interval(inside: np.ndarray, outside: Sequence[np.ndarray]) -> tuple[float, float]:
    """The 95 % interval of an AUROC, or of its mean over several sets against one: (n,), (m,) each.

    DeLong's: the variance of each score's rank among the scores of the other class. The sets are compared with the
    same in-distribution images, so the rank of an in-distribution image is averaged over the sets first.
    """
    ranks_out = [_above(scores, inside) for scores in outside]  # share of inside below an OOD score
    ranks_in = np.mean([1 - _above(inside, scores) for scores in outside], axis=0)
    middle = float(np.mean([ranks.mean() for ranks in ranks_out]))
    variance = _variance_of_mean(ranks_in)
    variance += sum(_variance_of_mean(ranks) for ranks in ranks_out) / len(outside) ** 2
    half = NORMAL * math.sqrt(variance)
    return max(0.0, middle - half), min(1.0, middle + half)


def _above(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The share of `others` below each score, ties counted half: (n,), (m,) -> (n,)."""
    others = np.sort(others)
    both = np.searchsorted(others, scores, "left") + np.searchsorted(others, scores, "right")
    return both / (2 * len(others))


def _variance_of_mean(values: np.ndarray) -> float:
    return float(values.var(ddof=1)) / len(values) if len(values) > 1 else 0.0
