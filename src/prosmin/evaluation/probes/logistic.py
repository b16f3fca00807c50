"""Logistic regression by L-BFGS, for several problems of one shape at once.

On a GPU the small operations between two evaluations cost more than the evaluation, so problems are solved side by
side. Each has its own steps and its own end: apart from rounding, none depends on the others.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from prosmin.randomness import generator

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Points (P, M) -> values (P,) and gradients (P, M)."""

_HISTORY = 20
_MAX_STEPS = 1000
_MAX_SHORTENINGS = 30
_DECREASE = 1e-4  # share of the expected decrease that a step must reach (Armijo)
_ROUNDING = 1e-14  # relative increase of the value that counts as rounding


def minimise(objective: Objective, start: Tensor, *, tolerance: float) -> Tensor:
    """The points (P, M) at which no component of a gradient is larger than the tolerance.

    The line search only shortens a step until the value falls enough: convexity gives the positive curvature that
    L-BFGS needs.
    """
    point = start
    value, slope = objective(point)
    pairs = start.new_empty(len(start), 2, 0, start.shape[1])  # (P, 2, H, M): steps and changes of slope, latest last
    done = torch.linalg.vector_norm(slope, torch.inf, dim=1) <= tolerance  # (P,)
    for _ in range(_MAX_STEPS):
        if bool(done.all()):
            break
        direction = (-_by_inverse_curvature(slope, pairs)).masked_fill_(done[:, None], 0.0)
        expected = (slope * direction).sum(1)
        new, new_value, new_slope, moved = _step(objective, point, direction, value, expected)
        pair = torch.stack([new - point, new_slope - slope], dim=1)  # (P, 2, M)
        # A problem that is done, or stuck, has no curvature: zeros leave it out.
        curved = pair.prod(1).sum(1) > 0
        pair.masked_fill_(~curved[:, None, None], 0.0)
        pairs = torch.cat([pairs[:, :, 1 - _HISTORY :], pair[:, :, None]], dim=2)
        point, value, slope = new, new_value, new_slope
        done = done | ~moved | (torch.linalg.vector_norm(slope, torch.inf, dim=1) <= tolerance)
    return point


