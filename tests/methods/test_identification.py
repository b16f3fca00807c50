"""Identification: InfoNCE whose gradient does not reach the predictor, so that the forecast stays proper."""

import math

import pytest
import torch

from prosmin.data.views import Views
from prosmin.errors import UsageError
from prosmin.methods import build_method
from prosmin.methods.identification import Identification, constant
from tiny_methods import tiny_draws, tiny_method, tiny_views


def reference(mean, targets, *, temperature, same_view):
    """The mean over views and targets of -log softmax of cosines, in Python's numbers: one loss per image."""
    V, B, _ = mean.shape
    G = len(targets)

    def cosine(a, b):
        return float(a @ b) / (float(a @ a) ** 0.5 * float(b @ b) ** 0.5)

    losses = []
    for i in range(B):
        pairs = []
        for v in range(V):
            for g in range(G):
                if same_view or v != g:
                    logits = [cosine(mean[v, i], targets[g, j]) / temperature for j in range(B)]
                    pairs.append(math.log(sum(map(math.exp, logits))) - logits[i])
        losses.append(sum(pairs) / len(pairs))
    return losses


@pytest.mark.parametrize("same_view", ["true", "false"])
def test_it_equals_its_formula(same_view):
    config = tiny_method("prosmin", loss__identification="0.5", loss__temperature="0.3", loss__same_view=same_view)
    method = build_method(config).double()
    t = torch.randn(3 * 5, config.heads.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = torch.randn(2, 5, config.heads.dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mean = method.predictor(t)[0].detach().unflatten(0, (3, 5))
    expected = reference(mean, target, temperature=0.3, same_view=same_view == "true")
    torch.testing.assert_close(method.identify(t, mean, target), torch.tensor(expected, dtype=torch.float64))


def gradients(weight):
    """Of every parameter, from the same views and weights."""
    method = build_method(tiny_method("prosmin", loss__identification=weight, compute__precision="64-true")).double()
    views = Views(*(x.double() for x in tiny_views(tiny_method("prosmin"), pictures=6).groups))
    output = method(views, tiny_draws(pictures=6))
    output.losses.mean().backward()
    return output, {name: p.grad for name, p in method.named_parameters() if p.requires_grad}, method


def test_the_predictor_is_trained_by_the_score_alone():
    plain, without, before = gradients("0")
    identified, found, after = gradients("0.5")
    assert (identified.losses > plain.losses).all()
    for name, gradient in without.items():
        same = torch.allclose(found[name], gradient, rtol=1e-10, atol=1e-14)
        assert same is name.startswith("predictor."), name
    # BatchNorm's averages were updated by one pass, not two.
    for (name, one), other in zip(before.named_buffers(), after.buffers(), strict=True):
        if "num_batches" not in name:
            torch.testing.assert_close(other, one)


def test_a_module_is_constant_only_within_the_block():
    method = build_method(tiny_method("prosmin"))
    momenta = [m.momentum for m in method.predictor.modules() if hasattr(m, "momentum")]
    with constant(method.predictor):
        assert not any(p.requires_grad for p in method.predictor.parameters())
    assert all(p.requires_grad for p in method.predictor.parameters())
    assert [m.momentum for m in method.predictor.modules() if hasattr(m, "momentum")] == momenta


def test_the_right_row_is_worth_more_than_any_other():
    targets = torch.eye(4)[None]
    rows = torch.arange(4)
    right = Identification(0.1)(targets, targets, rows)
    wrong = Identification(0.1)(targets.roll(1, dims=1), targets, rows)
    assert right.shape == (1, 1, 4)
    assert (right < 0.01).all()
    assert (wrong > 9.0).all()


def test_it_spans_the_batch_and_needs_sensible_numbers():
    assert build_method(tiny_method("prosmin", loss__identification="0.5")).spans_batch
    assert not build_method(tiny_method("prosmin")).spans_batch
    with pytest.raises(UsageError, match=r"loss\.identification"):
        tiny_method("prosmin", loss__identification="-1")
    with pytest.raises(UsageError, match=r"loss\.temperature"):
        tiny_method("prosmin", loss__temperature="0")
