"""One step: forward, backward, update, and the target follows."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from prosmin.config import Config
from prosmin.data.views import Views
from prosmin.errors import ProsminError
from prosmin.methods.output import Draws, Output
from prosmin.training.naming import some
from prosmin.training.schedules import Values


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
                    f"{tuple(draws.positions.shape)}, one for each picture and not their mean."
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
    """Stop the run at the first step, of some with their pictures' numbers, whose loss or gradient is not finite.

    The loop counts steps from 0; what a person reads, as the lines of progress, from 1.
    """
    for (step, done, index), is_finite in zip(taken, finite, strict=True):
        if is_finite:
            continue
        bad = (~torch.isfinite(done.output.losses)).tolist()
        named = [key(i) for i, is_bad in zip(index.tolist(), bad, strict=True) if is_bad]
        pictures = f"{len(named)} picture{'s' * (len(named) > 1)}: {some(named)}"
        where = f"its loss is not finite for {pictures}" if named else "its gradient is not finite"
        raise ProsminError(f"Step {step + 1} was not applied: {where}. {next_steps()}")


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]
