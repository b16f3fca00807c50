"""Scoring rules for probabilistic forecasts: pure functions of tensors, and checks of their settings."""

from importlib import import_module
from typing import TYPE_CHECKING

from prosmin.scoring.objective import ProprietyWarning, check_objective, validity_table
from prosmin.scoring.propriety import Propriety, propriety

if TYPE_CHECKING:
    from prosmin.scoring.closed import (
        approximate_energy_score,
        gaussian_crps,
        gaussian_kernel_score,
        gaussian_mixture_crps,
        unexplained,
    )
    from prosmin.scoring.distances import median_bandwidth
    from prosmin.scoring.ensembles import energy_score, kernel_score
    from prosmin.scoring.gaussian import gaussian_energy_score, noise_count
    from prosmin.scoring.views import view_scores

__all__ = [
    "Propriety",
    "ProprietyWarning",
    "approximate_energy_score",
    "check_objective",
    "energy_score",
    "gaussian_crps",
    "gaussian_energy_score",
    "gaussian_kernel_score",
    "gaussian_mixture_crps",
    "kernel_score",
    "median_bandwidth",
    "noise_count",
    "propriety",
    "unexplained",
    "validity_table",
    "view_scores",
]

_OF_TENSORS = {
    "approximate_energy_score": "closed",
    "energy_score": "ensembles",
    "gaussian_crps": "closed",
    "gaussian_energy_score": "gaussian",
    "gaussian_kernel_score": "closed",
    "gaussian_mixture_crps": "closed",
    "kernel_score": "ensembles",
    "median_bandwidth": "distances",
    "noise_count": "gaussian",
    "unexplained": "closed",
    "view_scores": "views",
}
"""The functions that need torch, and their modules."""


def __getattr__(name: str) -> object:
    """Import these functions when first used: settings are checked without torch."""
    if name not in _OF_TENSORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_OF_TENSORS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
