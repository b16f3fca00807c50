"""BatchNorm over the global batch: every process contributes to the statistics, on any backend.

torch's SyncBatchNorm refuses the CPU. Here the mean and the mean square are averaged over the processes, once a layer
forward and once backward, so that 2 processes of 32 pictures train the model that 1 process of 64 trains.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class _AverageOverProcesses(torch.autograd.Function):
    """The mean of a tensor over the processes, with its gradient."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        y = x.clone()
        dist.all_reduce(y)
        return y / dist.get_world_size()

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total / dist.get_world_size()


class GlobalBatchNorm(_BatchNorm):
    """BatchNorm1d and BatchNorm2d alike, (B, C) or (B, C, h, w); every process must hold as many pictures."""

    def _check_input_dim(self, input: Tensor) -> None:
        assert input.ndim in (2, 4)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise by the statistics of the global batch in training, by the running ones otherwise."""
        if not self.training or not dist.is_initialized():
            return super().forward(input)
        wide = input if input.dtype == torch.float64 else input.float()
        over = [0, *range(2, input.ndim)]
        local = torch.stack([wide.mean(over), wide.square().mean(over)])  # (2, C)
        mean, square = _AverageOverProcesses.apply(local)
        variance = (square - mean.square()).clamp_min(0.0)
        self._follow(mean.detach(), variance.detach(), count=wide.numel() // wide.shape[1] * dist.get_world_size())
        shape = (1, -1, *([1] * (input.ndim - 2)))
        normal = (wide - mean.view(shape)) * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(input.dtype)

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor, *, count: int) -> None:
        """Move the running statistics, with the unbiased variance, as torch does."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_((variance * count / max(count - 1, 1)).to(self.running_var.dtype), self.momentum)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)


def synchronise_batchnorm(module: nn.Module) -> None:
    """Replace every BatchNorm1d and BatchNorm2d below `module`, keeping parameters, buffers and names."""
    for name, child in list(module.named_children()):
        if type(child) in (nn.BatchNorm1d, nn.BatchNorm2d):  # not a subclass that does more
            assert isinstance(child, _BatchNorm)
            twin = GlobalBatchNorm(child.num_features, eps=child.eps, momentum=child.momentum, affine=child.affine)
            twin.__dict__.update(child.__dict__)  # the very same parameters and buffers
            setattr(module, name, twin)
        else:
            synchronise_batchnorm(child)
