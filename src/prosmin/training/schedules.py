"""Schedules: pure functions from a step to a value."""

import math
from dataclasses import dataclass

from prosmin.config import Config


def cosine(step: int, steps: int, start: float, end: float) -> float:
    """From `start` at step 0 to `end` at the last step, along half a cosine."""
    if steps <= 1:
        return start
    share = min(max(step / (steps - 1), 0.0), 1.0)
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * share))


def warmup_cosine(step: int, steps: int, warmup: int, peak: float, end: float) -> float:
    """Linearly up to `peak` over `warmup` steps, then down to `end` along half a cosine."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return cosine(step - warmup, steps - warmup, peak, end)


@dataclass(frozen=True)
class Values:
    """The scheduled values of one step."""

    lr: float
    weight_decay: float
    momentum: float
    backbone: float = 1.0  # factor of the backbone's learning rate: 0 while it is frozen


def values(config: Config, step: int, *, steps: int, steps_per_epoch: int) -> Values:
    """Learning rate, weight decay and target momentum of a step."""
    optimizer, target = config.optimizer, config.target
    peak = optimizer.lr * config.training.batch_size / 256
    warmup = min(round(optimizer.warmup_epochs * steps_per_epoch), steps // 2)
    return Values(
        lr=warmup_cosine(step, steps, warmup, peak, min(optimizer.lr_end, peak)),
        weight_decay=cosine(step, steps, optimizer.weight_decay, optimizer.weight_decay_end),
        momentum=cosine(step, steps, target.momentum, target.momentum_end),
        backbone=float(step >= frozen_steps(config, steps_per_epoch=steps_per_epoch)),
    )


def frozen_steps(config: Config, *, steps_per_epoch: int) -> int:
    """The steps at the start in which only the heads learn."""
    return round(config.backbone.freeze_epochs * steps_per_epoch)
