"""Uncertainty from the network's own forecasts N(mean, scale^2), one a view; higher is less sure.

Shapes: mean and scale are (V, N, K) for V views of N pictures; every score is (N,).
"""

from functools import partial

import torch
from torch import Tensor

from prosmin import randomness
from prosmin.errors import ProsminError
from prosmin.scoring.distances import power_distance
from prosmin.scoring.gaussian import within_scores

_SMALLEST_SCALE = 1e-12  # keeps the logarithm finite where a forecast has no spread
_CPU_VALUES, _GPU_VALUES = 2**20, 2**25  # numbers held at once by the sampled score: a CPU's cache, a GPU's memory


def mean_log_scale(scale: Tensor) -> Tensor:
    """Mean over views and coordinates of ln(scale)."""
    _check(scale)
    return scale.clamp_min(_SMALLEST_SCALE).log().mean(dim=(0, 2))


def total_variance(mean: Tensor, scale: Tensor) -> Tensor:
    """Variance of the mixture of the views' forecasts, averaged over coordinates.

    mean over views of scale^2 + variance over views of mean.
    """
    _check(mean, scale)
    return scale.square().mean(dim=(0, 2)) + mean.var(dim=0, correction=0).mean(dim=1)


def cross_view_energy(mean: Tensor, scale: Tensor, *, samples: int = 16, seed: int = 0) -> Tensor:
    """Energy score of each view's forecast at every other view's mean, averaged over the V (V - 1) pairs.

    All pictures and views share one noise, so a picture's score does not depend on its company.
    """
    _check(mean, scale)
    views, _, size = mean.shape
    if views < 2:
        raise ProsminError(
            "The cross-view score compares the views of a picture; 1 view was given, allowed: 2 or more."
        )
    # The score mirrors its noise, so half as many draws as samples.
    positions = torch.arange(samples // 2, device=mean.device)
    key = randomness.key(seed, 0, "cross-view energy")
    noise = randomness.normal(key, positions, (size,)).to(mean.dtype)  # (S / 2, K)
    score = partial(
        within_scores, distance=partial(power_distance, beta=1.0), estimator="paired", antithetic=True, lam=0.5
    )
    parts = []
    step = max(1, (_CPU_VALUES if mean.device.type == "cpu" else _GPU_VALUES) // (views * noise.numel()))
    for some, width in zip(mean.split(step, dim=1), scale.split(step, dim=1), strict=True):  # (V, n, K)
        scores = score(some, width, some, noise.expand(*some.shape[:2], -1, -1))  # (V, n, V): all pairs at once
        scores.diagonal(dim1=0, dim2=2).zero_()  # of a view with itself
        parts.append(scores.sum((0, 2)))
    return torch.cat(parts) / (views * (views - 1))


def _check(first: Tensor, second: Tensor | None = None) -> None:
    if first.ndim != 3 or first.numel() == 0 or (second is not None and second.shape != first.shape):
        shapes = " and ".join(str(tuple(t.shape)) for t in (first, second) if t is not None)
        raise ProsminError(f"The forecasts have shapes {shapes}; allowed: (V, N, K), the same for mean and scale.")
