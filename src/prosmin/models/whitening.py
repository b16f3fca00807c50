"""Whitening: outputs with mean 0 and covariance I, whatever the network does.

The centre (models/centre.py) removes the mean. Whitening also removes correlations and differences in size between
coordinates: docs/method.md explains why targets like this do not lose rank. `BatchWhitening` is a layer that uses the
statistics of each batch, with gradient, as BatchNorm does; `Whitening` uses moving averages, without gradient.
"""

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from prosmin.config import ProsminTarget
from prosmin.models.batchnorm import all_gather_stacked
from prosmin.models.centre import Centre

FLOOR = 1e-12  # least mean eigenvalue: keeps the inverse root of a covariance of zeros finite


class Whitening(nn.Module):
    """z = W (raw - mean) with W = (covariance + eps * mean eigenvalue * I)^(-1/2), the symmetric root (ZCA).

    Of all whitening matrices the symmetric one changes its input least, so axes do not turn from step to step.
    Statistics, W and the product with W are in float64: W multiplies the smallest directions by up to eps^(-1/2), and
    with them every rounding error.
    """

    mean: Tensor
    covariance: Tensor
    matrix: Tensor
    updates: Tensor

    def __init__(self, dim: int, *, momentum: float, eps: float) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("covariance", torch.eye(dim, dtype=torch.float64))
        self.register_buffer("matrix", torch.eye(dim, dtype=torch.float64))
        self.register_buffer("updates", torch.zeros((), dtype=torch.float64))

    def forward(self, raw: Tensor) -> Tensor:
        """(..., K) -> (..., K), in float32 or wider."""
        with torch.autocast(raw.device.type, enabled=False):
            white = (raw.double() - self.mean) @ self.matrix
        return white.to(torch.promote_types(raw.dtype, torch.float32))

    def batch_statistics(self, raw: Tensor) -> Tensor:
        """Mean and second moments relative to the present mean: (..., K) -> (1 + K, K).

        Their averages over processes, or over parts of a batch, are those of the whole batch.
        """
        with torch.autocast(raw.device.type, enabled=False):
            offset = raw.flatten(0, -2).double() - self.mean  # (N, K)
            return torch.cat([offset.mean(0, keepdim=True), offset.T @ offset / len(offset)])

    @torch.no_grad()
    def update(self, statistics: Tensor) -> None:
        """Move towards the mean and covariance of a batch, (1 + K, K). The first batches count equally."""
        offset, moments = statistics[0].double(), statistics[1:].double()
        self.move(offset, moments - torch.outer(offset, offset))
        self.compute_matrix()

    @torch.no_grad()
    def move(self, offset: Tensor, covariance: Tensor) -> None:
        """The same without W, for a batch whose mean is the present mean plus `offset` (K,)."""
        self.updates.add_(1.0)
        weight = (1.0 / self.updates).clamp_min(1.0 - self.momentum)
        self.covariance.lerp_(covariance, weight)
        self.mean.add_(weight * offset)

    @torch.no_grad()
    def compute_matrix(self) -> None:
        """W of the present covariance."""
        self.matrix.copy_(inverse_root(self.covariance, eps=self.eps))


class BatchWhitening(nn.Module):
    """BatchNorm without weights that also removes correlations: (N, K) -> (N, K) with covariance I.

    In training by the statistics of the batch, over all processes, with gradient: a direction that shrinks is enlarged
    again, until it is below eps of the mean eigenvalue. Otherwise by moving averages of mean and covariance. (Averages
    of W, as in IterNorm, are too large: the root is convex, and a W from when a direction was small outweighs others.)
    Training does not use the W of the averages: it is computed when evaluation begins and when the state is saved.
    """

    def __init__(self, dim: int, *, eps: float, momentum: float = 0.9) -> None:
        super().__init__()
        self.eps = eps
        self.averages = Whitening(dim, momentum=momentum, eps=eps)
        self.register_state_dict_pre_hook(_compute_matrix)

    def train(self, mode: bool = True) -> "BatchWhitening":
        """Switch to training, or to evaluation."""
        if self.training and not mode:
            self.averages.compute_matrix()
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        """(N, K) -> (N, K), in float32 or wider."""
        if not self.training:
            white: Tensor = self.averages(x)
            return white
        with torch.autocast(x.device.type, enabled=False):
            mean, covariance = global_moments(x.double())
            white = (x.double() - mean) @ inverse_root(covariance, eps=self.eps)
            self.averages.move(mean.detach() - self.averages.mean, covariance.detach())
        return white.to(torch.promote_types(x.dtype, torch.float32))


def _compute_matrix(layer: nn.Module, prefix: str, keep_vars: bool) -> None:
    """A function and not a method of the layer: copies of the layer, such as the target's, copy its hooks."""
    assert isinstance(layer, BatchWhitening)
    if layer.training:
        layer.averages.compute_matrix()


def global_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (K,) and covariance (K, K) of the rows of all processes, which must have equally many: (N, K)."""
    mean = x.mean(0)
    offset = x - mean
    covariance = offset.T @ offset / len(x)
    if dist.is_initialized():
        parts = all_gather_stacked(torch.cat([mean[None], covariance]))  # (processes, 1 + K, K)
        mean = parts[:, 0].mean(0)
        between = parts[:, 0] - mean
        covariance = parts[:, 1:].mean(0) + between.T @ between / len(parts)
    return mean, covariance


def unit_variance(z: Tensor) -> Tensor:
    """Every embedding with length sqrt(K), (..., K) -> (..., K): unusual images have no longer targets than others."""
    return F.normalize(z, dim=-1) * z.shape[-1] ** 0.5


def make_centre(target: ProsminTarget, dim: int) -> Centre | Whitening:
    """What `target.whitening` removes from outputs of size `dim`; a centre that never moves removes nothing."""
    if target.whitening == "whiten":
        return Whitening(dim, momentum=target.whitening_momentum, eps=target.whitening_eps)
    return Centre(dim, momentum=target.centre_momentum if target.whitening == "centre" else 1.0)


def inverse_root(covariance: Tensor, *, eps: float) -> Tensor:
    """(covariance + eps * mean eigenvalue * I)^(-1/2) in float64, (K, K) -> (K, K), by Newton-Schulz iteration.

    It consists of matrix products only, so a GPU computes it without waiting for the host. All eigenvalues, divided by
    the trace, lie in [eps / (K (1 + eps)), 1]. This interval alone determines the number of iterations and the scale
    of each (Chen and Chow, 2014).
    """
    size, eye = len(covariance), torch.eye(len(covariance), dtype=torch.float64, device=covariance.device)
    mean = covariance.double().diagonal().mean().clamp_min(FLOOR)
    trace = size * mean * (1.0 + eps)
    root, inverse = (covariance.double() + eps * mean * eye) / trace, eye
    lowest = math.sqrt(eps / (size * (1.0 + eps)))  # of the square roots of the eigenvalues, which all go to 1
    while lowest < 1.0 - 1e-10:
        scale = math.sqrt(3.0 / (1.0 + lowest + lowest**2))
        step = torch.addmm(eye, inverse, root, beta=1.5 * scale, alpha=-0.5 * scale**3)
        root, inverse = root @ step, step @ inverse
        lowest = 0.5 * scale * lowest * (3.0 - scale**2 * lowest**2)
    return 0.5 * (inverse + inverse.T) / trace.sqrt()
