"""One step: images become views, views a gradient, the gradient an update, and the target follows."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from prosmin import randomness
from prosmin.config import Config
from prosmin.cuda_graph import Recorded
from prosmin.data import views as view_making
from prosmin.data.stream import Batch
from prosmin.data.views import Views
from prosmin.errors import ProsminError
from prosmin.messages import some
from prosmin.methods.output import Draws, Output, as_scalar
from prosmin.models.backbones import is_recordable
from prosmin.training.schedules import Values


class HeldDraws(Draws):
    """Draws whose keys and scalars stay in their places while their values go from step to step."""

    def __init__(self, seed: int, step: int, positions: Tensor, epoch: float) -> None:
        super().__init__(seed, step, positions, epoch)
        self.keys: dict[str, Tensor] = {}
        self.scalars: dict[str, tuple[Tensor, Callable[[float], float]]] = {}

    def move(self, step: int, epoch: float) -> None:
        """On to another step: every value is written into its place."""
        self.step, self.epoch = step, epoch
        for purpose, place in self.keys.items():
            place.fill_(randomness.key(self.seed, step, purpose))
        for place, of in self.scalars.values():
            place.fill_(of(epoch))

    def key(self, purpose: str) -> Tensor:
        """The key's place."""
        if purpose not in self.keys:
            key = randomness.key(self.seed, self.step, purpose)
            self.keys[purpose] = torch.full((), key, dtype=torch.int64, device=self.positions.device)
        return self.keys[purpose]

    def scalar(self, purpose: str, of: Callable[[float], float]) -> Tensor:
        """The number's place."""
        if purpose not in self.scalars:
            self.scalars[purpose] = (as_scalar(of(self.epoch), self.positions.device), of)
        return self.scalars[purpose][0]


class Step(NamedTuple):
    """What one step leaves behind, on the device."""

    loss: Tensor  # ()
    grad_norm: Tensor  # ()
    output: Output


def make_optimizer(method: nn.Module, config: Config, *, fused: bool) -> Optimizer:
    """AdamW over what learns; weight decay on matrices and filters only, not on biases and norms."""
    speed = getattr(config.heads, "predictor_lr", 1.0)
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in method.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((parameter.ndim > 1, name.startswith("predictor.")), []).append(parameter)
    return AdamW(
        [
            {"params": parameters, "decays": decays, "speed": speed if is_predictor else 1.0}
            for (decays, is_predictor), parameters in groups.items()
        ],
        lr=config.optimizer.lr,
        fused=fused,
    )


def apply_values(optimizer: Optimizer, values: Values) -> None:
    """Put the schedules' values of a step into the optimizer."""
    for group in optimizer.param_groups:
        group["lr"] = values.lr * group["speed"]
        group["weight_decay"] = values.weight_decay if group["decays"] else 0.0


def learn(
    fabric: Fabric,
    model: nn.Module,
    optimizer: Optimizer,
    parts: Iterable[tuple[Views, Draws]],
    *,
    count: int = 1,
    clip: float | None,
) -> Step:
    """Forward and backward: the gradient of the mean loss, clipped, waits in the parameters.

    The batch comes in `count` equal parts, made one after another so that only one is in memory.
    """
    output = _accumulate(fabric, model, parts, count)
    norm = nn.utils.clip_grad_norm_(_parameters(optimizer), clip or float("inf"), foreach=True)
    return Step(output.losses.mean(), norm.detach(), output)


def apply_gradient(fabric: Fabric, model: nn.Module, optimizer: Optimizer, done: Step, *, momentum: float) -> None:
    """Change the weights, and let the target follow. A gradient that is not finite is never applied."""
    if fabric.device.type == "cpu":
        if not (torch.isfinite(done.grad_norm) and torch.isfinite(done.loss)):
            return
    else:  # fused AdamW skips the update on the device itself, so that the host need not wait
        mark_unusable(optimizer, ~torch.isfinite(done.grad_norm + done.loss))
    optimizer.step()
    statistics = {name: fabric.all_reduce(value, reduce_op="mean") for name, value in done.output.statistics.items()}
    model.update(statistics, momentum=momentum)  # type: ignore[operator]


def mark_unusable(optimizer: Optimizer, unusable: Tensor) -> None:
    """Tell a fused optimizer whether, (), to leave the weights as they are."""
    own: Any = getattr(optimizer, "optimizer", optimizer)  # Fabric's wrapper hands nothing on that is set on it
    own.found_inf = unusable.float()


def _accumulate(fabric: Fabric, model: nn.Module, parts: Iterable[tuple[Views, Draws]], count: int) -> Output:
    """Forward and backward of every part: all losses, the mean statistics, what the last part observed."""
    losses: list[Tensor] = []
    statistics: dict[str, Tensor] = {}
    observed: dict[str, Tensor] = {}
    for number, (views, draws) in enumerate(parts, 1):
        # The processes exchange gradients once, with the last part.
        alone = fabric.world_size > 1 and number < count
        with fabric.no_backward_sync(model) if alone else nullcontext():  # type: ignore[arg-type]
            output: Output = model(views, draws)
            if output.losses.shape != draws.positions.shape:
                raise ProsminError(
                    f"The method's losses have shape {tuple(output.losses.shape)}; allowed: "
                    f"{tuple(draws.positions.shape)}, one for each image and not their mean."
                )
            fabric.backward(output.losses.mean() / count)
        losses.append(output.losses.detach())
        for name, value in output.statistics.items():
            statistics[name] = statistics[name] + value / count if name in statistics else value / count
        observed = output.observed
    return Output(torch.cat(losses), observed, statistics)


def slim(done: Step) -> Step:
    """What `refuse_unusable` needs of a step: embeddings and scales of many unchecked steps would fill a GPU."""
    return done._replace(output=Output(done.output.losses, {}, {}))


def refuse_unusable(
    taken: Sequence[tuple[int, Step, Tensor]],
    finite: Sequence[bool],
    key: Callable[[int], str],
    *,
    next_steps: Callable[[], str],
) -> None:
    """Stop the run at the first step, of some with their images' numbers, whose loss or gradient is not finite.

    The loop counts steps from 0; what a person reads, as the lines of progress, from 1.
    """
    for (step, done, index), is_finite in zip(taken, finite, strict=True):
        if is_finite:
            continue
        bad = (~torch.isfinite(done.output.losses)).tolist()
        named = [key(i) for i, is_bad in zip(index.tolist(), bad, strict=True) if is_bad]
        pictures = f"{len(named)} image{'s' * (len(named) > 1)}: {some(named)}"
        where = f"its loss is not finite for {pictures}" if named else "its gradient is not finite"
        raise ProsminError(f"Step {step + 1} was not applied: {where}. {next_steps()}")


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


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
        """The draws of this process's first images."""
        return self._draws(step, self.positions[:pictures])

    def views(self, images: Tensor, sizes: Tensor, draws: Draws) -> Views:
        """The views of images."""
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
