"""Distances between points: accumulated in float32 or wider, with finite gradients at distance 0.

Every rule has the form `2 lam E rho(Z, z) - (1 - lam) E rho(Z, Z')` and differs only in the distance rho: |.|^beta for
the energy score, the mean over coordinates of |.|^beta for its coordinate form, 1 - k for the kernel score.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from prosmin.errors import UsageError
from prosmin.scoring.arguments import check_not_empty

Distance = Callable[[Tensor], Tensor]  # squared Euclidean distance -> rho

# Squared distance below which value and gradient are 0: for beta < 1 the slope at distance 0 is infinite.
FLOOR = 1e-24
NARROW = 16  # dimensions up to which squares are accumulated in float64
ROUNDING = 32  # rounding errors, in units of eps, of |a|^2 + |b|^2 + 2 a.b when a = -b


def outside_autocast(tensor: Tensor) -> torch.autocast:
    """Autocast would compute inner products in bfloat16, where a sum of squares has two digits."""
    return torch.autocast(device_type=tensor.device.type, enabled=False)


def result_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 if an input is, else float32."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def product_dtype(*tensors: Tensor) -> torch.dtype:
    """The dtype in which |a + b|^2 = |a|^2 + |b|^2 + 2 a.b is formed.

    a and b nearly cancel only in few dimensions: for random directions in d dimensions, the probability falls like
    (distance)^d. So few dimensions use float64, which costs little there, and many use float32.
    """
    return torch.float64 if tensors[0].shape[-1] <= NARROW else result_dtype(*tensors)


def dots(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of all rows: (..., m, d), (..., n, d) -> (..., m, n)."""
    # A compiler fuses a few products and their sum into the code around them and stores nothing of size m n d; before
    # a matrix product it would store a and b.
    if torch.compiler.is_compiling() and a.shape[-2] * b.shape[-2] <= 64:
        return (a[..., :, None, :] * b[..., None, :, :]).sum(-1)
    return a @ b.mT


def squared_distance(a: Tensor, b: Tensor, cross: Tensor) -> Tensor:
    """|a|^2 + |b|^2 + cross, and 0 where that is within its rounding error of 0."""
    total = a + b
    squared = total + cross
    return torch.where(squared <= ROUNDING * torch.finfo(squared.dtype).eps * total, 0.0, squared)


def power_distance(squared: Tensor, beta: float) -> Tensor:
    """|.|^beta from the squared distance; value and gradient are 0 below the floor."""
    zero = squared <= FLOOR  # in this form, NaN stays NaN
    # The inner `where` keeps the infinite slope at 0 out of the backward pass: 0 * inf is NaN.
    power = torch.where(zero, 1.0, squared).pow(beta / 2)
    return torch.where(zero, 0.0, power)


def pairs_of(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The two items of every pair of different items along a dimension: r become r (r - 1) / 2, twice.

    Slices and not indices: the gradient of an index is a sum at each item, which a GPU computes in any order.
    """
    r = x.shape[dim]
    first = [x.narrow(dim, 0, r - apart) for apart in range(1, r + 1)]  # the last is empty
    second = [x.narrow(dim, apart, r - apart) for apart in range(1, r + 1)]
    return torch.cat(first, dim), torch.cat(second, dim)


def kernel_distance(squared: Tensor, bandwidth: float | Tensor) -> Tensor:
    """1 - exp(-|.|^2 / (2 bandwidth^2)), without the cancellation at short distances."""
    return -torch.expm1(squared / (-2.0 * bandwidth**2))


def coordinate_power(difference: Tensor, beta: float) -> Tensor:
    """|.|^beta of every coordinate; the gradient at 0 is 0."""
    return difference.abs() if beta == 1.0 else power_distance(difference.square(), beta)


def median_bandwidth(target: Tensor, *, validate: bool = True) -> Tensor:
    """The median distance between different targets, detached: (..., d) -> ().

    It must not depend on the forecast, which could otherwise lower its score by changing the bandwidth.
    `validate` refuses targets that are all equal, and waits for the device.
    """
    check_not_empty("target", target)
    if target[..., 0].numel() < 2:
        raise UsageError(
            f"bandwidth is none and target has shape {tuple(target.shape)}; give a bandwidth, or two targets or more."
        )
    if validate and bool((target == target.reshape(-1, target.shape[-1])[0]).all()):
        raise UsageError("bandwidth is none and all targets are equal; give a bandwidth, a number above 0.")
    with outside_autocast(target):
        points = target.detach().flatten(0, -2).to(product_dtype(target))
        points = points - points.mean(0)  # distances stay the same, and the products cancel less
        gram = dots(points, points)  # (n, n)
        squares = gram.diagonal()
        i, j = torch.triu_indices(len(points), len(points), offset=1, device=target.device)
        squared = squared_distance(squares[i], squares[j], -2.0 * gram[i, j])
        return power_distance(squared, 1.0).median().clamp(min=FLOOR**0.5).to(result_dtype(target))
