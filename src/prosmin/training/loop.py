"""The loop: read from top to bottom. It knows no method."""

import time
from collections.abc import Iterator
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from prosmin import randomness
from prosmin.config import Config, fingerprint
from prosmin.data import views as view_making
from prosmin.data.feed import Batch, Feed
from prosmin.methods.output import Draws
from prosmin.training import checkpoints, health, schedules
from prosmin.training.order import Order
from prosmin.training.progress import TrainingProgress
from prosmin.training.run_folder import RunFolder
from prosmin.training.step import Step, check_finite, slim, train_step
from prosmin.training.stopping import StopRequest


def train(
    fabric: Fabric,
    config: Config,
    run: RunFolder,
    feed: Feed,
    order: Order,
    model: nn.Module,
    optimizer: Optimizer,
    *,
    start: int,
    steps: int,
) -> int:
    """Train from step `start` up to the end, or until asked to stop; the number of steps behind us comes back."""
    training = config.training
    last = min(steps, training.max_steps or steps)
    share = training.batch_size // fabric.world_size
    positions = torch.arange(share, device=fabric.device) + fabric.global_rank * share
    method: nn.Module = model.module  # type: ignore[assignment]
    progress = TrainingProgress(
        start=start, steps=last, steps_per_epoch=order.steps_per_epoch, quiet=not fabric.is_global_zero
    )
    render = torch.compile(view_making.render) if config.compute.compile else view_making.render
    unchecked: list[tuple[int, Step, Tensor]] = []  # steps and their pictures, on a GPU since the last look
    logged, logged_at = start, time.monotonic()

    def save(done: int) -> None:
        if fabric.is_global_zero:
            checkpoints.save(
                run.checkpoints,
                step=done,
                fingerprint=fingerprint(config),
                model=method,
                optimizer=optimizer,
                keep=training.keep,
            )
        fabric.barrier()

    with StopRequest() as stop, progress:
        for step, batch in enumerate(_batches(fabric, feed, order, start, last), start):
            values = schedules.values(config, step, steps=steps, steps_per_epoch=order.steps_per_epoch)
            numbers = view_making.draw(config.views, seed=training.seed, step=step, positions=positions)
            views = render(batch.images, batch.sizes, config.views, numbers)
            if config.backbone.drop_path:  # drawn by torch's own generator, which must not remember earlier steps
                torch.manual_seed(randomness.key(training.seed, step, f"drop path {fabric.global_rank}"))
            draws = Draws(training.seed, step, positions, step / order.steps_per_epoch)
            done = train_step(fabric, model, optimizer, views, draws, values=values, clip=config.optimizer.clip)
            unchecked.append((step, slim(done), batch.index))
            behind = step + 1

            logging = behind % training.log_every == 0 or behind == last
            stopping = stop.name is not None  # read once: a signal may come between two looks
            saving = behind % training.checkpoint_every == 0 or behind == last or stopping
            if logging or saving or fabric.device.type == "cpu":
                for at, taken, index in unchecked:
                    check_finite(at, taken, (feed.key(int(i)) for i in index))
                unchecked.clear()
            if logging:
                rate = training.batch_size * (behind - logged) / (time.monotonic() - logged_at)
                logged, logged_at = behind, time.monotonic()
                row = _row(
                    fabric,
                    done,
                    values,
                    step=behind,
                    epoch=behind / order.steps_per_epoch,
                    rate=rate,
                    bad=len(feed.bad),
                )
                progress.describe(row)
                if fabric.is_global_zero:
                    run.log(row)
            progress.advance(behind)
            if saving:
                save(behind)
            if stopping:
                return behind
    return last


def _batches(fabric: Fabric, feed: Feed, order: Order, start: int, last: int) -> Iterator[Batch]:
    """This process's share of every step."""
    orders = (order(step, rank=fabric.global_rank, world=fabric.world_size) for step in range(start, last))
    return feed.batches(orders)


def _row(
    fabric: Fabric, done: Step, values: schedules.Values, *, step: int, epoch: float, rate: float, bad: int
) -> dict[str, Any]:
    """One line of metrics.jsonl."""
    loss: Any = fabric.all_reduce(done.loss, reduce_op="mean")
    memory = torch.cuda.max_memory_allocated() / 2**20 if fabric.device.type == "cuda" else 0.0
    return {
        "step": step,
        "epoch": round(epoch, 4),
        "loss": float(loss),
        "lr": values.lr,
        "weight_decay": values.weight_decay,
        "momentum": values.momentum,
        "grad_norm": float(done.grad_norm),
        **health.numbers(done.output.observed),
        "bad_pictures": bad,
        "images_per_second": round(rate, 1),
        "memory_mib": round(memory, 1),
    }
