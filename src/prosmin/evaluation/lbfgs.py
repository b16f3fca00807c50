"""L-BFGS for several smooth, strictly convex problems of one shape at once, in as few operations as it takes.

On a GPU the small operations between two evaluations cost more than the evaluation, so problems that can be solved
side by side are. Each has its own steps and its own end: none depends on its company, but for rounding.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Points (P, M) -> values (P,) and gradients (P, M)."""

_HISTORY = 20
_MAX_STEPS = 1000
_MAX_SHORTENINGS = 30
_DECREASE = 1e-4  # of what the slope promises, which a step must bring (Armijo)
_ROUNDING = 1e-14  # of the value: what a step may rise by where there is nothing left to gain


def minimise(objective: Objective, start: Tensor, *, tolerance: float) -> Tensor:
    """The points (P, M) at which no component of a gradient is larger than the tolerance.

    A step is shortened until the value falls by enough; that is all a line search has to do, since convexity alone
    gives every pair of steps and slopes the positive curvature that the method needs.
    """
    point = start
    value, slope = objective(point)
    pairs = start.new_empty(len(start), 2, 0, start.shape[1])  # (P, 2, H, M): steps and changes of slope, latest last
    done = torch.linalg.vector_norm(slope, torch.inf, dim=1) <= tolerance  # (P,)
    for _ in range(_MAX_STEPS):
        if bool(done.all()):
            break
        direction = (-_by_inverse_curvature(slope, pairs)).masked_fill_(done[:, None], 0.0)
        promised = (slope * direction).sum(1)
        new, new_value, new_slope, moved = _step(objective, point, direction, value, promised)
        pair = torch.stack([new - point, new_slope - slope], dim=1)  # (P, 2, M)
        # A problem that is done, or stuck, has none: zeros leave it out.
        curved = pair.prod(1).sum(1) > 0
        pair.masked_fill_(~curved[:, None, None], 0.0)
        pairs = torch.cat([pairs[:, :, 1 - _HISTORY :], pair[:, :, None]], dim=2)
        point, value, slope = new, new_value, new_slope
        done = done | ~moved | (torch.linalg.vector_norm(slope, torch.inf, dim=1) <= tolerance)
    return point


def _step(
    objective: Objective, point: Tensor, direction: Tensor, value: Tensor, promised: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The next points with their values and gradients, and which of them moved, (P,)."""
    length, grace = torch.ones_like(value), _ROUNDING * value.abs()
    for _ in range(_MAX_SHORTENINGS):
        new = torch.addcmul(point, length[:, None], direction)
        new_value, new_slope = objective(new)
        enough = new_value <= value + _DECREASE * length * promised + grace
        if bool(enough.all()):
            return new, new_value, new_slope, enough
        # The least point of the parabola through both values and the slope, not closer than a tenth.
        bend = new_value - value - length * promised
        shorter = (-0.5 * promised * length.square() / bend).nan_to_num(0.0)
        length = torch.where(enough, length, shorter.clamp(0.1 * length, 0.5 * length))
    new = torch.where(enough[:, None], new, point)
    return new, *objective(new), enough


def _by_inverse_curvature(slope: Tensor, pairs: Tensor) -> Tensor:
    """The gradients g times the inverse curvature that the last steps S and changes Y, rows of `pairs`, have shown.

    Nocedal's two loops as products (Byrd, Nocedal and Schnabel, 1994), a tenth of the operations:
    c g + u S - c w Y  with  w L = g S',  u L' = w D + c (w Y Y' - g Y'),  L the lower triangle of Y S', D its diagonal
    and c = s y / y y of the latest pair.
    """
    if not pairs.shape[2]:
        return slope
    rows = pairs.flatten(1, 2)  # (P, 2 H, M)
    with_steps, with_changes = (pairs[:, 1] @ rows.mT).chunk(2, dim=2)  # (P, H, H)
    curvature = with_steps.diagonal(dim1=1, dim2=2)[:, None]  # (P, 1, H)
    missing = curvature == 0
    lower = with_steps.tril() + missing[:, 0].to(slope).diag_embed()
    size = (curvature[..., -1:] / with_changes[:, -1:, -1:]).masked_fill_(missing[..., -1:], 1.0)  # (P, 1, 1)
    by_steps, by_changes = (slope[:, None] @ rows.mT).chunk(2, dim=2)  # (P, 1, H)
    w = torch.linalg.solve_triangular(lower, by_steps, upper=False, left=False)
    inner = w * curvature + size * (w @ with_changes - by_changes)
    u = torch.linalg.solve_triangular(lower.mT, inner, upper=True, left=False)
    return (size * slope[:, None] + torch.cat([u, -size * w], dim=2) @ rows)[:, 0]
