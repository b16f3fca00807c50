"""Uncertainty from the network's own forecasts N(mean, scale^2), one a view; higher is less sure.

Shapes: mean and scale are (V, N, K) for V views of N pictures; every score is (N,).
"""

import itertools

import torch
from torch import Tensor

from prosmin import randomness
from prosmin.errors import ProsminError
from prosmin.scoring import gaussian_energy_score

_SMALLEST_SCALE = 1e-12  # keeps the logarithm finite where a forecast has no spread
_VALUES = 2**24  # numbers held at once by the sampled score


def mean_log_scale(scale: Tensor) -> Tensor:
    """Mean over views and coordinates of ln(scale)."""
    _check(scale)
    return scale.clamp_min(_SMALLEST_SCALE).log().mean(dim=(0, 2))


def total_variance(mean: Tensor, scale: Tensor | None) -> Tensor:
    """Variance of the mixture of the views' forecasts, averaged over coordinates.

    mean over views of scale^2 + variance over views of mean; without a scale (None) the second part alone.
    """
    _check(mean, scale)
    between = mean.var(dim=0, correction=0).mean(dim=1)
    return between if scale is None else scale.square().mean(dim=(0, 2)) + between


def cross_view_energy(mean: Tensor, scale: Tensor, *, samples: int = 16, seed: int = 0) -> Tensor:
    """Energy score of each view's forecast at every other view's mean, averaged over the V (V - 1) pairs.

    All pictures and views share one noise, so a picture's score does not depend on its company.
    """
    _check(mean, scale)
    views, pictures, size = mean.shape
    if views < 2:
        raise ProsminError(
            "The cross-view score compares the views of a picture; 1 view was given, allowed: 2 or more."
        )
    # The score mirrors its noise, so half as many draws as samples.
    positions = torch.arange(samples // 2, device=mean.device)
    key = randomness.key(seed, 0, "cross-view energy")
    noise = randomness.normal(key, positions, (1, size)).to(mean.dtype)  # (S / 2, 1, K)
    total = mean.new_zeros(pictures)
    step = max(1, _VALUES // (samples * size))
    for first in range(0, pictures, step):
        part = slice(first, first + step)
        shared = noise.expand(-1, mean[0, part].shape[0], -1)  # (S / 2, n, K)
        for forecast, other in itertools.permutations(range(views), 2):
            total[part] += gaussian_energy_score(
                mean[forecast, part], scale[forecast, part], mean[other, part],
                samples=samples, antithetic=True, noise=shared, validate=False,
            )  # fmt: skip
    return total / (views * (views - 1))


def _check(first: Tensor, second: Tensor | None = None) -> None:
    if first.ndim != 3 or first.numel() == 0 or (second is not None and second.shape != first.shape):
        shapes = " and ".join(str(tuple(t.shape)) for t in (first, second) if t is not None)
        raise ProsminError(f"The forecasts have shapes {shapes}; allowed: (V, N, K), the same for mean and scale.")
