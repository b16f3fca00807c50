"""One training step: images become views, views a loss and its gradient, the gradient an update; the target follows."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import AdamW, Optimizer

from prosmin import randomness
from prosmin.config import Config
from prosmin.cuda_graph import Recorded
from prosmin.data import views as view_making
from prosmin.data.stream import Batch
from prosmin.data.views import Views
from prosmin.errors import ProsminError
from prosmin.methods.output import Draws, Output, as_scalar
from prosmin.models.backbones import is_recordable, layer_depths
from prosmin.training.clipping import clip_gradients
from prosmin.training.schedules import Values


class StepResult(NamedTuple):
    """The outcome of one step, on the device."""

    loss: Tensor  # ()
    grad_norm: Tensor  # ()
    output: Output

    def without_embeddings(self) -> "StepResult":
        """Only the losses: the embeddings and scales of many steps that wait to be checked would fill a GPU."""
        return self._replace(output=Output(self.output.losses, {}, {}))


BACKBONE = "online.backbone"


def make_optimizer(method: nn.Module, config: Config, *, fused: bool) -> Optimizer:
    """AdamW over all trainable parameters; weight decay on matrices and filters only, not on biases and norms.

    The groups have a factor of the learning rate each, their `speed`, and say whether they are of the backbone.
    """
    speeds = _speeds(method, config)
    apart = bool(config.backbone.freeze_epochs)  # else equal speeds are one group, which is faster
    groups: dict[tuple[bool, float, bool], list[nn.Parameter]] = {}
    for name, parameter in method.named_parameters():
        if parameter.requires_grad:
            is_backbone = apart and name.startswith(f"{BACKBONE}.")
            groups.setdefault((parameter.ndim > 1, speeds.get(name, 1.0), is_backbone), []).append(parameter)
    return AdamW(
        [
            {"params": parameters, "decays": decays, "speed": speed, "backbone": is_backbone}
            for (decays, speed, is_backbone), parameters in groups.items()
        ],
        lr=config.optimizer.lr,
        fused=fused,
    )


def _speeds(method: nn.Module, config: Config) -> dict[str, float]:
    """Factors of the learning rate by parameter, where they are not 1: the predictor's, and those of layer decay."""
    speeds: dict[str, float] = {}
    predictor: float = getattr(config.heads, "predictor_lr", 1.0)
    if predictor != 1.0:
        speeds = {name: predictor for name, _ in method.named_parameters() if name.startswith("predictor.")}
    decay = config.optimizer.layer_decay
    if decay != 1.0:
        depths = layer_depths(method.get_submodule(BACKBONE), config.backbone.name)
        top = max(depths.values()) + 1  # the heads
        speeds |= {f"{BACKBONE}.{name}": decay ** (top - depth) for name, depth in depths.items()}
    return speeds


def apply_values(optimizer: Optimizer, values: Values) -> None:
    """Set the learning rate and weight decay of a step. A rate of 0 also stops AdamW's weight decay."""
    for group in optimizer.param_groups:
        group["lr"] = values.lr * group["speed"] * (values.backbone if group["backbone"] else 1.0)
        group["weight_decay"] = values.weight_decay if group["decays"] else 0.0


def make_training_step(
    fabric: Fabric, config: Config, model: nn.Module, optimizer: Optimizer, *, epoch_of: Callable[[int], float]
) -> "TrainingStep":
    """The step of a run; as a CUDA graph if `compute.graph` asks for it and everything in it can be recorded."""
    one_pass = fabric.device.type == "cuda" and fabric.world_size == 1 and config.training.accumulate == 1
    # Both use torch's own generator, whose state is kept on the host.
    uses_generator = config.backbone.drop_path > 0 or config.compute.checkpoint_activations
    can_record = one_pass and not uses_generator and is_recordable(model.get_submodule("online.backbone"))
    kind = GraphTrainingStep if config.compute.graph and can_record else TrainingStep
    return kind(fabric, config, model, optimizer, epoch_of=epoch_of)


