"""Pretraining: set up images and networks, resume from a checkpoint if there is one, train, save the encoder."""

import math
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from prosmin.config import Config, TrainingConfig
from prosmin.data.order import Order
from prosmin.data.stream import Feed, open_feed
from prosmin.encoder import background as backgrounds
from prosmin.encoder import load, save_encoder
from prosmin.encoder.file import CARD, read_card
from prosmin.errors import ProsminError, UsageError
from prosmin.files import staged
from prosmin.methods import build_method
from prosmin.models.backbones import check_views, checkpoint_activations, layer_depths
from prosmin.models.batchnorm import synchronise_batchnorm
from prosmin.models.compiling import compile_networks
from prosmin.randomness import generator
from prosmin.training import checkpoint as checkpoints
from prosmin.training import health
from prosmin.training.checkpoint import Checkpoint, describe_images
from prosmin.training.choice import average_with_start, load_best
from prosmin.training.determinism import deterministic
from prosmin.training.guard import Guard, guard_every, open_guard
from prosmin.training.launch import disconnect_at_exit, ending_with_first, layout, make_fabric
from prosmin.training.loop import train
from prosmin.training.measurements import Measurement
from prosmin.training.online_knn import OnlineKnn
from prosmin.training.run_folder import RunFolder
from prosmin.training.schedules import frozen_steps
from prosmin.training.start import load_start
from prosmin.training.step import make_optimizer

T = TypeVar("T")

FEW_STEPS = 200
"""Fewer steps leave an encoder about as it was at the start; a useful one takes several times as many."""


def pretrain(config: Config, out: Path) -> Path:
    """Train a run in the folder `out`, or continue the run there; returns the folder when it has finished."""
    run = RunFolder(out)
    run.refuse_other_files()
    check_shares(config.training, processes=math.prod(layout(config.compute, os.environ)))  # before any is started
    matmul_precision, local_processes = torch.get_float32_matmul_precision(), os.environ.get("LOCAL_WORLD_SIZE")
    try:
        with deterministic(config.compute):
            fabric = make_fabric(config, out)
            disconnect_at_exit()  # for a run that is refused before the first step
            with ending_with_first(fabric):
                _pretrain(fabric, config, run)
    finally:
        # Later work in this process must not depend on the training before it.
        torch.set_float32_matmul_precision(matmul_precision)
        if local_processes is None:
            os.environ.pop("LOCAL_WORLD_SIZE", None)
        run.close()
    return run.path


def _pretrain(fabric: Fabric, config: Config, run: RunFolder) -> None:
    # The first process decides for all: a slower one could already find the folder that the first has made.
    if fabric.broadcast(run.config_file.exists()):
        _in_first(fabric, lambda: run.open(config))
        if fabric.broadcast(run.is_finished(config)):
            _print(fabric, f"{run.path} has finished already{_remaining(run)}.{_other_guard(run, config)}")
            return
    # All of this comes before a new folder is made, so that an error leaves nothing behind.
    feed = open_images(config, fabric.device)
    size = config.training.batch_size
    if len(feed) < size:
        raise ProsminError(
            f"{config.data.spec} has {len(feed)} images, fewer than training.batch_size {size}. "
            "Give a smaller --training.batch_size."
        )
    order = Order(len(feed), batch_size=size, seed=config.training.seed)
    method = build(config)
    checkpoint = _newest_checkpoint(fabric, run)
    if checkpoint is not None and checkpoint.pictures:
        _check_images(fabric, run, checkpoint, describe_images(fabric, feed, config), config.data.spec)
    if config.backbone.weights is not None and checkpoint is None:
        loaded, cautions = load_start(method, config)
        _print(fabric, loaded)
        for caution in cautions if fabric.is_global_zero else []:
            warnings.warn(caution, stacklevel=2)
    knn = _in_first(fabric, lambda: OnlineKnn(feed, config)) if config.training.knn_every else None
    _in_first(fabric, lambda: run.open(config))
    _in_first(fabric, lambda: run.update_config(config))
    ended = "failed"
    try:
        _train(fabric, config, run, feed, order, method, checkpoint, knn)
        ended = "success"
    finally:
        for logger in fabric.loggers:
            logger.finalize(ended)


