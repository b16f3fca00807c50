"""Several processes: BatchNorm over the global batch, and rows gathered from all processes."""

import torch
import torch.distributed as dist
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from prosmin.errors import UsageError


class _AllGather(torch.autograd.Function):
    """The tensors of all processes, stacked, with gradient: (...) -> (processes, ...)."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total[dist.get_rank()]


def all_gather_stacked(x: Tensor) -> Tensor:
    """The tensors of all processes with gradient: (...) -> (processes, ...)."""
    gathered: Tensor = _AllGather.apply(x)
    return gathered


class GlobalBatchNorm(_BatchNorm):
    """BatchNorm of (B, C) or (B, C, h, w); every process must have the same number of images."""

    def _check_input_dim(self, input: Tensor) -> None:
        assert input.ndim in (2, 4)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise by the statistics of the global batch in training, by the running statistics otherwise."""
        if not self.training or not dist.is_initialized():
            return super().forward(input)
        wide = input if input.dtype == torch.float64 else input.float()
        over = [0, *range(2, input.ndim)]
        variances, means = torch.var_mean(wide, over, correction=0)
        means, variances = all_gather_stacked(torch.stack([means, variances])).unbind(1)  # (processes, C) each
        mean = means.mean(0)
        # Variance within plus between processes: E[x^2] - E[x]^2 would lose the digits of a small variance.
        variance = variances.mean(0) + (means - mean).square().mean(0)
        count = wide.numel() // wide.shape[1] * dist.get_world_size()
        self._update_running(mean.detach(), variance.detach(), count=count)
        shape = (1, -1, *([1] * (input.ndim - 2)))
        normal = (wide - mean.view(shape)) * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(input.dtype)

    @torch.no_grad()
    def _update_running(self, mean: Tensor, variance: Tensor, *, count: int) -> None:
        """Update the running statistics, with the unbiased variance, as torch does."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_((variance * count / max(count - 1, 1)).to(self.running_var.dtype), self.momentum)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)


class GlobalBatchNormAct(GlobalBatchNorm):
    """The counterpart of timm's BatchNorm with dropout and activation."""

    drop: nn.Module
    act: nn.Module

    def forward(self, input: Tensor) -> Tensor:
        """Normalise, then drop and activate."""
        return self.act(self.drop(super().forward(input)))


REPLACEMENTS: dict[type, type[GlobalBatchNorm]] = {
    nn.BatchNorm1d: GlobalBatchNorm,
    nn.BatchNorm2d: GlobalBatchNorm,
    BatchNormAct2d: GlobalBatchNormAct,
}
"""By exact type: a subclass may compute something else."""


def synchronise_batchnorm(module: nn.Module) -> None:
    """Replace every BatchNorm below `module`, keeping parameters, buffers and names; refuse unknown kinds."""
    for name, child in list(module.named_children()):
        if type(child) in REPLACEMENTS:
            assert isinstance(child, _BatchNorm)
            kind = REPLACEMENTS[type(child)]
            shared = kind(child.num_features, eps=child.eps, momentum=child.momentum, affine=child.affine)
            shared.__dict__.update(child.__dict__)  # the same parameters and buffers
            setattr(module, name, shared)
        elif isinstance(child, _BatchNorm) and not isinstance(child, GlobalBatchNorm):
            raise UsageError(
                f"This backbone uses {type(child).__name__}, whose statistics cannot be computed over several "
                "processes. Train it in one process, or choose another backbone."
            )
        else:
            synchronise_batchnorm(child)


@torch.no_grad()
def gather_rows(x: Tensor) -> tuple[Tensor, int]:
    """The rows of all processes in rank order, and the index of this process's first row.

    (..., B, K) -> (..., N, K) without gradient, N = B * processes.
    """
    if not dist.is_initialized():
        return x, 0
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim=-2), dist.get_rank() * x.shape[-2]
