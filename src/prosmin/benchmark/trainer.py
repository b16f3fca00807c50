"""Networks, optimizer and views of a configuration as in pretraining, for single calls."""

import dataclasses
import gc
import math
from collections.abc import Iterator
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
from prosmin.training.step import StepResult, make_training_step

TINY_LR = 1e-7
"""The learning rate: hundreds of steps on one batch must stay finite. It does not change the time."""


class Trainer:
    """One process on one device; every step has the scheduled values of the middle of the run."""

    def __init__(self, config: Config) -> None:
        if config.compute.devices > 1:
            raise UsageError(
                f"compute.devices is {config.compute.devices}; allowed: 1, as a benchmark measures one device. Set "
                "training.batch_size to the images per device."
            )
        self.config, middle = config, config.training.epochs / 2
        quiet = dataclasses.replace(config, training=dataclasses.replace(config.training, logger="none"))
        self.fabric = make_fabric(quiet, Path())
        check_shares(config.training, processes=1)
        self.method = build(config)
        self.model, self.optimizer = prepare(self.fabric, config, self.method)
        self._step = make_training_step(self.fabric, config, self.model, self.optimizer, epoch_of=lambda step: middle)
        self._values = Values(lr=TINY_LR, weight_decay=config.optimizer.weight_decay, momentum=config.target.momentum)
        self._steps = 0
        self._last: StepResult | None = None

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.fabric.device

    def train(self, batch: Batch | list[Views]) -> None:
        """One training step on images, or on the views of each part of a batch."""
        self._steps += 1
        self._last = self._step(self._steps, batch, self._values).without_embeddings()

    def pieces(self, batch: Batch) -> list[Batch]:
        """The parts of a batch, as `training.accumulate` splits it."""
        count = self.config.training.accumulate
        return [Batch(*part) for part in zip(*(tensor.chunk(count) for tensor in batch), strict=True)]

    def views(self, batch: Batch) -> Views:
        """The views of a batch or a part of it, with new random numbers every time."""
        self._steps += 1
        return self._step.views(batch.images, batch.sizes, self._step.draws(self._steps, len(batch.images)))

    def check(self) -> None:
        """An error if the last loss is not finite: such steps skip the update and take less time."""
        if self._last is not None and not math.isfinite(float(self._last.loss)):
            raise ProsminError(
                "The loss of the last step is not finite, so its time is not that of training. "
                "Lower optimizer.clip, or set compute.precision to 32-true."
            )


def random_orders(pictures: int, *, batch: int, seed: int = 0) -> Iterator[Tensor]:
    """Endless random batches of image numbers, drawn with replacement."""
    generator = randomness.generator(seed, 0, "benchmark")
    while True:
        yield torch.randint(pictures, (batch,), generator=generator)


def release_memory(device: torch.device) -> None:
    """Free the memory of deleted networks, including their compiled code."""
    torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