def _in_first(fabric: Fabric, work: Callable[[], T]) -> T | None:
    """Work that the first process does for all; an error in it ends all of them, as the others would wait for it."""
    done: T | None = None
    failure: ProsminError | None = None
    if fabric.is_global_zero:
        try:
            done = work()
        except ProsminError as error:
            failure = error
    if fabric.broadcast(failure is not None):
        raise failure or ProsminError("This run cannot be trained: the first process says why.")
    return done


def _print(fabric: Fabric, line: str) -> None:
    if fabric.is_global_zero:
        print(line, flush=True)


def check_shares(training: TrainingConfig, *, processes: int) -> None:
    """A batch must split into equal parts over processes and `training.accumulate`, with two images or more in each."""
    parts = processes * training.accumulate
    if training.batch_size % parts:
        problem = "cannot share evenly"
    elif training.batch_size == parts:  # BatchNorm and the spread of targets are undefined for one image
        problem = "would process one image at a time, but two are needed"
    else:
        return
    several = f"{processes} processes" if processes > 1 else "1 process"
    raise UsageError(
        f"training.batch_size is {training.batch_size}, which {several} with training.accumulate {training.accumulate} "
        f"{problem}. Give a multiple of {parts}, at least {2 * parts}."
    )


def open_images(config: Config, device: torch.device) -> Feed:
    """The training images."""
    return open_feed(
        config.data.spec,
        device=device,
        max_bad=config.data.max_bad,
        memory_limit=int(config.compute.resident_gib * 2**30),
        nvjpeg=config.compute.nvjpeg,
    )


def build(config: Config) -> nn.Module:
    """The method before its first step; an error if it cannot be trained as configured."""
    method = build_method(config)
    check_views(method.get_submodule("online.backbone"), config)
    if config.optimizer.layer_decay != 1:
        layer_depths(method.get_submodule("online.backbone"), config.backbone.name)  # for its error
    parts = config.training.accumulate
    if parts > 1 and method.spans_batch:
        raise UsageError(
            f"training.accumulate is {parts}, but the loss of an image depends on the others of its batch, and parts "
            "contain fewer of them. Leave it at 1 and use a smaller training.batch_size, more processes, or "
            "compute.checkpoint_activations."
        )
    if parts > 1 and any(isinstance(module, _BatchNorm) for module in method.modules()):
        warnings.warn(
            f"with training.accumulate {parts}, BatchNorm sees one part of the batch at a time: "
            "the result differs from that of the whole batch",
            stacklevel=2,
        )
    if config.compute.checkpoint_activations:
        checkpoint_activations(method.get_submodule("online.backbone"))
    return method


def prepare(fabric: Fabric, config: Config, method: nn.Module) -> tuple[nn.Module, Optimizer]:
    """The method and its optimizer on their device, compiled and distributed over the processes as configured."""
    if fabric.world_size > 1:
        synchronise_batchnorm(method)
    on_gpu = fabric.device.type == "cuda"
    if on_gpu:
        torch.set_float32_matmul_precision("high")  # TF32 for what autocast leaves in float32
        method.to(memory_format=torch.channels_last)  # the fastest layout for convolutions
    compile_networks(method, config.compute.compile)
    optimizer = make_optimizer(method.to(fabric.device), config, fused=on_gpu)
    return fabric.setup(method, optimizer)


