"""The inner products from which the distances of a Gaussian forecast's samples to its targets are computed.

With D = mean - target and x = scale * noise, |D + x|^2 = |D|^2 + 2 D.x + |x|^2. D is computed once for a view and a
target, x once for a view and a sample, so no tensor has the size V G B S K or S^2.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from prosmin.scoring.distances import dots


def offsets(mean: Tensor, target: Tensor) -> Tensor:
    """D = mean - target: (V, B, K), (G, B, K) -> (V, B, G, K)."""
    return mean[:, :, None] - target.transpose(0, 1)


def spreads(scale: Tensor, noise: Tensor) -> Tensor:
    """x = scale * noise: (V, B, K), (V, B, S, K) -> (V, B, S, K)."""
    return scale[:, :, None] * noise


def inner_products(mean: Tensor, scale: Tensor, target: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """|D|^2 (V, B, G), |x|^2 (V, B, S) and D.x (V, B, G, S)."""
    if torch.compiler.is_compiling():  # the compiler decides itself to compute D and x twice instead of storing them
        offset, spread = offsets(mean, target), spreads(scale, noise)
        return offset.square().sum(-1), spread.square().sum(-1), dots(offset, spread)
    return _InnerProducts.apply(mean, scale, target, noise)


class _InnerProducts(torch.autograd.Function):
    """The same, storing only the inputs for the backward pass.

    Plain autograd stores D and x and adds two gradients to each: 227 MB instead of 154 MB at 18 views, batch 64,
    K 4096, 4 samples (benchmarks/scoring.py).
    """

    @staticmethod
    def forward(mean: Tensor, scale: Tensor, target: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        offset, spread = offsets(mean, target), spreads(scale, noise)
        return _square(offset), _square(spread), offset @ spread.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_offset: Tensor, of_spread: Tensor, of_cross: Tensor) -> tuple[Tensor | None, ...]:
        mean, scale, target, noise = ctx.saved_tensors
        offset = offsets(mean, target)
        spread = spreads(scale, noise).contiguous()  # noise may be transposed; the in-place update needs rows
        # dL/dD_g = 2 a_g D_g + sum_s c_gs x_s, summed over targets for the mean
        to_mean = (2.0 * of_offset)[:, :, None] @ offset  # (V, B, 1, K)
        to_mean = to_mean + of_cross.sum(2, keepdim=True) @ spread
        to_target = None
        if ctx.needs_input_grad[2]:
            to_offset = (2.0 * of_offset)[..., None] * offset + of_cross @ spread  # (V, B, G, K)
            to_target = -to_offset.sum(0).transpose(0, 1)
        # dL/dx_s = 2 b_s x_s + sum_g c_gs D_g, in place, as x is no longer needed
        to_spread = spread.mul_((2.0 * of_spread)[..., None])
        to_spread.view(-1, *to_spread.shape[2:]).baddbmm_(of_cross.mT.flatten(0, 1), offset.flatten(0, 1))
        to_noise = to_spread * scale[:, :, None] if ctx.needs_input_grad[3] else None
        return to_mean[:, :, 0], to_spread.mul_(noise).sum(2), to_target, to_noise


def _square(x: Tensor) -> Tensor:
    """|x|^2 over the last dimension, without storing the squares."""
    return torch.linalg.vector_norm(x, dim=-1).square()
