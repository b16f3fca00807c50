"""Gradient clipping: by the norm over all parameters, or each parameter by its own."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from prosmin.config import OptimizerConfig


def clip_gradients(parameters: Sequence[nn.Parameter], config: OptimizerConfig) -> Tensor:
    """Clip in place; the norm over all parameters before that, (). The host never waits for the device."""
    limit = config.clip or float("inf")
    if not config.clip_each:
        return nn.utils.clip_grad_norm_(parameters, limit, foreach=True).detach()
    gradients = [p.grad for p in parameters if p.grad is not None]
    norms = torch.stack(torch._foreach_norm(gradients))  # one per parameter
    factors = (limit / (norms + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(gradients, list(factors.unbind()))
    return torch.linalg.vector_norm(norms)
