"""The training loop, to be read from top to bottom. It knows no method."""

import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from lightning_fabric import Fabric
from torch import nn
from torch.optim import Optimizer

from prosmin.config import Config
from prosmin.data.order import Order
from prosmin.data.stream import Feed
from prosmin.errors import Interrupted, ProsminError, Stopped
from prosmin.progress import Progress
from prosmin.training import health, schedules
from prosmin.training.checkpoint import Saver, describe_images
from prosmin.training.launch import Processes
from prosmin.training.log import Logbook, first_columns
from prosmin.training.measurements import Measurement
from prosmin.training.run_folder import RunFolder
from prosmin.training.step import make_training_step

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
SIGNALLED, COLLAPSED = 1, 2
"""Why a run stops early; if processes differ, the larger number wins."""


class StopRequest:
    """Within the block, a signal sets `name` so that the loop can save and stop; a second Ctrl-C interrupts at once.

    A Ctrl-C that comes too late for the loop, which has done its last step, interrupts at the end of the block. What
    the process was told to ignore, as jobs in the background of a script are with Ctrl-C, stays ignored.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():  # Python sets handlers only there
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if error is None and self.name == "SIGINT":
            self._interrupt(None)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.name is not None and number == signal.SIGINT:
            self._interrupt(frame)
        self.name = signal.Signals(number).name

    def _interrupt(self, frame: FrameType | None) -> NoReturn:
        before = self._before[signal.SIGINT]
        if callable(before):  # in the program it ends the process, in a notebook it raises KeyboardInterrupt
            before(signal.SIGINT, frame)
        raise KeyboardInterrupt


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
    measurements: Sequence[Measurement] = (),
) -> int:
    """Train from step `start` to the end and return the number of steps done; `Stopped` after a signal."""
    training, per_epoch = config.training, order.steps_per_epoch
    last = min(steps, training.max_steps or steps)
    method: nn.Module = model.module  # type: ignore[assignment]
    take_step = make_training_step(fabric, config, model, optimizer, epoch_of=lambda step: step / per_epoch)
    progress = Progress("step", total=last, done=start, lines=20, hidden=not fabric.is_global_zero)
    processes = Processes()
    saver = Saver(fabric, config, run, describe_images(fabric, feed, config), method, optimizer)
    log = Logbook(fabric, config, run, feed, processes, saver, start=start)
    orders = (order(step, rank=fabric.global_rank, world=fabric.world_size) for step in range(start, last))

    with saver, StopRequest() as stop, progress:
        for step, batch in enumerate(feed.batches(orders), start):
            values = schedules.values(config, step, steps=steps, steps_per_epoch=per_epoch)
            result = take_step(step, batch, values)
            log.finish()  # a request made after an earlier step: a GPU works on this one meanwhile
            log.add(step, result, batch.index)
            done = step + 1

            reason = COLLAPSED if log.watch.gives_up else SIGNALLED if stop.name else 0
            stopping = processes.agree(reason)
            due = [each for each in measurements if each.is_due(done, last)]
            logging = done % training.log_every == 0 or done == last or bool(due)
            saving = done == last or bool(stopping) or saver.is_due(done)
            if logging or saving or log.at_once:
                log.request(result, first_columns(done, values, epoch=done / per_epoch) if logging else None)
            score: float | None = None
            if due or saving or log.at_once:
                score = log.finish(due, method).get("knn_top1")
            progress.update(done, f"epoch {done / per_epoch:.1f}  {log.note}".rstrip())
            if saving or saver.is_best(score):
                saver.save(done, score)
            saver.check()
            if stopping and done < last:
                saver.wait()
                processes.close()
                raise _stopped(stopping, done, last, log.watch, signal_name=stop.name)
        saver.wait()
    processes.close()
    return max(start, last)  # a checkpoint may be beyond a training.max_steps that was lowered


def _stopped(reason: int, done: int, last: int, watch: health.Watch, *, signal_name: str | None) -> ProsminError:
    if reason == SIGNALLED:
        kind = Interrupted if signal_name == "SIGINT" else Stopped
        return kind(f"Stopped at step {done} of {last} as asked; the checkpoint is saved. The same command continues.")
    why = watch.verdict or "the first process says why"
    return ProsminError(f"Stopped at step {done} of {last}, because training.on_collapse is stop: {why}.")
