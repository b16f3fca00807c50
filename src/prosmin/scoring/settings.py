"""Checks of the numeric settings of a score.

Without torch, whose import takes seconds: a configuration is checked before.
"""

from prosmin.errors import UsageError


def check_beta(beta: float, *, name: str = "beta") -> None:
    """The power of the distance: above 0, at most 2."""
    if not 0.0 < beta <= 2.0:
        raise UsageError(f"{name} is {beta:g}; allowed: above 0 and at most 2. 1 is the usual energy score.")


def check_lam(lam: float, *, name: str = "lam") -> None:
    """The weight of the distance to the target: strictly between 0 and 1."""
    if not 0.0 < lam < 1.0:
        raise UsageError(f"{name} is {lam:g}; allowed: above 0 and below 1. 0.5 is the proper score.")


def check_bandwidth(bandwidth: float | None, *, name: str = "bandwidth") -> None:
    """The kernel's bandwidth: above 0, or None for the median distance between targets."""
    if bandwidth is not None and not 0.0 < bandwidth < float("inf"):
        raise UsageError(f"{name} is {bandwidth:g}; allowed: a finite number above 0, or none for the median distance.")


def check_samples(samples: int, *, antithetic: bool, name: str = "samples") -> None:
    """The number of samples of the paired estimator, mirrored ones counted."""
    if antithetic and (samples < 2 or samples % 2):
        raise UsageError(
            f"{name} is {samples}; allowed: an even number from 2 on, "
            "as half of the antithetic samples mirror the other half."
        )
    if samples < 1:
        raise UsageError(f"{name} is {samples}; allowed: 1 or more.")


def check_pair_count(samples: int, *, name: str = "samples") -> None:
    """The U-statistic averages over pairs of different samples, so it needs two."""
    if samples < 2:
        raise UsageError(f"{name} is {samples}; allowed: 2 or more, as the U-statistic compares pairs of samples.")
