"""Scoring rules for probabilistic forecasts: pure functions of tensors, and what their settings do."""

from prosmin.scoring.closed import (
    approximate_energy_score,
    gaussian_crps,
    gaussian_kernel_score,
    gaussian_mixture_crps,
)
from prosmin.scoring.distances import median_bandwidth
from prosmin.scoring.ensembles import energy_score, kernel_score
from prosmin.scoring.gaussian import gaussian_energy_score, noise_count
from prosmin.scoring.objective import ProprietyWarning, check_objective, validity_table
from prosmin.scoring.propriety import Propriety, propriety
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
    "validity_table",
    "view_scores",
]
