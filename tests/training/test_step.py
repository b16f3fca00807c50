"""Steps as CUDA graphs: what changes from step to step reaches the graph, and the result is the same."""

from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric

from prosmin import cuda_graph
from prosmin.data.stream import Batch, open_feed
from prosmin.training import schedules
from prosmin.training import step as steps
from prosmin.training.launch import make_fabric
from prosmin.training.pretrain import build, prepare
from prosmin.training.step import Draws, GraphTrainingStep, StaticDraws, TrainingStep, skip_update_if
from tiny_methods import METHODS, WHITENED_HEADS, tiny_method

STEPS, EPOCH = 6, 3  # an epoch of three steps, so that values that depend on the epoch change
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class CalledAgain(cuda_graph.Recorded):
    """Replaces a CUDA graph where there is no GPU: calls the same function again."""

    is_recorded = False

    def __call__(self):
        return self._function()


class SealedDraws(StaticDraws):
    """Refuses, from the second step on, what a graph cannot follow: a new draw, and step or epoch as numbers."""

    sealed = False

    def move_to(self, step, epoch):
        super().move_to(step, epoch)
        self.sealed = bool(self.keys or self.scalars)

    def __getattribute__(self, name):
        assert name not in ("step", "epoch") or not object.__getattribute__(self, "sealed"), name
        return super().__getattribute__(name)


@pytest.fixture
def without_gpu(monkeypatch):
    monkeypatch.setattr(steps, "Recorded", CalledAgain)
    monkeypatch.setattr(steps, "StaticDraws", SealedDraws)


def noise_images(step: int, batch: int, device: str = "cpu") -> Batch:
    noise = torch.Generator().manual_seed(step)
    images = torch.randint(0, 256, (batch, 3, 32, 32), generator=noise, dtype=torch.uint8)
    return Batch(images.to(device), torch.full((batch, 2), 32, device=device), torch.arange(batch))


def make_step(kind: type[TrainingStep], config):
    """A step of this kind and the method that it trains."""
    fabric = make_fabric(config, Path())
    method = build(config)
    model, optimizer = prepare(fabric, config, method)
    return kind(fabric, config, model, optimizer, epoch_of=lambda step: step / EPOCH), method


def values(config, step):
    return schedules.values(config, step, steps=STEPS, steps_per_epoch=EPOCH)


def train(kind: type[TrainingStep], config, device: str = "cpu") -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of some steps and the weights after them."""
    take, method = make_step(kind, config)
    batches = [noise_images(step, config.training.batch_size, device) for step in range(STEPS)]
    losses = [take(step, batch, values(config, step)).loss for step, batch in enumerate(batches)]
    return [float(loss) for loss in losses], {name: value.cpu() for name, value in method.state_dict().items()}


def assert_same_training(config, device, *, rtol, atol):
    expected, weights = train(TrainingStep, config, device)
    losses, found = train(GraphTrainingStep, config, device)
    assert losses == pytest.approx(expected, rel=min(rtol, 1e-7))
    for key, value in weights.items():
        torch.testing.assert_close(found[key], value, rtol=rtol, atol=atol)
    assert len(set(losses)) == STEPS


TOLD = {"heads__condition": "true", "heads__radius": "true"}
WHITE = WHITENED_HEADS | TOLD | {"loss__same_view": "false"}
CASES = (*((name, {}) for name in METHODS), ("prosmin", TOLD), ("prosmin", WHITE))


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_static_inputs_and_draws_train_the_same_model(without_gpu, name, changes):
    if name in ("dino", "ibot"):
        changes = changes | {"heads__freeze_last_epochs": "1", "loss__temperature_warmup_epochs": "2"}
    if name != "ibot":  # convolutions in float64 are slow
        changes = changes | {"views__global_size": "16", "views__local_size": "8"}
    config = tiny_method(name, compute__precision="64-true", compute__accelerator="cpu", **changes)
    assert_same_training(config, "cpu", rtol=1e-9, atol=1e-12)


LOSSES = (
    {"loss__same_view": "false", "loss__target_views": "one", "loss__identification": "0.5"},
    {"loss__rule": "kernel", "loss__estimator": "ustat"},
    {"loss__estimator": "closed"},
)


@needs_gpu
@pytest.mark.parametrize(("name", "changes"), [*CASES, *(("prosmin", c) for c in LOSSES)])
def test_a_cuda_graph_trains_the_same_model(name, changes):
    """float64, as the order of sums is not fixed; nothing compiled."""
    changes = changes | ({"heads__freeze_last_epochs": "1"} if name in ("dino", "ibot") else {})
    config = tiny_method(name, compute__precision="64-true", compute__accelerator="cuda", **changes)
    assert_same_training(config, "cuda", rtol=1e-6, atol=1e-9)


def test_other_shapes_are_recorded_again(without_gpu):
    config = tiny_method("prosmin", compute__accelerator="cpu")
    take, _ = make_step(GraphTrainingStep, config)
    take(0, noise_images(0, 16), values(config, 0))
    graph = take._graph
    take(1, noise_images(1, 16), values(config, 0))
    assert take._graph is graph
    batch = noise_images(2, 16)
    take(2, batch._replace(images=torch.nn.functional.pad(batch.images, (0, 8))), values(config, 0))
    assert take._graph is not graph


def test_static_draws_follow_the_step():
    positions = torch.arange(5)
    static = StaticDraws(3, 0, positions, 0.0)
    key, scalar = static.key("views"), static.scalar("temperature", lambda epoch: 2.0 * epoch)
    first = static.uniform("views", 4).clone()
    static.move_to(7, 0.5)
    assert static.key("views") is key
    assert static.scalar("temperature", lambda epoch: 0.0) is scalar
    assert float(scalar) == 1.0
    assert torch.equal(static.uniform("views", 4), Draws(3, 7, positions, 0.5).uniform("views", 4))
    assert not torch.equal(first, static.uniform("views", 4))


def test_a_fused_optimizer_behind_fabric_skips_an_unusable_gradient():
    model = torch.nn.Linear(3, 1, bias=False)
    fabric = Fabric(accelerator="cpu", devices=1)
    _, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.1, fused=True))
    for unusable in (True, False):
        before = model.weight.detach().clone()
        model.weight.grad = torch.full((1, 3), float("nan") if unusable else 1.0)
        skip_update_if(torch.tensor(unusable), optimizer)
        optimizer.step()
        assert torch.equal(model.weight.detach(), before) is unusable


@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("kind", [TrainingStep, GraphTrainingStep])
@pytest.mark.parametrize(("name", "changes"), CASES)
def test_steps_do_not_wait_for_a_gpu(name, changes, kind):
    """From the image numbers to the update of the target, after warm-up and recording."""
    config = tiny_method(name, compute__accelerator="cuda", **changes)
    take, _ = make_step(kind, config)
    batches = open_feed("photos", device="cuda").batches(torch.arange(config.training.batch_size) for _ in range(STEPS))
    for step in range(STEPS):
        scheduled = values(config, step)
        torch.cuda.set_sync_debug_mode("default" if step <= cuda_graph.WARM_UP else "error")
        try:
            take(step, next(batches), scheduled)
        finally:
            torch.cuda.set_sync_debug_mode("default")
