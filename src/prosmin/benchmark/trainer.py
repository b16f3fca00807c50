"""Networks, optimizer and views of a configuration, set up as pretraining sets them up, to be driven by hand."""

import dataclasses
import gc
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from prosmin import randomness
from prosmin.config import Config
from prosmin.data.stream import Batch
from prosmin.data.views import Views
from prosmin.errors import ProsminError, UsageError
from prosmin.training.launch import make_fabric
from prosmin.training.pretrain import build, check_shares, prepare
from prosmin.training.schedules import Values
from prosmin.training.step import Step, make_stepper, slim

STILL = 1e-7
"""The learning rate: it costs no time, and hundreds of steps on one batch must not end in numbers that are none."""


class Trainer:
    """One process on one device; each step is one of the middle of the run, when no schedule is special."""

    def __init__(self, config: Config) -> None:
        if config.compute.devices > 1:
            raise UsageError(
                f"compute.devices is {config.compute.devices}; a benchmark measures one device. Leave it at 1 and give "
                "training.batch_size the images that one device has of a step."
            )
        self.config, middle = config, config.training.epochs / 2
        self.is_compiled = config.compute.compile != "none"
        quiet = dataclasses.replace(config, training=dataclasses.replace(config.training, logger="none"))
        self.fabric = make_fabric(quiet, Path())
        check_shares(config.training, processes=1)
        self.method = build(config)
        self.model, self.optimizer = prepare(self.fabric, config, self.method)
        self._take = make_stepper(self.fabric, config, self.model, self.optimizer, epoch_of=lambda step: middle)
        self._values = Values(lr=STILL, weight_decay=config.optimizer.weight_decay, momentum=config.target.momentum)
        self._steps = 0
        self._last: Step | None = None

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.fabric.device

    def train(self, batch: Batch) -> None:
        """One step of training."""
        self._steps += 1
        self._last = slim(self._take(self._steps, batch, self._values))

    def pieces(self, batch: Batch) -> list[Batch]:
        """The parts in which a step takes the batch."""
        count = self.config.training.accumulate
        return [Batch(*part) for part in zip(*(tensor.chunk(count) for tensor in batch), strict=True)]

    def views(self, batch: Batch) -> Views:
        """The views of a batch or a part of it, from other random numbers every time."""
        self._steps += 1
        return self._take.views(batch.images, batch.sizes, self._take.draws(self._steps, len(batch.images)))

    def step(self, parts: Sequence[Views]) -> None:
        """Forward and backward of every part, optimizer and target, on ready views."""
        self._steps += 1
        self._last = slim(self._take.on_views(self._steps, parts, self._values))

    def check(self) -> None:
        """An error when the steps have led to numbers that are none: such steps are skipped, and quicker."""
        if self._last is not None and not math.isfinite(float(self._last.loss)):
            raise ProsminError(
                "The loss of the last step is not finite, so its time means nothing. "
                "Lower optimizer.clip, or set compute.precision to 32-true."
            )


def random_orders(pictures: int, *, batch: int, seed: int = 0) -> Iterator[Tensor]:
    """Batches of image numbers without end, in random order; a set smaller than a batch repeats itself."""
    generator = randomness.generator(seed, 0, "benchmark")
    while True:
        yield torch.randint(pictures, (batch,), generator=generator)


def release_memory(device: torch.device) -> None:
    """Give back what networks that are gone have left behind, their compiled code included."""
    torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
