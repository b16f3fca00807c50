"""DINO against its paper's formulas, written out one image, view and prototype at a time."""

import pytest
import torch

from dino_reference import reference_loss
from prosmin.data.views import Views
from prosmin.methods import build_method
from prosmin.methods.dino import ViewDistillation, warmed_up
from prosmin.methods.output import as_scalar
from tiny_methods import tiny_draws, tiny_method, tiny_views


def _outputs(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / 3


@pytest.mark.parametrize("local", [0, 3])
def test_the_loss_is_the_papers(local):
    online, target, centre = _outputs(2 + local, 3, 7, seed=1), _outputs(2, 3, 7, seed=2), _outputs(7, seed=3)
    scalar = as_scalar(0.05, torch.device("cpu"))
    found = ViewDistillation(0.1)(online, target - centre, scalar)
    expected = reference_loss(online, target, centre, temperature=0.1, target_temperature=0.05)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


def test_the_gradient_is_that_of_the_loss():
    online, target = _outputs(3, 2, 5, seed=1).requires_grad_(), _outputs(2, 2, 5, seed=2)
    scalar = as_scalar(0.05, torch.device("cpu"))
    assert torch.autograd.gradcheck(lambda z: ViewDistillation(0.1)(z, target, scalar), (online,))


def test_in_bfloat16_the_loss_is_computed_in_float32():
    online, target = _outputs(3, 4, 64, seed=1).bfloat16(), _outputs(2, 4, 64, seed=2).bfloat16()
    scalar = as_scalar(0.04, torch.device("cpu"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = ViewDistillation(0.1)(online, target, scalar)
    assert found.dtype == torch.float32
    # float32 has 7 digits and the logits are below 100
    torch.testing.assert_close(found, ViewDistillation(0.1)(online.double(), target.double(), scalar).float())


def test_the_targets_temperature_rises_in_a_line_then_stays():
    settings = {"start": 0.04, "end": 0.07, "epochs": 30.0}
    found = [warmed_up(epoch, **settings) for epoch in (0.0, 10.0, 29.5, 30.0, 99.0)]
    assert found == pytest.approx([0.04, 0.05, 0.0695, 0.07, 0.07], rel=1e-12)
    assert warmed_up(0.0, start=0.04, end=0.07, epochs=0.0) == 0.07


def test_a_step_of_the_method_is_the_reference_of_its_networks_outputs():
    """Centre, temperature at the epoch and the order of the views, through `forward` and `update`."""
    fields = {
        "target_temperature_start": "0.03",
        "target_temperature": "0.09",
        "temperature_warmup_epochs": "4",
    }
    config = tiny_method("dino", target__start="independent", **{f"loss__{k}": v for k, v in fields.items()})
    method = build_method(config).double()
    centre = torch.zeros(24, dtype=torch.float64)
    for step, temperature in ((0, 0.03), (1, 0.045)):
        views = Views(*(x.double() for x in tiny_views(config, pictures=3, seed=step).groups))
        output = method(views, tiny_draws(pictures=3, step=step, epoch=float(step)))
        online = method.online([x.flatten(0, 1) for x in views.groups])[1].unflatten(0, (3, 3)).detach()
        target = method.target([views.global_views.flatten(0, 1)])[1].unflatten(0, (2, 3))
        expected = reference_loss(online, target, centre, temperature=0.1, target_temperature=temperature)
        torch.testing.assert_close(output.losses.detach(), torch.tensor(expected, dtype=torch.float64))
        method.update(output.statistics, momentum=0.5)
        centre = 0.9 * centre + 0.1 * sum(target[t, b] for t in range(2) for b in range(3)) / 6
        torch.testing.assert_close(method.centre.value, centre)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("name", ["dino", "ibot"])
def test_the_last_layer_waits_and_then_learns(name, normalised):
    """While frozen nothing moves it, weight decay included; its first step after that is of ordinary size."""
    fields = {"heads__freeze_last_epochs": "1", "heads__normalise_last": str(normalised).lower()}
    config = tiny_method(name, **fields, **({"heads__shared": "false"} if name == "ibot" else {}))
    method = build_method(config)
    optimizer = torch.optim.AdamW([p for p in method.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.5)
    lasts = {key: p for key, p in method.online.named_parameters() if "last." in key}
    start = {key: p.detach().clone() for key, p in lasts.items()}
    first = method.online.projector.mlp[0].weight.detach().clone()
    for step in range(12):
        before = {key: p.detach().clone() for key, p in lasts.items()}
        output = method(tiny_views(config), tiny_draws(step=step, epoch=step / 10))
        output.losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        method.update(output.statistics, momentum=0.9)
        for key, p in lasts.items():
            if step < 10:
                assert torch.equal(p, start[key]), (key, step)
                assert torch.equal(method.target.get_parameter(key), start[key]), (key, step)
            else:  # AdamW moves no weight further than about lr a step, the decay is lr / 2 of the weight
                moved = (p.detach() - before[key]).abs()
                assert 0 < float(moved.max()) < 3e-3, (key, step)
    assert not torch.equal(method.online.projector.mlp[0].weight, first)
    assert len(lasts) == (2 if name == "ibot" else 1) * (1 if normalised else 2)


@pytest.mark.parametrize("name", ["dino", "ibot"])
def test_the_rows_of_the_last_layer_keep_length_one_or_learn_theirs(name):
    """`normalise_last`: the published norm_last_layer. The target follows the gains as it follows all weights."""
    for normalised in (True, False):
        fields = {"heads__freeze_last_epochs": "0", "heads__normalise_last": str(normalised).lower()}
        method = build_method(config := tiny_method(name, **fields))
        optimizer = torch.optim.AdamW([p for p in method.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0)
        for step in range(5):
            output = method(tiny_views(config), tiny_draws(step=step))
            output.losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            method.update(output.statistics, momentum=0.5)
        bottlenecks = torch.eye(config.heads.bottleneck)
        online, target = (
            network.projector.last(bottlenecks).T.norm(dim=1).detach() for network in (method.online, method.target)
        )
        if normalised:
            torch.testing.assert_close(online, torch.ones_like(online))
        else:
            assert 0.001 < (online - 1).abs().mean() < 0.06  # five steps of at most about 0.01
            assert 0 < (target - 1).abs().mean() < (online - 1).abs().mean()
