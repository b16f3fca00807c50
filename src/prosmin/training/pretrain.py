"""Pretraining: set everything up, resume if there is something to resume, run the loop, leave the encoder."""

import math
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning_fabric import Fabric
from safetensors import SafetensorError
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from prosmin.config import Config, TrainingConfig
from prosmin.data.order import Order
from prosmin.data.stream import Feed, open_feed
from prosmin.encoder import save_encoder
from prosmin.encoder.file import read_card
from prosmin.errors import ProsminError, UsageError
from prosmin.methods import build_method
from prosmin.models.backbones import check_views, checkpoint_activations
from prosmin.models.batchnorm import synchronise_batchnorm
from prosmin.models.compiling import compile_networks
from prosmin.models.weights import load_initial_weights
from prosmin.training import checkpoint as checkpoints
from prosmin.training import health
from prosmin.training.checkpoint import Checkpoint, pictures_of
from prosmin.training.launch import beside_first, layout, leave_at_end, make_fabric
from prosmin.training.loop import train
from prosmin.training.online_knn import OnlineKnn
from prosmin.training.run_folder import RunFolder
from prosmin.training.step import make_optimizer

T = TypeVar("T")

FEW_STEPS = 200
"""Fewer than these leave an encoder about as it was; a useful one takes several times as many."""


def pretrain(config: Config, out: Path) -> Path:
    """Train a run in the folder `out`, or continue the one there; the folder comes back when it has finished."""
    run = RunFolder(out)
    run.refuse_other_files()
    check_shares(config.training, processes=math.prod(layout(config.compute, os.environ)))  # before any is started
    products, beside = torch.get_float32_matmul_precision(), os.environ.get("LOCAL_WORLD_SIZE")
    try:
        fabric = make_fabric(config, out)
        leave_at_end()  # what is refused before the first step ends here
        with beside_first(fabric):
            _pretrain(fabric, config, run)
    finally:
        # What follows in this process is not to depend on having trained: products on a GPU, and the cores it may use.
        torch.set_float32_matmul_precision(products)
        if beside is None:
            os.environ.pop("LOCAL_WORLD_SIZE", None)
        run.close()
    return run.path


def _pretrain(fabric: Fabric, config: Config, run: RunFolder) -> None:
    # One process looks for all: a slow one would find what the first has written meanwhile.
    if fabric.broadcast(run.config_file.exists()):
        _by_first(fabric, lambda: run.open(config))
        if fabric.broadcast(run.is_finished(config)):
            _say(fabric, f"{run.path} has finished already{_rest(run)}.")
            return
    # Before a new folder is made: images or networks that cannot be had leave nothing behind.
    feed, order = _pictures(fabric, config)
    method = build(config)
    checkpoint = _newest(fabric, run)
    if checkpoint is not None and checkpoint.pictures:
        _check_pictures(fabric, run, checkpoint, pictures_of(fabric, feed, config), config.data.spec)
    if config.backbone.weights is not None and checkpoint is None:
        _say(fabric, load_initial_weights(method, config))
    knn = _by_first(fabric, lambda: OnlineKnn(feed, config)) if config.training.knn_every else None
    _by_first(fabric, lambda: run.open(config))
    _by_first(fabric, lambda: run.go_on(config))
    _train(fabric, config, run, feed, order, method, checkpoint, knn)


def _by_first(fabric: Fabric, work: Callable[[], T]) -> T | None:
    """What one process does for all; where it cannot, all of them end: the others would wait for it."""
    done: T | None = None
    trouble: ProsminError | None = None
    if fabric.is_global_zero:
        try:
            done = work()
        except ProsminError as error:
            trouble = error
    if fabric.broadcast(trouble is not None):
        raise trouble or ProsminError("This run cannot be trained: the first process tells why.")
    return done


def check_shares(training: TrainingConfig, *, processes: int) -> None:
    """The parts of a step must be equal, over the processes and within each, and of two images at least."""
    parts = processes * training.accumulate
    if training.batch_size % parts:
        trouble = "cannot share evenly"
    elif training.batch_size == parts:  # BatchNorm and the spread of the targets would be of one image: no numbers
        trouble = "would take one image at a time, where two are needed"
    else:
        return
    several = f"{processes} processes" if processes > 1 else "1 process"
    raise UsageError(
        f"training.batch_size is {training.batch_size}, which {several} with training.accumulate {training.accumulate} "
        f"{trouble}. Give a multiple of {parts}, at least {2 * parts}."
    )


