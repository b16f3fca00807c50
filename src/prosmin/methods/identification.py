"""Telling the own target among those of the batch: what makes representations discriminate, beside the forecast.

A scoring rule asks where the target will be, and is as content with targets that hardly differ. Identification asks
whose target it is: from the forecast's mean, the target of the same image has to be found among the targets of all
images of the batch, a log score over as many answers (InfoNCE: van den Oord et al., 2018). It reaches f and g through
a predictor that is held still, so that q itself is trained by the scoring rule alone and its forecast stays proper: q
has no way to trade calibration against recognition.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def held_still(module: nn.Module) -> Iterator[None]:
    """Within the block gradients pass through the module but not to its parameters; BatchNorm's averages stay."""
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


class Identification(nn.Module):
    """The cross-entropy of picking the own target; a module, so that it compiles like the networks."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, mean: Tensor, targets: Tensor, own: Tensor) -> Tensor:
        """mean (V, B, K), targets of all images (G, N, K), own (B,): the row of each image -> (V, G, B).

        By cosines, so that the size of a forecast does not matter.
        """
        with torch.autocast(mean.device.type, enabled=False):
            wide = torch.promote_types(mean.dtype, torch.float32)
            online, others = F.normalize(mean.to(wide), dim=-1), F.normalize(targets.to(wide), dim=-1)
            logits = torch.einsum("vbk,gnk->vgbn", online, others) / self.temperature
            rows = own.expand(*logits.shape[:2], -1)[..., None]
            return logits.logsumexp(-1) - logits.gather(-1, rows)[..., 0]
