"""Mean corruption error: errors under corruption as multiples of AlexNet's (Hendrycks and Dietterich, 2019)."""

from collections.abc import Mapping

from prosmin.data.corruptions.parameters import COMMON
from prosmin.errors import ProsminError

ALEXNET = dict(
    zip(
        COMMON,
        (
            0.886428, 0.894468, 0.922640,
            0.819880, 0.826268, 0.785948, 0.798360,
            0.866816, 0.826572, 0.819324, 0.564592,
            0.853204, 0.646056, 0.717840, 0.606500,
        ),
        strict=True,
    )
)  # fmt: skip
"""AlexNet's top-1 error on ImageNet-C, the mean over the five severities."""

ALEXNET_CLEAN = 0.4348
"""Its top-1 error on ImageNet: torchvision's weights, 56.52 % correct."""


def mean_corruption_error(errors: Mapping[str, float]) -> float:
    """mCE: the mean of E_c / A_c over the fifteen corruptions; 1 is AlexNet (published as 100 %)."""
    _check(errors)
    return sum(errors[name] / ALEXNET[name] for name in COMMON) / len(COMMON)


def relative_mean_corruption_error(errors: Mapping[str, float], clean: float) -> float:
    """Relative mCE: the mean of (E_c - E) / (A_c - A), the increase over the clean error, relative to AlexNet's."""
    _check(errors)
    return sum((errors[name] - clean) / (ALEXNET[name] - ALEXNET_CLEAN) for name in COMMON) / len(COMMON)


def _check(errors: Mapping[str, float]) -> None:
    missing = [name for name in COMMON if name not in errors]
    if missing:
        raise ProsminError(f"The mean corruption error is over fifteen corruptions; missing: {', '.join(missing)}.")
