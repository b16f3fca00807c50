"""A step of training: pictures become views, views a gradient, the gradient a change of the weights."""

from collections.abc import Callable, Iterable, Sequence

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from prosmin import randomness
from prosmin.config import Config
from prosmin.data import views as view_making
from prosmin.data.feed import Batch
from prosmin.data.views import Views
from prosmin.methods.output import Draws, Output
from prosmin.models.backbones import is_recordable
from prosmin.recording import Recorded
from prosmin.training.held_draws import HeldDraws
from prosmin.training.schedules import Values
from prosmin.training.step import Step, apply_gradient, apply_values, learn


def make_stepper(
    fabric: Fabric, config: Config, model: nn.Module, optimizer: Optimizer, *, epoch_of: Callable[[int], float]
) -> "Stepper":
    """What takes the steps of a run; recorded where the configuration asks for it and a recording can follow."""
    alone = fabric.device.type == "cuda" and fabric.world_size == 1 and config.training.accumulate == 1
    # Both take random numbers from torch's own generator, and put it back, from the host.
    draws_elsewhere = config.backbone.drop_path > 0 or config.compute.checkpoint_activations
    can = alone and not draws_elsewhere and is_recordable(model.get_submodule("online.backbone"))
    kind = RecordedStepper if config.compute.graph and can else Stepper
    return kind(fabric, config, model, optimizer, epoch_of=epoch_of)


class Stepper:
    """Kernel after kernel, launched anew in every step."""

    def __init__(
        self,
        fabric: Fabric,
        config: Config,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        epoch_of: Callable[[int], float],
    ) -> None:
        self.fabric, self.config, self.model, self.optimizer = fabric, config, model, optimizer
        self.epoch_of = epoch_of
        share = config.training.batch_size // fabric.world_size
        self.positions = torch.arange(share, device=fabric.device) + fabric.global_rank * share
        is_compiled = config.compute.compile != "none"
        # Shapes are those of the feed, which changes them seldom: code for any shape would take twice the time.
        self._render = torch.compile(view_making.render, dynamic=False) if is_compiled else view_making.render

    def __call__(self, step: int, batch: Batch, values: Values) -> Step:
        """Minimise the mean loss of this process's share of a batch once."""
        return self._change(step, values, lambda: self.learn(step, batch))

    def on_views(self, step: int, parts: Sequence[Views], values: Values) -> Step:
        """The same on ready views."""
        return self._change(step, values, lambda: self.learn_views(step, parts))

    def learn(self, step: int, batch: Batch) -> Step:
        """The gradient of a batch. It comes in parts, made one after another, so that only one is in memory."""
        groups = (batch.images, batch.sizes, self.positions)
        pieces = zip(*(x.chunk(self.config.training.accumulate) for x in groups), strict=True)
        draws = ((images, sizes, self._draws(step, own)) for images, sizes, own in pieces)
        return self._learn((self.views(images, sizes, own), own) for images, sizes, own in draws)

    def learn_views(self, step: int, parts: Sequence[Views]) -> Step:
        """The gradient of ready views."""
        return self._learn((views, self.draws(step, views.global_views.shape[1])) for views in parts)

    def draws(self, step: int, pictures: int) -> Draws:
        """The draws of this process's first pictures."""
        return self._draws(step, self.positions[:pictures])

    def views(self, images: Tensor, sizes: Tensor, draws: Draws) -> Views:
        """The views of pictures."""
        return self._render(images, sizes, self.config.views, view_making.draw(self.config.views, draws.uniform))

    def forget(self) -> None:
        """Let go of the gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def _change(self, step: int, values: Values, learning: Callable[[], Step]) -> Step:
        apply_values(self.optimizer, values)
        if self.config.backbone.drop_path:  # drawn by torch's own generator, which must not remember earlier steps
            seed = self.config.training.seed
            torch.manual_seed(randomness.key(seed, step, f"drop path {self.fabric.global_rank}"))
        done = learning()
        apply_gradient(self.fabric, self.model, self.optimizer, done, momentum=values.momentum)
        self.forget()
        return done

    def _draws(self, step: int, positions: Tensor) -> Draws:
        return Draws(self.config.training.seed, step, positions, self.epoch_of(step))

    def _learn(self, parts: Iterable[tuple[Views, Draws]]) -> Step:
        count, clip = self.config.training.accumulate, self.config.optimizer.clip
        return learn(self.fabric, self.model, self.optimizer, parts, count=count, clip=clip)


Held = Sequence[Tensor]


class RecordedStepper(Stepper):
    """Views, forward and backward recorded as one CUDA graph; the update, of few kernels, is launched."""

    _recorded: Recorded[Step] | None = None
    _what: object = None
    _held: Held = ()
    _held_draws: HeldDraws

    def learn(self, step: int, batch: Batch) -> Step:
        """The gradient of a batch, in memory that the next step writes again."""
        return self._replay(step, self._learn_pictures, (batch.images, batch.sizes))

    def learn_views(self, step: int, parts: Sequence[Views]) -> Step:
        """The gradient of ready views."""
        (views,) = parts
        return self._replay(step, self._learn_ready, [x for x in views if x is not None])

    def forget(self) -> None:
        """The gradients' memory belongs to the recording, which writes and does not add."""
        if self._recorded is None or not self._recorded.is_recorded:
            super().forget()

    def _replay(self, step: int, work: Callable[[Held, Draws], Step], inputs: Held) -> Step:
        """Put the inputs where the recording looks for them and let it run; other work, other shapes: record again."""
        what = (work, [x.shape for x in inputs])
        if self._recorded is None or what != self._what:
            self._recorded = None  # its memory first
            self.forget()
            held = [x.clone() for x in inputs]
            draws = HeldDraws(self.config.training.seed, step, self.positions, self.epoch_of(step))
            self._what, self._held, self._held_draws = what, held, draws
            self._recorded = Recorded(lambda: work(held, draws))
        for place, value in zip(self._held, inputs, strict=True):
            place.copy_(value)
        self._held_draws.move(step, self.epoch_of(step))
        loss, norm, output = self._recorded()
        # The loop looks at these some steps later.
        return Step(loss.clone(), norm.clone(), Output(output.losses.clone(), output.observed, output.statistics))

    def _learn_pictures(self, held: Held, draws: Draws) -> Step:
        images, sizes = held
        return self._learn([(self.views(images, sizes, draws), draws)])

    def _learn_ready(self, held: Held, draws: Draws) -> Step:
        return self._learn([(Views(held[0], held[1] if len(held) > 1 else None), draws)])
