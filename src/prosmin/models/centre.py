"""The centre: a moving average of the target's raw outputs, subtracted from them before scoring."""

import torch
from torch import Tensor, nn


class Centre(nn.Module):
    """centre = momentum * centre + (1 - momentum) * mean of the RAW outputs.

    The published ProSMIN code averages the centred outputs instead, which converges to half the mean.
    """

    value: Tensor

    def __init__(self, dim: int, *, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("value", torch.zeros(dim))

    def forward(self, z: Tensor) -> Tensor:
        """(..., K) -> (..., K)."""
        return z - self.value

    def batch_statistics(self, raw: Tensor) -> Tensor:
        """What `update` needs of a batch: (..., K) -> (K,)."""
        return batch_mean(raw)

    @torch.no_grad()
    def update(self, batch_mean: Tensor) -> None:
        """Move towards the mean of a batch of raw outputs, (K,)."""
        self.value.lerp_(batch_mean.to(self.value.dtype), 1.0 - self.momentum)


def batch_mean(raw: Tensor) -> Tensor:
    """The mean over views and images in float32 or wider, (G, B, ..., K) -> (K,)."""
    return raw.flatten(0, -2).mean(0, dtype=torch.promote_types(raw.dtype, torch.float32))