def _train(
    fabric: Fabric,
    config: Config,
    run: RunFolder,
    feed: Feed,
    order: Order,
    method: nn.Module,
    checkpoint: Checkpoint | None,
    knn: OnlineKnn | None,
) -> None:
    steps = config.training.epochs * order.steps_per_epoch
    _print(fabric, _length(feed, order, steps, config.training.max_steps))
    if fabric.is_global_zero:
        _warn_of_frozen(config, order, steps)
    model, optimizer = prepare(fabric, config, method)
    start = _resume(fabric, run, checkpoint, method, optimizer)
    _in_first(fabric, lambda: _refuse_collapsed(run, config))

    guard: Guard | None = None
    measurements = [Measurement(config.training.knn_every, knn)] if config.training.knn_every else []
    if config.backbone.weights is not None:
        is_new = checkpoint is None
        guard = _in_first(fabric, lambda: open_guard(method, feed, config, run.path, is_new=is_new))
        measurements.append(Measurement(guard_every(config, steps), guard))
    done = train(
        fabric, config, run, feed, order, model, optimizer, start=start, steps=steps, measurements=measurements
    )
    if fabric.is_global_zero:
        step = load_best(run, method) if config.training.encoder == "best" else done
        share = average_with_start(guard, run, method, config) if guard and config.training.guard else 1.0
        with staged(run.encoder_file, folder=run.path) as part:  # an encoder without its background has other scores
            save_encoder(method, config, part, step=step, steps=steps, trained=done, share=share)
            store_background(part, feed, fabric.device, seen=done * config.training.batch_size)
        for key in feed.bad:
            print(f"left out: {key}", file=sys.stderr)
        verdict = health.verdict(run.read_metrics(), config)
        if step != done:
            verdict = f"the weights of step {done}, which are not the encoder's: {verdict}"
        elif share < 1.0:
            verdict = f"the trained weights, before the average: {verdict}"
        print(f"{verdict}; {_count(done)}, encoder in {run.encoder_file}", flush=True)
        if done < FEW_STEPS:
            few = f"{_count(done)} {'is' if done == 1 else 'are'} too few to learn useful features"
            print(f"{few}: {_how_to_train_longer(order, done, steps)}.", flush=True)


def store_background(folder: Path, feed: Feed, device: torch.device, *, seen: int) -> None:
    """Store what some training images look like to the encoder in a folder, which needs it for its scores.

    No more images than the run has `seen`: a short run does not take longer for its background than for its steps.
    """
    encoder = load(folder, device=device)  # not the method itself, which may be compiled for other batches
    count = min(backgrounds.SAMPLE, seen)
    draw = torch.randperm(len(feed), generator=generator(0, 0, "background"))[:count].sort().values
    with closing(feed.batches(draw.split(encoder.batch_size))) as batches:
        sample = torch.cat([encoder.batch_features(batch).cpu() for batch in batches])
    background = backgrounds.make_background(encoder.features, sample)
    backgrounds.write_background(folder, background, encoder=encoder.card["hash"])


def _remaining(run: RunFolder) -> str:
    """Where training.max_steps ended a run, and how to continue it; empty if it trained all its epochs."""
    card = read_card(run.path)
    if card["trained"] >= card["steps"]:
        return ""
    return f" at step {card['trained']}; --training.max_steps null continues to {card['steps']}"


def _other_guard(run: RunFolder, config: Config) -> str:
    """How to choose the encoder of a finished run again, if another training.guard is given; else empty."""
    was, now = (each.training.guard or 0.0 for each in (run.read_config(), config))
    if was == now:
        return ""
    return (
        f" Its encoder was chosen with training.guard {was:g}, not {now:g}, and stays as it is: to choose again from "
        f"the same training, remove {run.path / CARD} and give this command again."
    )


