"""The rows of all processes."""

import torch
import torch.distributed as dist
from torch import Tensor


@torch.no_grad()
def gather_rows(x: Tensor) -> tuple[Tensor, int]:
    """The rows of every process in the order of their ranks, and the number of the first row of this one.

    (..., B, K) -> (..., N, K) without gradient; N is B times the processes, which hold as many rows each.
    """
    if not dist.is_initialized():
        return x, 0
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim=-2), dist.get_rank() * x.shape[-2]