def build(config: Config) -> nn.Module:
    """The method as step 0 has it; what cannot be trained as asked is refused."""
    method = build_method(config)
    check_views(method.get_submodule("online.backbone"), config)
    parts = config.training.accumulate
    if parts > 1 and method.spans_batch:
        raise UsageError(
            f"training.accumulate is {parts}, but this loss compares the images of a batch with each other: in parts "
            "each image would meet fewer of them. Leave it at 1 and take a smaller training.batch_size, more "
            "processes, or compute.checkpoint_activations."
        )
    if parts > 1 and any(isinstance(module, _BatchNorm) for module in method.modules()):
        warnings.warn(
            f"with training.accumulate {parts} every BatchNorm sees a part of the batch at a time: "
            "the run is not the one of the whole batch",
            stacklevel=2,
        )
    if config.compute.checkpoint_activations:
        checkpoint_activations(method.get_submodule("online.backbone"))
    return method


def _pictures(fabric: Fabric, config: Config) -> tuple[Feed, Order]:
    size = config.training.batch_size
    feed = open_feed(
        config.data.spec,
        device=fabric.device,
        max_bad=config.data.max_bad,
        memory_limit=int(config.compute.resident_gib * 2**30),
        nvjpeg=config.compute.nvjpeg,
    )
    if len(feed) < size:
        raise ProsminError(
            f"{config.data.spec} has {len(feed)} images, fewer than training.batch_size {size}. "
            "Give a smaller --training.batch_size."
        )
    return feed, Order(len(feed), batch_size=size, seed=config.training.seed)


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
    last = min(steps, config.training.max_steps or steps)
    limited = ", as training.max_steps says" if last < steps else _fewer(order, steps, config.training.max_steps)
    _say(fabric, f"{len(feed)} images, {_count(order.steps_per_epoch)} an epoch, {last} in all{limited}")
    model, optimizer = prepare(fabric, config, method)
    start = _resume(fabric, run, checkpoint, method, optimizer)
    _by_first(fabric, lambda: _refuse_collapsed(run, config))

    done = train(fabric, config, run, feed, order, model, optimizer, start=start, steps=steps, knn=knn)
    if fabric.is_global_zero:
        step = _put_best(run, method) if config.training.encoder == "best" else done
        save_encoder(method, config, run.path, step=step, steps=steps, trained=done)
        for key in feed.bad:
            print(f"left out: {key}", file=sys.stderr)
        _say(fabric, f"{health.verdict(run.read_metrics(), config)}; {_count(done)}, encoder in {run.encoder_file}")
        if done < FEW_STEPS:
            few = f"{_count(done)} teach{'es' * (done == 1)} an encoder next to nothing"
            _say(fabric, f"{few}: {_longer(order, done, steps)}.")
    for logger in fabric.loggers:
        logger.finalize("success")


def _rest(run: RunFolder) -> str:
    """What a run that training.max_steps ended has still before it."""
    card = read_card(run.path)
    left = card["trained"] < card["steps"]
    return f" at step {card['trained']}; --training.max_steps null goes on to {card['steps']}" if left else ""


