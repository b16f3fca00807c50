"""Identification: find an image's target among all targets of the batch (InfoNCE: van den Oord et al., 2018).

A scoring rule rewards a forecast that is close to the target, even if all targets are nearly the same. Identification
makes targets differ: from the forecast's mean, the target of the same image has to be found among those of the batch.
Its gradient passes through the predictor q but does not change it: q is trained by the scoring rule alone, so that its
forecast stays proper.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def constant(module: nn.Module) -> Iterator[None]:
    """Within the block gradients pass through the module; its parameters get none, BatchNorm's averages stay."""
    learning = [p for p in module.parameters() if p.requires_grad]
    norms = [(m, m.momentum) for m in module.modules() if isinstance(m, _BatchNorm)]
    for parameter in learning:
        parameter.requires_grad_(False)
    for norm, _ in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)
        for norm, momentum in norms:
            norm.momentum = momentum


def in_columns(logits: Tensor, columns: Tensor) -> Tensor:
    """The entry of each row in its own column: (..., B, N), (B,) -> (..., B).

    The sum of one entry and zeros: the gradient of `gather` is a scatter, whose deterministic form waits for the host.
    """
    chosen = torch.arange(logits.shape[-1], device=logits.device) == columns[:, None]  # (B, N)
    return torch.where(chosen, logits, 0.0).sum(-1)


class Identification(nn.Module):
    """The cross-entropy of picking the right target, as a module so that it is compiled with the networks."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, mean: Tensor, targets: Tensor, rows: Tensor) -> Tensor:
        """mean (V, B, K), targets of all images (G, N, K), rows (B,) of the right targets -> (V, G, B).

        Similarity is the cosine, so that the size of a forecast does not matter.
        """
        with torch.autocast(mean.device.type, enabled=False):
            wide = torch.promote_types(mean.dtype, torch.float32)
            online, others = F.normalize(mean.to(wide), dim=-1), F.normalize(targets.to(wide), dim=-1)
            logits = torch.einsum("vbk,gnk->vgbn", online, others) / self.temperature
            return logits.logsumexp(-1) - in_columns(logits, rows)
