"""q: the predictor, from the online embedding to a Gaussian over the target's."""

import math

import torch
from torch import Tensor, nn

from prosmin.config import ProsminHeads
from prosmin.models.projector import mlp

LOG_SCALE_RANGE = 5.0
"""A scale stays within a factor of exp(5) = 148 of where it starts, approached smoothly."""


class GaussianPredictor(nn.Module):
    """A two-layer MLP, then a branch for the mean and one for the log-variance."""

    def __init__(self, heads: ProsminHeads) -> None:
        super().__init__()
        dim, hidden = heads.dim, heads.predictor_hidden
        self.body = mlp([dim, hidden, hidden], batchnorm=heads.batchnorm) if heads.predictor else nn.Identity()
        width = hidden if heads.predictor else dim
        self.start = math.log(heads.initial_scale)
        self.mean = nn.Linear(width, dim)
        self.log_variance = nn.Linear(width, dim) if heads.scale == "learned" else None
        # The body keeps the size of its input and the mean starts at the target's own size. With a fixed spread of the
        # weights a wide head forecasts ten times that, and while it shrinks it drags the features into few dimensions.
        for layer in self.body.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=layer.in_features**-0.5)
        nn.init.trunc_normal_(self.mean.weight, std=heads.initial_scale * width**-0.5)
        nn.init.zeros_(self.mean.bias)
        if self.log_variance is not None:
            # Every scale starts at the target's own spread: from 1, twenty times the signal, training is lost in noise.
            nn.init.trunc_normal_(self.log_variance.weight, std=0.002)
            nn.init.constant_(self.log_variance.bias, 2.0 * self.start)

    def forward(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """(N, K) -> mean (N, K), scale (N, K); the deterministic twin's scale is 0."""
        h = self.body(t)
        mean = self.mean(h)
        if self.log_variance is None:
            return mean, torch.zeros_like(mean)
        # exp in float32 or wider: a bf16 scale has three digits.
        log_variance = self.log_variance(h)
        wide = log_variance if log_variance.dtype == torch.float64 else log_variance.float()
        # A picture unlike the others can push a linear branch anywhere and its exponential to infinity.
        bounded = self.start + LOG_SCALE_RANGE * torch.tanh((0.5 * wide - self.start) / LOG_SCALE_RANGE)
        return mean, torch.exp(bounded)
