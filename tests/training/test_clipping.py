"""Gradients are clipped together or each by itself."""

import math

import pytest
import torch
from torch import nn

from prosmin.config import OptimizerConfig
from prosmin.training.clipping import clip_gradients


def made() -> list[nn.Parameter]:
    """Gradients of length 5, 0.5 and 0, and a parameter without one."""
    gradients = (torch.tensor([3.0, 4.0]), torch.tensor([[0.5]]), torch.zeros(3), None)
    parameters = [nn.Parameter(torch.zeros(()) if g is None else torch.zeros_like(g)) for g in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return parameters


@pytest.mark.parametrize(
    ("clip", "each", "lengths"),
    [
        (None, False, (5.0, 0.5, 0.0)),
        (None, True, (5.0, 0.5, 0.0)),
        (1.0, False, (5.0 / math.hypot(5, 0.5), 0.5 / math.hypot(5, 0.5), 0.0)),
        (1.0, True, (1.0, 0.5, 0.0)),
        (0.1, True, (0.1, 0.1, 0.0)),
    ],
)
def test_gradients_are_clipped_together_or_each_by_itself(clip, each, lengths):
    parameters = made()
    norm = clip_gradients(parameters, OptimizerConfig(clip=clip, clip_each=each))
    assert norm.item() == pytest.approx(math.hypot(5, 0.5))
    assert [p.grad.norm().item() for p in parameters[:3]] == pytest.approx(lengths, rel=1e-5)
    assert parameters[0].grad[0] / parameters[0].grad[1] == pytest.approx(0.75)
    assert parameters[3].grad is None


@pytest.mark.parametrize("each", [False, True])
def test_a_gradient_that_is_not_finite_shows_in_the_norm(each):
    parameters = made()
    parameters[1].grad.fill_(float("nan"))
    assert not torch.isfinite(clip_gradients(parameters, OptimizerConfig(clip=1.0, clip_each=each)))
