"""q: the predictor, from the online embedding to a Gaussian over the target's."""

import torch
from torch import Tensor, nn

from prosmin.config import ProsminHeads
from prosmin.models.projector import mlp

LOG_SCALE_RANGE = 5.0
"""A scale stays within a factor of exp(5) = 148 of where it starts, approached smoothly."""

LOG_SCALE_GAIN = 0.1
"""How far the branch of the log-variance moves a logarithm: see `GaussianPredictor`."""


class GaussianPredictor(nn.Module):
    """A two-layer MLP, then a branch for the mean and one for the log-variance.

    Input and both branches are in units of the target's spread, `initial_scale`, and weights have the usual size. A
    step of Adam moves every weight by about the learning rate, whatever the weight's size: weights that made numbers of
    0.05 from two thousand units of order 1 would be moved by twice their size at a rate of 0.001, the forecast would
    run ahead of its target in every step, and the target would give up its spread to make it right.
    """

    def __init__(self, heads: ProsminHeads) -> None:
        super().__init__()
        dim, hidden = heads.dim, heads.predictor_hidden
        self.body = mlp([dim, hidden, hidden], batchnorm=heads.batchnorm) if heads.predictor else nn.Identity()
        width = hidden if heads.predictor else dim
        # In the checkpoint: weights from before there was a unit have the same shapes and mean something else.
        self.unit: Tensor
        self.register_buffer("unit", torch.tensor(heads.initial_scale))
        self.mean = nn.Linear(width, dim)
        self.log_variance = nn.Linear(width, dim) if heads.scale == "learned" else None
        # Every layer keeps about the size of its input, so that the forecast starts at the target's own size whatever
        # the width of the head: from a scale of 1, twenty times the signal, training is lost in noise.
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=layer.in_features**-0.5)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """(N, K) -> mean (N, K), scale (N, K); the deterministic twin's scale is 0."""
        h = self.body(t / self.unit)
        mean = self.unit * self.mean(h)
        if self.log_variance is None:
            return mean, torch.zeros_like(mean)
        # exp in float32 or wider: a bf16 scale has three digits.
        log_variance = self.log_variance(h)
        wide = log_variance if log_variance.dtype == torch.float64 else log_variance.float()
        # A picture unlike the others can push a linear branch anywhere and its exponential to infinity.
        log_scale = LOG_SCALE_RANGE * torch.tanh(0.5 * LOG_SCALE_GAIN * wide / LOG_SCALE_RANGE)
        return mean, self.unit * torch.exp(log_scale)