def _step(
    objective: Objective, point: Tensor, direction: Tensor, value: Tensor, expected: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The next points with their values and gradients, and which of them moved, (P,)."""
    length, rounding = torch.ones_like(value), _ROUNDING * value.abs()
    for _ in range(_MAX_SHORTENINGS):
        new = torch.addcmul(point, length[:, None], direction)
        new_value, new_slope = objective(new)
        enough = new_value <= value + _DECREASE * length * expected + rounding
        if bool(enough.all()):
            return new, new_value, new_slope, enough
        # The minimum of the parabola through both values and the slope, at least a tenth of the step.
        bend = new_value - value - length * expected
        shorter = (-0.5 * expected * length.square() / bend).nan_to_num(0.0)
        length = torch.where(enough, length, shorter.clamp(0.1 * length, 0.5 * length))
    new = torch.where(enough[:, None], new, point)
    return new, *objective(new), enough


def _by_inverse_curvature(slope: Tensor, pairs: Tensor) -> Tensor:
    """The gradients g times the inverse curvature estimated from the last steps S and changes Y, rows of `pairs`.

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


Solution = tuple[Tensor, Tensor]
"""Weight (P, C, D) and bias (P, C) for the inputs of a problem, one of each part."""

_GRADIENT = 1e-6  # largest component left, in coordinates whose curvature is about 1
_RANK = 512  # principal axes with a variance each; with more features, the others share one variance
_ROUNDS = 4  # of subspace iteration, if not all axes are computed
_LOGITS = 2**27  # in memory at once: 1 GiB


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Principal axes of standardised features: directions (D, r), variance (r,) and the mean of the rest."""

    directions: Tensor
    variance: Tensor
    rest: Tensor


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Standardised features, inputs (N, D) = (features - mean) / std, and labels (N,): for any part and l2."""

    inputs: Tensor
    labels: Tensor
    classes: int
    mean: Tensor
    std: Tensor
    axes: Axes


def prepare(features: Tensor, labels: Tensor, *, classes: int) -> Problem:
    """Standardise features (N, D)."""
    features = features.double()
    mean, std = features.mean(0), _sound(features.std(0, correction=0))
    inputs = (features - mean).div_(std)
    return Problem(inputs=inputs, labels=labels, classes=classes, mean=mean, std=std, axes=_principal_axes(inputs))


def solve(problem: Problem, l2: float, *, seen: Tensor | None = None, start: Solution | None = None) -> Solution:
    """The solution for each part, `seen` (P, N); by default the only part is everything.

    Each part is standardised by its own mean and deviation, and the penalty is on those weights; the solution is
    given for the inputs of the whole problem. `start` is the solution at another l2.
    """
    if seen is None:
        seen = torch.ones(1, len(problem.labels), dtype=torch.bool, device=problem.labels.device)
    together = max(1, _LOGITS // (len(problem.labels) * problem.classes))
    parts = [slice(first, first + together) for first in range(0, len(seen), together)]
    solved = [_solve(problem, l2, seen[part], start and (start[0][part], start[1][part])) for part in parts]
    return torch.cat([weight for weight, _ in solved]), torch.cat([bias for _, bias in solved])


def _solve(problem: Problem, l2: float, seen: Tensor, start: Solution | None) -> Solution:
    inputs, labels, classes = problem.inputs, problem.labels, problem.classes
    parts, (count, size) = len(seen), inputs.shape
    row = torch.arange(count, device=labels.device)
    share = (seen.to(inputs) / seen.sum(1, keepdim=True)).T  # (N, P): weight of an image in the mean
    # A part's own standardisation is (inputs - middle) / spread.
    middle = (share.T @ inputs)[..., None]  # (P, D, 1)
    spread = _sound((share.T @ inputs.square() - middle[..., 0].square()).clamp_min_(0).sqrt_())[:, None]  # (P, 1, D)
    pull, bias_pull = _pull(problem, share)
    shrink, stretch = _preconditioner(problem, l2)
    bias_unit = classes**0.5  # the bias's curvature at zero is 1 / C

    def read(point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The weights for the part's standardised features, and weights and bias for the inputs."""
        point = point.view(parts, classes, size + 1)
        own = point[..., :-1] @ shrink  # (P, C, D)
        weight = own / spread
        bias = torch.baddbmm(point[..., -1:], weight, middle, beta=bias_unit, alpha=-1)[..., 0]
        return own, weight, bias

    def objective(point: Tensor) -> tuple[Tensor, Tensor]:
        own, weight, bias = read(point)
        logits = torch.addmm(bias.flatten(), inputs, weight.flatten(0, 1).T)  # (N, P C): one product for all parts
        log_probabilities = logits.view(count, parts, classes).log_softmax(-1)
        value = l2 / 2 * own.square().sum((1, 2)) - (share * log_probabilities[row, :, labels]).sum(0)
        # The gradient by hand: few lines, and it works in inference mode.
        push = log_probabilities.exp_().mul_(share[..., None])
        by_bias = push.sum(0) - bias_pull  # (P, C)
        slope = torch.addmm(pull, push.flatten(1).T, inputs, beta=-1).view(parts, classes, size)
        slope = torch.baddbmm(slope, by_bias[..., None], middle.mT, alpha=-1).div_(spread).add_(own, alpha=l2)
        return value, torch.cat([slope @ shrink, by_bias[..., None] * bias_unit], dim=-1).flatten(1)

    first = inputs.new_zeros(parts, classes, size + 1)
    if start is not None:
        weight, bias = start
        first[..., :-1] = (weight * spread) @ stretch
        first[..., -1] = (bias + (weight @ middle)[..., 0]) / bias_unit
    _, weight, bias = read(minimise(objective, first.flatten(1), tolerance=_GRADIENT))
    return weight, bias


def _pull(problem: Problem, share: Tensor) -> tuple[Tensor, Tensor]:
    """The labels' part of the gradient, the same at every point: by weight (P C, D) and bias (P, C)."""
    right = F.one_hot(problem.labels, problem.classes)[:, None] * share[..., None]  # (N, P, C)
    return right.flatten(1).T @ problem.inputs, right.sum(0)


def _sound(std: Tensor) -> Tensor:
    """Deviations to divide by: 1 for a constant feature, whose rounding errors would become noise."""
    return torch.where(std > 1e-6 * std.amax(-1, keepdim=True), std, torch.ones_like(std))


def _preconditioner(problem: Problem, l2: float) -> tuple[Tensor, Tensor]:
    """The preconditioner from L-BFGS's coordinates to weights, and its inverse: (D, D), symmetric.

    One factor along each principal axis, one for the rest.
    """
    directions = problem.axes.directions
    along = (problem.axes.variance / problem.classes + l2).sqrt()
    rest = (problem.axes.rest / problem.classes + l2).sqrt()
    whole = torch.eye(len(directions), dtype=directions.dtype, device=directions.device)
    shrink, stretch = (
        whole * across + (directions * (factors - across)) @ directions.T
        for factors, across in ((1 / along, 1 / rest), (along, rest))
    )
    return shrink, stretch


def _principal_axes(inputs: Tensor) -> Axes:
    covariance = inputs.T @ inputs / len(inputs)
    size, rank = len(covariance), min(len(covariance), _RANK)
    if rank == size:
        variance, directions = torch.linalg.eigh(covariance)
    else:  # all axes of many features would cost more than the fit
        random = generator(0, 0, "principal axes")
        start = torch.randn(size, rank, generator=random, dtype=covariance.dtype).to(covariance.device)
        basis = torch.linalg.qr(start).Q
        for _ in range(_ROUNDS):
            basis = torch.linalg.qr(covariance @ basis).Q
        variance, turn = torch.linalg.eigh(basis.T @ covariance @ basis)
        directions = basis @ turn
    variance = variance.clamp_min(0)
    rest = (covariance.trace() - variance.sum()).clamp_min(0) / max(size - rank, 1)
    return Axes(directions=directions, variance=variance, rest=rest)
