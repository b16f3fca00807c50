"""The loop: read from top to bottom. It knows no method."""

import signal
import threading
from collections.abc import Iterator
from types import FrameType

from lightning_fabric import Fabric
from torch import nn
from torch.optim import Optimizer

from prosmin.config import Config
from prosmin.data.order import Order
from prosmin.data.stream import Batch, Feed
from prosmin.errors import Interrupted, ProsminError, Stopped
from prosmin.progress import TrainingProgress
from prosmin.training import health, schedules
from prosmin.training.checkpoint import Saver, pictures_of
from prosmin.training.launch import Processes
from prosmin.training.log import Logbook, begin_line
from prosmin.training.online_knn import OnlineKnn
from prosmin.training.run_folder import RunFolder
from prosmin.training.step import make_stepper

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """Within the block a signal sets `name`; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.name is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.name = signal.Signals(number).name


ASKED, COLLAPSED = 1, 2
"""Why the processes leave early; the larger reason wins."""


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
    knn: OnlineKnn | None = None,
) -> int:
    """Train from step `start` up to the end and give back the steps behind us; `Stopped` when asked to leave early."""
    training = config.training
    last = min(steps, training.max_steps or steps)
    method: nn.Module = model.module  # type: ignore[assignment]
    take_step = make_stepper(fabric, config, model, optimizer, epoch_of=lambda step: step / order.steps_per_epoch)
    progress = TrainingProgress(
        start=start, steps=last, steps_per_epoch=order.steps_per_epoch, quiet=not fabric.is_global_zero
    )
    processes = Processes()
    saver = Saver(fabric, config, run, pictures_of(fabric, feed, config), method, optimizer)
    log = Logbook(fabric, config, run, feed, progress, processes, saver, start=start)

    with saver, StopRequest() as stop, progress:
        for step, batch in enumerate(_batches(fabric, feed, order, start, last), start):
            values = schedules.values(config, step, steps=steps, steps_per_epoch=order.steps_per_epoch)
            done = take_step(step, batch, values)
            log.settle()  # what was asked for after an earlier step: a GPU has this one to work on meanwhile
            log.take(step, done, batch.index)
            behind = step + 1

            wished = COLLAPSED if log.watch.gives_up else ASKED if stop.name else 0
            leaving = processes.agree(wished)
            measuring = bool(training.knn_every) and (behind % (training.knn_every or 1) == 0 or behind == last)
            logging = behind % training.log_every == 0 or behind == last or measuring
            saving = behind == last or bool(leaving) or saver.is_due(behind)
            if logging or saving or log.at_once:
                line = begin_line(behind, values, epoch=behind / order.steps_per_epoch) if logging else None
                log.ask(done, line)
            score: float | None = None
            if measuring or saving or log.at_once:
                score = log.settle(knn if measuring else None, method)
            progress.advance(behind)
            if saving or saver.is_best(score):
                saver.save(behind, score)
            saver.check()
            if leaving and behind < last:
                saver.wait()
                processes.close()
                raise _farewell(leaving, behind, last, log.watch, signal_name=stop.name)
        saver.wait()
    processes.close()
    return max(start, last)  # a checkpoint may lie beyond a training.max_steps that was lowered


def _batches(fabric: Fabric, feed: Feed, order: Order, start: int, last: int) -> Iterator[Batch]:
    """This process's share of every step."""
    orders = (order(step, rank=fabric.global_rank, world=fabric.world_size) for step in range(start, last))
    return feed.batches(orders)


def _farewell(reason: int, behind: int, last: int, watch: health.Watch, *, signal_name: str | None) -> ProsminError:
    if reason == ASKED:
        kind = Interrupted if signal_name == "SIGINT" else Stopped
        return kind(
            f"Stopped at step {behind} of {last} as asked; the checkpoint is saved. The same command continues."
        )
    why = watch.sentence or "the first process tells why"
    return ProsminError(f"Stopped at step {behind} of {last}, as training.on_collapse asks: {why}.")
