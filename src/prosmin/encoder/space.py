"""The space in which images are compared: features half-whitened against a set of images, then set to length 1.

Features of every network share a large common part, the mean feature, and vary far more in some directions than in
others. A plain cosine is dominated by both. Half-whitening removes the mean and divides each principal direction by
the fourth root of its variance: no direction drowns the others, and none of the noise is blown up, as full whitening
does.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from prosmin.errors import ProsminError

_FLOOR = 1e-6  # smallest variance, in units of the mean variance


class Space(NamedTuple):
    """x -> (x - mean) @ matrix, at length 1."""

    mean: Tensor  # (D,)
    matrix: Tensor  # (D, D)

    def __call__(self, features: Tensor) -> Tensor:
        """(N, D) -> (N, D), rows of length 1."""
        return F.normalize((features.to(self.mean) - self.mean) @ self.matrix, dim=1)

    def to(self, device: torch.device | str) -> "Space":
        """The same on the device."""
        return Space(self.mean.to(device), self.matrix.to(device))


def check_features(features: Tensor, *, least: int) -> None:
    """An error unless these are the features (M, D) of at least so many images, all finite."""
    if features.ndim != 2 or len(features) < least:
        raise ProsminError(
            f"The features have shape {tuple(features.shape)}; allowed: (M, D) with {least} images or more."
        )
    if not bool(torch.isfinite(features).all()):
        raise ProsminError("The features contain values that are not finite; is the checkpoint sound?")


def fit_space(features: Tensor) -> Space:
    """The space of images with these features: (M, D).

    matrix = U diag(v^(-1/4)) for the covariance U diag(v) U', which is shrunk towards a multiple of the identity as
    Ledoit and Wolf (2004) do. With few images little but the centring is left, and with one not even that.
    """
    check_features(features, least=1)
    wide = features.double()
    mean = wide.mean(0) if len(wide) > 1 else torch.zeros_like(wide[0])
    covariance, size = _shrunk(wide - mean)
    variance, axes = torch.linalg.eigh(covariance)
    scales = (variance.clamp_min(_FLOOR * size) / size).pow(-0.25) if size > 0 else torch.ones_like(variance)
    return Space(mean.float(), (axes * scales).float())


def _shrunk(centred: Tensor) -> tuple[Tensor, float]:
    """The covariance (D, D) of centred features (M, D) after shrinkage, and the mean variance."""
    count = len(centred)
    covariance = centred.T @ centred / count
    size = float(covariance.diagonal().mean())
    target = size * torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    squares = centred.square()
    noise = float((squares.T @ squares / count - covariance.square()).sum()) / count  # of the covariance's entries
    apart = float((covariance - target).square().sum())
    # two images are equally far from their mean, which would look like no noise at all
    share = min(1.0, max(0.0, noise / apart)) if apart > 0 and count > 2 else 1.0
    return (1 - share) * covariance + share * target, size