def _count(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


def _length(feed: Feed, order: Order, steps: int, max_steps: int | None) -> str:
    """How long the run is, and whether the epochs or training.max_steps limit it."""
    per_epoch = order.steps_per_epoch
    line = f"{len(feed)} images, {_count(per_epoch)} per epoch, {min(steps, max_steps or steps)} in total"
    if max_steps is None or max_steps == steps:
        return line
    if max_steps < steps:
        return f"{line} (limited by training.max_steps)"
    epochs = -(-max_steps // per_epoch)
    return f"{line}, fewer than training.max_steps {max_steps}; --training.epochs {epochs} makes {epochs * per_epoch}"


def _warn_of_frozen(config: Config, order: Order, steps: int) -> None:
    """A warning if the run ends within the epochs in which the backbone is frozen."""
    frozen = frozen_steps(config, steps_per_epoch=order.steps_per_epoch)
    end = min(steps, config.training.max_steps or steps)
    if frozen >= end:
        print(
            f"warning: backbone.freeze_epochs {config.backbone.freeze_epochs:g} freezes the backbone for "
            f"{_count(frozen)}, and this run ends after {end}: only the heads learn, and the features stay as they "
            "are. Lower backbone.freeze_epochs, or train longer.",
            file=sys.stderr,
        )


def _how_to_train_longer(order: Order, done: int, steps: int) -> str:
    if steps >= FEW_STEPS:  # only training.max_steps made it so short
        return f"the same command with --training.max_steps null continues to {steps}"
    epochs = -(-5 * FEW_STEPS // order.steps_per_epoch)
    unlimited = " and without --training.max_steps" if done < steps else ""
    made = epochs * order.steps_per_epoch
    return f"with {order.pictures} images --training.epochs {epochs} makes {made}, with another --out{unlimited}"


def _newest_checkpoint(fabric: Fabric, run: RunFolder) -> Checkpoint | None:
    """The checkpoint to continue from; damaged ones are renamed."""
    checkpoint, damaged = checkpoints.load_newest(run.checkpoints)
    if fabric.is_global_zero:
        for name, why in damaged.items():
            try:
                outcome = f"renamed to {checkpoints.set_aside(run.checkpoints, name)}"
            except OSError as error:
                outcome = f"not renamed: {error.strerror}"
            print(f"warning: checkpoint {name} is damaged ({why}) and skipped; {outcome}", file=sys.stderr)
    return checkpoint


def _check_images(fabric: Fabric, run: RunFolder, checkpoint: Checkpoint, now: dict[str, Any], spec: str) -> None:
    """A run continues with the images it started with: their number sets its length."""
    then = checkpoint.pictures
    if now["count"] != then["count"]:
        raise ProsminError(
            f"{spec} has {now['count']} images, but had {then['count']} when {run.path} reached step "
            f"{checkpoint.step}. Put the same images back, or start a new run with another --out."
        )
    if now["mark"] != then["mark"] and fabric.is_global_zero:
        print(
            f"warning: names or sizes of the files of {spec} have changed since step {checkpoint.step}. "
            "If these are other images, start a new run with another --out.",
            file=sys.stderr,
        )


def _resume(
    fabric: Fabric, run: RunFolder, checkpoint: Checkpoint | None, method: nn.Module, optimizer: Optimizer
) -> int:
    """The step to start from, with the state of the checkpoint."""
    if checkpoint is not None:
        checkpoints.restore(checkpoint, method, optimizer)
        checkpoint.model.clear()  # the networks have copies now
        checkpoint.optimizer.clear()
        _print(fabric, f"continuing {run.path} from step {checkpoint.step}")
    start = checkpoint.step if checkpoint else 0
    if fabric.is_global_zero:
        run.rewind_metrics(start)
    return start


def _refuse_collapsed(run: RunFolder, config: Config) -> None:
    """A run that training.on_collapse stopped does not continue when it is started again."""
    rows = run.read_metrics()
    if health.Watch(config, rows).gives_up:
        raise ProsminError(
            f"{run.path} was stopped by training.on_collapse: {health.verdict(rows, config)}. "
            "Change the configuration and give another --out, or continue with --training.on_collapse warn."
        )