class TrainingStep:
    """One step on this process's share of a batch."""

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
        render = view_making.render_told if getattr(model, "is_conditional", False) else view_making.render
        # Image sizes seldom change; code for any shape would take twice the time.
        self._render = torch.compile(render, dynamic=False) if is_compiled else render

    def __call__(self, step: int, batch: Batch | list[Views], values: Values) -> StepResult:
        """Minimise the mean loss of a batch, or of views made before, once."""
        apply_values(self.optimizer, values)
        if self.config.backbone.drop_path:  # uses torch's own generator, whose state must not depend on earlier steps
            seed = self.config.training.seed
            torch.manual_seed(randomness.key(seed, step, f"drop path {self.fabric.global_rank}"))
        statistics = self._batchnorm_statistics() if values.backbone == 0.0 else []
        before = [buffer.clone() for buffer in statistics]
        result = self.compute_gradient(step, batch)
        if statistics:  # a frozen backbone keeps them; the forward pass, perhaps a CUDA graph, has moved them
            torch._foreach_copy_(statistics, before)
        self._update(result, momentum=values.momentum)
        self._clear_gradient()
        return result

    def _batchnorm_statistics(self) -> list[Tensor]:
        """The running statistics of the online and the target backbone; none for most ViTs."""
        parts = (self.model.get_submodule(name) for name in (BACKBONE, "target.backbone"))
        return [buffer for part in parts for module in part.modules() if isinstance(module, _BatchNorm)
                for buffer in module.buffers(recurse=False)]  # fmt: skip

    def draws(self, step: int, images: int) -> Draws:
        """The random numbers of this process's first images."""
        return self._draws(step, self.positions[:images])

    def _draws(self, step: int, positions: Tensor) -> Draws:
        return Draws(self.config.training.seed, step, positions, self.epoch_of(step))

    def views(self, images: Tensor, sizes: Tensor, draws: Draws) -> Views:
        """The views of images."""
        return self._render(images, sizes, self.config.views, view_making.draw(self.config.views, draws.uniform))

    def compute_gradient(self, step: int, batch: Batch | list[Views]) -> StepResult:
        """Leave the clipped gradient of the mean loss in the parameters."""
        return self._forward_backward(self._parts(step, batch))

    def _parts(self, step: int, batch: Batch | list[Views]) -> Iterator[tuple[Views, Draws]]:
        """Views and random numbers of `training.accumulate` equal parts, made one by one to save memory."""
        if not isinstance(batch, Batch):
            yield from ((views, self.draws(step, views.global_views.shape[1])) for views in batch)
            return
        tensors = (batch.images, batch.sizes, self.positions)
        chunks = (x.chunk(self.config.training.accumulate) for x in tensors)
        for images, sizes, positions in zip(*chunks, strict=True):
            draws = self._draws(step, positions)
            yield self.views(images, sizes, draws), draws

    def _forward_backward(self, parts: Iterable[tuple[Views, Draws]]) -> StepResult:
        """All losses, the mean statistics, and the last part's embeddings."""
        count = self.config.training.accumulate
        losses: list[Tensor] = []
        statistics: dict[str, Tensor] = {}
        observed: dict[str, Tensor] = {}
        for number, (views, draws) in enumerate(parts, 1):
            # The processes exchange gradients once, with the last part.
            waits = self.fabric.world_size > 1 and number < count
            with self.fabric.no_backward_sync(self.model) if waits else nullcontext():  # type: ignore[arg-type]
                output: Output = self.model(views, draws)
                if output.losses.shape != draws.positions.shape:
                    raise ProsminError(
                        f"The method's losses have shape {tuple(output.losses.shape)}; allowed: "
                        f"{tuple(draws.positions.shape)}, one for each image and not their mean."
                    )
                self.fabric.backward(output.losses.mean() / count)
            losses.append(output.losses.detach())
            for name, value in output.statistics.items():
                statistics[name] = statistics[name] + value / count if name in statistics else value / count
            observed = output.observed
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = clip_gradients(parameters, self.config.optimizer)
        every_loss = torch.cat(losses)
        return StepResult(every_loss.mean(), norm, Output(every_loss, observed, statistics))

    def _update(self, result: StepResult, *, momentum: float) -> None:
        """Change the weights and move the target. A gradient that is not finite is never applied."""
        if self.fabric.device.type == "cpu":
            if not (torch.isfinite(result.grad_norm) and torch.isfinite(result.loss)):
                return
        else:
            skip_update_if(~torch.isfinite(result.grad_norm + result.loss), self.optimizer)
        self.optimizer.step()
        reduce, statistics = self.fabric.all_reduce, result.output.statistics
        means = {name: reduce(value, reduce_op="mean") for name, value in statistics.items()}
        self.model.update(means, momentum=momentum)  # type: ignore[operator]

    def _clear_gradient(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)


