"""Multinomial logistic regression with an L2 penalty, to its optimum: full-batch L-BFGS in float64.

The objective  mean cross-entropy + l2 / 2 * |weight|^2  is convex, so the answer does not depend on how it is
found, but the coordinates decide how long that takes: along the principal axes of the features each direction
is measured in units of the objective's curvature at zero, variance / C + l2. Some tens of steps then do.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from prosmin.randomness import generator

Solution = tuple[Tensor, Tensor]
"""Weight (C, D) and bias (C,) for standardised features."""

_MAX_ITERATIONS = 1000
_GRADIENT = 1e-6  # largest component left, in coordinates whose curvature is about 1
_RANK = 512  # axes that are told apart; with more features, the rest of them share one variance
_ROUNDS = 4  # of subspace iteration, where not all axes are wanted


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Principal axes of standardised features: directions (D, r), variance (r,) and the mean of the rest."""

    directions: Tensor
    variance: Tensor
    rest: Tensor


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Standardised features, inputs (N, D) = (features - mean) / std, and labels (N,): ready for any l2."""

    inputs: Tensor
    labels: Tensor
    classes: int
    mean: Tensor
    std: Tensor
    axes: Axes


def prepare(features: Tensor, labels: Tensor, *, classes: int, axes: Axes | None = None) -> Problem:
    """Standardise features (N, D). Axes only set the pace, so those of a problem much alike can be given."""
    features = features.double()
    mean, std = features.mean(0), features.std(0, correction=0)
    # A feature that never moves says nothing; dividing its rounding errors by their size would make noise.
    std = torch.where(std > 1e-6 * std.max(), std, torch.ones_like(std))
    inputs = (features - mean) / std
    axes = axes or _principal_axes(inputs)
    return Problem(inputs=inputs, labels=labels, classes=classes, mean=mean, std=std, axes=axes)


def solve(problem: Problem, l2: float, *, start: Solution | None = None) -> Solution:
    """The solution of least objective; `start` is one at another l2."""
    inputs, labels, classes = problem.inputs, problem.labels, problem.classes
    row = torch.arange(len(labels), device=labels.device)
    shrink, stretch = _metric(problem, l2)
    bias_unit = classes**0.5  # the bias's curvature at zero is 1 / C
    parameters = inputs.new_zeros(classes, inputs.shape[1] + 1)
    if start is not None:
        parameters[:, :-1] = _scaled(start[0], problem.axes, stretch)
        parameters[:, -1] = start[1] / bias_unit
    optimizer = torch.optim.LBFGS(
        [parameters], max_iter=_MAX_ITERATIONS, max_eval=2 * _MAX_ITERATIONS, tolerance_grad=_GRADIENT,
        tolerance_change=0.0, history_size=20, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def read() -> Solution:
        return _scaled(parameters[:, :-1], problem.axes, shrink), parameters[:, -1] * bias_unit

    def objective() -> Tensor:
        # The gradient by hand: it is two lines, and works under inference mode too.
        weight, bias = read()
        log_probabilities = torch.log_softmax(inputs @ weight.T + bias, dim=1)  # (N, C)
        loss = l2 / 2 * weight.square().sum() - log_probabilities[row, labels].mean()
        error = log_probabilities.exp_()
        error[row, labels] -= 1
        slope = error.T @ inputs / len(inputs) + l2 * weight  # (C, D)
        by_bias = error.mean(0) * bias_unit
        parameters.grad = torch.cat([_scaled(slope, problem.axes, shrink), by_bias[:, None]], dim=1)
        return loss

    optimizer.step(objective)
    return read()


def _metric(problem: Problem, l2: float) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Factors along the axes and across the rest that turn L-BFGS's coordinates into weights, and back."""
    along = (problem.axes.variance / problem.classes + l2).sqrt()
    rest = (problem.axes.rest / problem.classes + l2).sqrt()
    return (1 / along, 1 / rest), (along, rest)


def _scaled(rows: Tensor, axes: Axes, factors: tuple[Tensor, Tensor]) -> Tensor:
    """Rows (C, D), each multiplied by its factor along every axis and by one factor across the rest."""
    along, rest = factors
    return rows * rest + ((rows @ axes.directions) * (along - rest)) @ axes.directions.T


def _principal_axes(inputs: Tensor) -> Axes:
    covariance = inputs.T @ inputs / len(inputs)
    size, rank = len(covariance), min(len(covariance), _RANK)
    if rank == size:
        variance, directions = torch.linalg.eigh(covariance)
    else:  # all axes of 3,072 raw pixels would cost more than the fit
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