def _count(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


def _fewer(order: Order, steps: int, wanted: int | None) -> str:
    """That the epochs end before training.max_steps, and how many would not."""
    if wanted is None or wanted <= steps:
        return ""
    enough = -(-wanted // order.steps_per_epoch)
    made = enough * order.steps_per_epoch
    return f", fewer than training.max_steps {wanted}; --training.epochs {enough} makes {made}"


def _longer(order: Order, done: int, steps: int) -> str:
    """How to come to more steps: on in the same run as far as its epochs go, else in a new one."""
    if steps >= FEW_STEPS:  # training.max_steps alone made it so short
        return f"the same command with --training.max_steps null goes on to {steps}"
    enough = -(-5 * FEW_STEPS // order.steps_per_epoch)
    whole = " and without --training.max_steps" if done < steps else ""
    made = enough * order.steps_per_epoch
    return f"with {order.pictures} images --training.epochs {enough} makes {made}, with another --out{whole}"


def prepare(fabric: Fabric, config: Config, method: nn.Module) -> tuple[nn.Module, Optimizer]:
    """The method and its optimizer on their device, compiled and shared among the processes as configured."""
    if fabric.world_size > 1:
        synchronise_batchnorm(method)
    on_gpu = fabric.device.type == "cuda"
    if on_gpu:
        torch.set_float32_matmul_precision("high")  # TF32 for what autocast leaves in float32
        method.to(memory_format=torch.channels_last)  # the layout in which convolutions are fastest
    compile_networks(method, config.compute.compile)
    optimizer = make_optimizer(method.to(fabric.device), config, fused=on_gpu)
    return fabric.setup(method, optimizer)


def _put_best(run: RunFolder, method: nn.Module) -> int:
    """Put the weights of the best checkpoint into the method; its step comes back."""
    name, score = checkpoints.best(run.checkpoints)
    if name is None or score is None:
        raise ProsminError(f"No checkpoint in {run.checkpoints} has a kNN. Leave training.encoder at last.")
    try:
        checkpoint = checkpoints.load(run.checkpoints / name)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ProsminError(
            f"The best checkpoint {run.checkpoints / name} is damaged ({error}). "
            "Remove it and run again: the best of the others is taken."
        ) from None
    method.load_state_dict(checkpoint.model, strict=True)
    print(f"the encoder is that of step {checkpoint.step}, kNN {100 * score:.1f} % on the held-out tenth", flush=True)
    return checkpoint.step


def _newest(fabric: Fabric, run: RunFolder) -> Checkpoint | None:
    """The checkpoint to continue from; damaged ones are set aside."""
    checkpoint, damaged = checkpoints.load_newest(run.checkpoints)
    if fabric.is_global_zero:
        for name, why in damaged.items():
            try:
                kept = f"it is {checkpoints.set_aside(run.checkpoints, name)} now"
            except OSError as error:
                kept = f"it stays where it is: {error.strerror}"
            print(f"warning: checkpoint {name} is damaged ({why}) and is passed over; {kept}", file=sys.stderr)
    return checkpoint


def _check_pictures(fabric: Fabric, run: RunFolder, checkpoint: Checkpoint, now: dict[str, Any], spec: str) -> None:
    """A run goes on with the images it began with: others would be another run, and their number its length."""
    then = checkpoint.pictures
    if now["count"] != then["count"]:
        raise ProsminError(
            f"{spec} holds {now['count']} images; when {run.path} came to step {checkpoint.step} it held "
            f"{then['count']}. Going on would make it another run. Put them back, or begin one with another --out."
        )
    if now["mark"] != then["mark"] and fabric.is_global_zero:
        print(
            f"warning: the files of {spec} are not those of step {checkpoint.step}: their names or sizes have changed. "
            "If they are other images, this becomes another run; give it another --out.",
            file=sys.stderr,
        )


def _resume(
    fabric: Fabric, run: RunFolder, checkpoint: Checkpoint | None, method: nn.Module, optimizer: Optimizer
) -> int:
    if checkpoint is not None:
        checkpoints.restore(checkpoint, method, optimizer)
        checkpoint.model.clear()  # by now they are in the networks; a second copy would stay for the whole run
        checkpoint.optimizer.clear()
        _say(fabric, f"continuing {run.path} from step {checkpoint.step}")
    start = checkpoint.step if checkpoint else 0
    if fabric.is_global_zero:
        run.rewind_metrics(start)
    return start


def _refuse_collapsed(run: RunFolder, config: Config) -> None:
    """A run that training.on_collapse has ended is not continued by starting it again."""
    rows = run.read_metrics()
    if health.Watch(config, rows).gives_up:
        raise ProsminError(
            f"{run.path} was ended, as training.on_collapse asks: {health.verdict(rows, config)}. "
            "Change the run with another --out, or let it go on: --training.on_collapse warn."
        )


def _say(fabric: Fabric, sentence: str) -> None:
    if fabric.is_global_zero:
        print(sentence, flush=True)