def skip_update_if(unusable: Tensor, optimizer: Optimizer) -> None:
    """Let a fused optimizer skip its next update if `unusable`, (), is true on the device: the host need not wait."""
    inner: Any = getattr(optimizer, "optimizer", optimizer)  # attributes set on Fabric's wrapper do not reach it
    inner.found_inf = unusable.float()


class StaticDraws(Draws):
    """Random numbers whose keys and scalars stay at fixed addresses for a CUDA graph; `move_to` changes the values."""

    def __init__(self, seed: int, step: int, positions: Tensor, epoch: float) -> None:
        super().__init__(seed, step, positions, epoch)
        self.keys: dict[str, Tensor] = {}
        self.scalars: dict[str, tuple[Tensor, Callable[[float], float]]] = {}

    def move_to(self, step: int, epoch: float) -> None:
        """Write the values of another step into the tensors."""
        self.step, self.epoch = step, epoch
        for purpose, tensor in self.keys.items():
            tensor.fill_(randomness.key(self.seed, step, purpose))
        for tensor, of in self.scalars.values():
            tensor.fill_(of(epoch))

    def key(self, purpose: str) -> Tensor:
        """The key as a tensor, ()."""
        if purpose not in self.keys:
            key = randomness.key(self.seed, self.step, purpose)
            self.keys[purpose] = torch.full((), key, dtype=torch.int64, device=self.positions.device)
        return self.keys[purpose]

    def scalar(self, purpose: str, of: Callable[[float], float]) -> Tensor:
        """The number as a tensor, ()."""
        if purpose not in self.scalars:
            self.scalars[purpose] = (as_scalar(of(self.epoch), self.positions.device), of)
        return self.scalars[purpose][0]


def graph_inputs(batch: Batch | list[Views]) -> dict[str, Tensor]:
    """The tensors of a step that change from batch to batch: images and sizes, or the fields of views made before."""
    if isinstance(batch, Batch):
        return {"images": batch.images, "sizes": batch.sizes}
    return {name: x for name, x in batch[0]._asdict().items() if x is not None}


class GraphTrainingStep(TrainingStep):
    """Views, forward and backward recorded as one CUDA graph; the few kernels of the update are launched one by one."""

    _graph: Recorded[StepResult] | None = None
    _recorded_for: dict[str, torch.Size] | None = None
    _inputs: Mapping[str, Tensor]
    _static_draws: StaticDraws

    def compute_gradient(self, step: int, batch: Batch | list[Views]) -> StepResult:
        """Copy the inputs to the graph's own memory and replay it; record again where their shapes have changed."""
        inputs = graph_inputs(batch)
        shapes = {name: x.shape for name, x in inputs.items()}
        if self._graph is None or shapes != self._recorded_for:
            self._record(step, inputs)
            self._recorded_for = shapes
        assert self._graph is not None
        for name, value in inputs.items():
            self._inputs[name].copy_(value)
        self._static_draws.move_to(step, self.epoch_of(step))
        loss, norm, output = self._graph()
        # The next step overwrites these; the loop reads them some steps later.
        return StepResult(loss.clone(), norm.clone(), Output(output.losses.clone(), output.observed, output.statistics))

    def _record(self, step: int, inputs: Mapping[str, Tensor]) -> None:
        self._graph = None  # frees its memory first
        self._clear_gradient()
        static = self._inputs = {name: x.clone() for name, x in inputs.items()}
        draws = self._static_draws = StaticDraws(self.config.training.seed, step, self.positions, self.epoch_of(step))

        def work() -> StepResult:
            views = self.views(**static, draws=draws) if "images" in static else Views(**static)
            return self._forward_backward([(views, draws)])

        self._graph = Recorded(work)

    def _clear_gradient(self) -> None:
        """A recorded graph owns the gradients' memory and overwrites it."""
        if self._graph is None or not self._graph.is_recorded:
            super()._clear_gradient()
