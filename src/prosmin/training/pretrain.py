"""Pretraining: set everything up, resume if there is something to resume, run the loop, leave the encoder."""

import sys
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import nn

from prosmin.config import Config
from prosmin.data.feed import Feed, open_feed
from prosmin.encoder import read_card, save_encoder
from prosmin.errors import ProsminError, UsageError
from prosmin.methods import build_method
from prosmin.models.batchnorm import synchronise_batchnorm
from prosmin.training import checkpoints, health
from prosmin.training.loop import train
from prosmin.training.order import Order
from prosmin.training.run_folder import RunFolder
from prosmin.training.step import make_optimizer


def pretrain(config: Config, out: Path) -> Path:
    """Train a run in the folder `out`, or continue the one there; the folder comes back when it has finished."""
    run = RunFolder(out)
    fabric = Fabric(
        accelerator=config.compute.accelerator,
        devices=config.compute.devices,
        precision=config.compute.precision,
    )
    fabric.launch()
    if config.training.batch_size % fabric.world_size:
        raise UsageError(
            f"training.batch_size is {config.training.batch_size}, which {fabric.world_size} processes cannot share "
            "evenly. Give a multiple of the number of processes."
        )
    try:
        if run.config_file.exists():
            _open(fabric, run, config)
            if is_finished(run, config):
                _say(fabric, f"{run.path} has finished already.")
                return run.path
        # Before a new folder is made: pictures or networks that cannot be had leave nothing behind.
        feed, order = _pictures(fabric, config)
        method = build_method(config)
        _open(fabric, run, config)
        _train(fabric, config, run, feed, order, method)
    finally:
        run.close()
    return run.path


def _open(fabric: Fabric, run: RunFolder, config: Config) -> None:
    if fabric.is_global_zero:
        run.open(config)
    fabric.barrier()


def _pictures(fabric: Fabric, config: Config) -> tuple[Feed, Order]:
    size = config.training.batch_size
    feed = open_feed(config.data.spec, device=fabric.device, max_bad=config.data.max_bad)
    if len(feed) < size:
        raise ProsminError(
            f"{config.data.spec} has {len(feed)} pictures, fewer than training.batch_size {size}. "
            "Give a smaller --training.batch_size."
        )
    return feed, Order(len(feed), batch_size=size, seed=config.training.seed)


def _train(fabric: Fabric, config: Config, run: RunFolder, feed: Feed, order: Order, method: nn.Module) -> None:
    steps = config.training.epochs * order.steps_per_epoch
    last = min(steps, config.training.max_steps or steps)
    if fabric.world_size > 1:
        synchronise_batchnorm(method)
    on_gpu = fabric.device.type == "cuda"
    if on_gpu:
        torch.set_float32_matmul_precision("high")  # TF32 for what autocast leaves in float32
        method.to(memory_format=torch.channels_last)  # the layout in which convolutions are fastest
    if config.compute.compile:
        for part in method.children():
            part.compile()
    optimizer = make_optimizer(method.to(fabric.device), config.optimizer, fused=on_gpu)
    model, optimizer = fabric.setup(method, optimizer)
    start = _resume(fabric, run, model.module, optimizer)

    done = train(fabric, config, run, feed, order, model, optimizer, start=start, steps=steps)
    if done < last:
        raise ProsminError(
            f"Stopped at step {done} of {last} as asked; the checkpoint is saved. The same command continues."
        )
    if fabric.is_global_zero:
        save_encoder(model.module, config, run.path, step=done, steps=steps)
        for key in feed.bad:
            print(f"left out: {key}", file=sys.stderr)
        _say(fabric, f"{health.verdict(run.read_metrics())}; {done} steps, encoder in {run.encoder_file}")


def is_finished(run: RunFolder, config: Config) -> bool:
    """Whether the run's encoder is there and stems from its last step."""
    if not (run.path / "encoder.json").is_file():
        return False
    card = read_card(run.path)
    return card["step"] >= min(card["steps"], config.training.max_steps or card["steps"])


def _resume(fabric: Fabric, run: RunFolder, method: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    checkpoint, damaged = checkpoints.load_newest(run.checkpoints)
    for sentence in damaged:
        print(f"warning: {sentence}", file=sys.stderr)
    if checkpoint is not None:
        checkpoints.restore(checkpoint, method, optimizer)
        _say(fabric, f"continuing {run.path} from step {checkpoint.step}")
    start = checkpoint.step if checkpoint else 0
    if fabric.is_global_zero:
        run.rewind_metrics(start)
    return start


def _say(fabric: Fabric, sentence: str) -> None:
    if fabric.is_global_zero:
        print(sentence, flush=True)
