"""Recorded steps: whatever changes from step to step reaches them, and nothing else is different."""

from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric

from prosmin import cuda_graph as recording
from prosmin.data.stream import Batch, open_feed
from prosmin.training import schedules
from prosmin.training import step as stepping
from prosmin.training.launch import make_fabric
from prosmin.training.pretrain import build, prepare
from prosmin.training.step import GraphTrainingStep, StaticDraws, StepResult, TrainingStep, skip_update_if
from tiny_methods import METHODS, tiny_method

STEPS, EPOCH = 6, 3  # an epoch of three steps, so that what goes by epochs changes in between
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Rerun(recording.Recorded):
    """Stands in for a recording where there is no GPU: the same work again."""

    def __call__(self):
        self._runs += 1
        return self._function()

    @property
    def is_recorded(self):
        return False


class SealedDraws(StaticDraws):
    """Refuses from the second step on what a recording would not follow: a new draw, and step or epoch as numbers."""

    sealed = False

    def move_to(self, step, epoch):
        super().move_to(step, epoch)
        self.sealed = bool(self.keys or self.scalars)

    def __getattribute__(self, name):
        assert name not in ("step", "epoch") or not object.__getattribute__(self, "sealed"), name
        return super().__getattribute__(name)


def pictures(step: int, batch: int) -> Batch:
    """Noise, other for every step."""
    noise = torch.Generator().manual_seed(step)
    images = torch.randint(0, 256, (batch, 3, 32, 32), generator=noise, dtype=torch.uint8)
    return Batch(images, torch.full((batch, 2), 32), torch.arange(batch))


def trained(kind: type[TrainingStep], config, device: str = "cpu") -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of some steps and the weights after them."""
    fabric: Fabric = make_fabric(config, Path())
    method = build(config)
    model, optimizer = prepare(fabric, config, method)
    take = kind(fabric, config, model, optimizer, epoch_of=lambda step: step / EPOCH)
    losses = []
    for step in range(STEPS):
        batch = pictures(step, config.training.batch_size)
        values = schedules.values(config, step, steps=STEPS, steps_per_epoch=EPOCH)
        done = take(step, Batch(batch.images.to(device), batch.sizes.to(device), batch.index), values)
        losses.append(done.loss)
    return [float(loss) for loss in losses], {name: value.cpu() for name, value in method.state_dict().items()}


@pytest.fixture
def rerun(monkeypatch):
    monkeypatch.setattr(stepping, "Recorded", Rerun)
    monkeypatch.setattr(stepping, "StaticDraws", SealedDraws)


@pytest.mark.parametrize("name", METHODS)
def test_held_inputs_and_draws_train_the_same_model(rerun, name):
    changes = {"heads__freeze_last_epochs": "1"} if name in ("dino", "ibot") else {}
    changes |= {"loss__temperature_warmup_epochs": "2"} if name in ("dino", "ibot") else {}
    if name != "ibot":  # convolutions in float64 take long
        changes |= {"views__global_size": "16", "views__local_size": "8"}
    config = tiny_method(name, compute__precision="64-true", **changes)
    expected, weights = trained(TrainingStep, config)
    losses, found = trained(GraphTrainingStep, config)
    assert losses == pytest.approx(expected, rel=1e-9)
    for key, value in weights.items():
        torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-12)
    assert len(set(losses)) == STEPS


def test_other_shapes_are_recorded_anew(rerun):
    config = tiny_method("prosmin", compute__accelerator="cpu")
    fabric = make_fabric(config, Path())
    model, optimizer = prepare(fabric, config, build(config))
    take = GraphTrainingStep(fabric, config, model, optimizer, epoch_of=float)
    values = schedules.values(config, 0, steps=STEPS, steps_per_epoch=EPOCH)
    first = take(0, pictures(0, 16), values)
    kept = take._graph
    take(1, pictures(1, 16), values)
    assert take._graph is kept
    wide = pictures(2, 16)
    take(2, Batch(torch.nn.functional.pad(wide.images, (0, 8)), wide.sizes, wide.index), values)
    assert take._graph is not kept
    assert isinstance(first, StepResult)


def test_held_draws_move_with_the_step():
    positions = torch.arange(5)
    held = StaticDraws(3, 0, positions, 0.0)
    key, scalar = held.key("views"), held.scalar("temperature", lambda epoch: 2.0 * epoch)
    first = held.uniform("views", 4).clone()
    held.move_to(7, 0.5)
    assert held.key("views") is key
    assert held.scalar("temperature", lambda epoch: 0.0) is scalar
    assert float(scalar) == 1.0
    there = stepping.Draws(3, 7, positions, 0.5)
    assert torch.equal(held.uniform("views", 4), there.uniform("views", 4))
    assert not torch.equal(first, held.uniform("views", 4))


def test_a_fused_optimizer_hears_through_fabric_that_a_gradient_is_unusable():
    weight = torch.nn.Parameter(torch.ones(3))
    model = torch.nn.Module()
    model.weight = weight
    model.forward = lambda x: (model.weight * x).sum()
    fabric = Fabric(accelerator="cpu", devices=1)
    _, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.1, fused=True))
    for unusable, moved in ((True, False), (False, True)):
        before = weight.detach().clone()
        weight.grad = torch.full((3,), float("nan") if unusable else 1.0)
        skip_update_if(torch.tensor(unusable), optimizer)
        optimizer.step()
        assert torch.equal(weight.detach(), before) is not moved


@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("kind", [TrainingStep, GraphTrainingStep])
@pytest.mark.parametrize("name", METHODS)
def test_steps_do_not_wait_for_a_gpu(name, kind):
    """From the images' numbers to the moved target, once all is allocated and recorded."""
    config = tiny_method(name, compute__accelerator="cuda")
    fabric = make_fabric(config, Path())
    model, optimizer = prepare(fabric, config, build(config))
    take = kind(fabric, config, model, optimizer, epoch_of=lambda step: step / EPOCH)
    batches = open_feed("photos", device="cuda").batches(torch.arange(config.training.batch_size) for _ in range(STEPS))
    for step in range(STEPS):
        values = schedules.values(config, step, steps=STEPS, steps_per_epoch=EPOCH)
        torch.cuda.set_sync_debug_mode("default" if step <= recording.WARM_UP else "error")
        try:
            take(step, next(batches), values)
        finally:
            torch.cuda.set_sync_debug_mode("default")


LOSSES = (
    {"loss__same_view": "false", "loss__target_views": "one", "loss__identification": "0.5"},
    {"loss__rule": "kernel", "loss__estimator": "ustat"},
    {"loss__estimator": "closed"},
)


@needs_gpu
@pytest.mark.parametrize(("name", "changes"), [*((name, {}) for name in METHODS), *(("prosmin", c) for c in LOSSES)])
def test_a_recorded_gpu_trains_the_same_model(name, changes):
    """float64, so that the order of sums does not matter; compiled code is left out."""
    changes = changes | ({"heads__freeze_last_epochs": "1"} if name in ("dino", "ibot") else {})
    config = tiny_method(name, compute__precision="64-true", compute__accelerator="cuda", **changes)
    expected, weights = trained(TrainingStep, config, "cuda")
    losses, found = trained(GraphTrainingStep, config, "cuda")
    assert losses == pytest.approx(expected, rel=1e-7)
    for key, value in weights.items():
        torch.testing.assert_close(found[key], value, rtol=1e-6, atol=1e-9)
