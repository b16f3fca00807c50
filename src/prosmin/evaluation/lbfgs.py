"""L-BFGS for several smooth, strictly convex problems of one shape at once, in as few operations as it takes.

On a GPU the small operations between two evaluations cost more than the evaluation, so problems that can be solved
side by side are. Each has its own steps and its own end: none depends on its company, but for rounding.
"""

from collections import deque
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
    pairs: deque[tuple[Tensor, Tensor, Tensor]] = deque(maxlen=_HISTORY)
    active = slope.abs().amax(1) > tolerance  # (P,)
    for _ in range(_MAX_STEPS):
        if not bool(active.any()):
            break
        direction = torch.where(active[:, None], -_by_inverse_curvature(slope, pairs), 0.0)
        promised = (slope * direction).sum(1)
        new, new_value, new_slope, moved = _step(objective, point, direction, value, promised)
        step, change = new - point, new_slope - slope
        curvature = (step * change).sum(1)
        # A problem that is done, or stuck, has no pair: 0 in the place of 1 / curvature leaves it out.
        pairs.append((step, change, torch.where(curvature > 0, 1.0 / curvature, 0.0)))
        point, value, slope = new, new_value, new_slope
        active = active & moved & (slope.abs().amax(1) > tolerance)
    return point


def _step(
    objective: Objective, point: Tensor, direction: Tensor, value: Tensor, promised: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The next points with their values and gradients, and which of them moved, (P,)."""
    length = torch.ones_like(value)
    for _ in range(_MAX_SHORTENINGS):
        new = point + length[:, None] * direction
        new_value, new_slope = objective(new)
        enough = new_value <= value + _DECREASE * length * promised + _ROUNDING * value.abs()
        if bool(enough.all()):
            break
        # The least point of the parabola through both values and the slope, not closer than a tenth.
        bend = new_value - value - length * promised
        shorter = (-0.5 * promised * length.square() / bend).nan_to_num(0.0)
        length = torch.where(enough, length, shorter.clamp(0.1 * length, 0.5 * length))
    stays = ~enough
    new = torch.where(stays[:, None], point, new)
    if bool(stays.any()):
        new_value, new_slope = objective(new)
    return new, new_value, new_slope, ~stays


def _by_inverse_curvature(slope: Tensor, pairs: deque[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """The gradients times the inverse curvature that the last steps have shown: Nocedal's two loops."""
    result = slope
    shares: list[Tensor] = []
    for step, change, inverse in reversed(pairs):
        share = inverse * (step * result).sum(1)
        result = result - share[:, None] * change
        shares.append(share)
    if pairs:
        _, change, inverse = pairs[-1]
        size = inverse * change.square().sum(1)
        result = result / torch.where(size > 0, size, 1.0)[:, None]
    for (step, change, inverse), share in zip(pairs, reversed(shares), strict=True):
        result = result + (share - inverse * (change * result).sum(1))[:, None] * step
    return result
