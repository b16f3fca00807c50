"""The parts of a recipe's training and the whole: time, memory and what bounds it."""

from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from prosmin.benchmark.sizes import count_parameters
from prosmin.benchmark.timing import measure
from prosmin.benchmark.trainer import Trainer, random_orders
from prosmin.config import METHOD_TITLES, Config, fingerprint
from prosmin.data.feed import AHEAD, MORE_BAD, Feed, StreamFeed
from prosmin.data.sources import Source
from prosmin.data.views import GLOBAL_VIEWS

IMAGENET, EPOCHS = 1_281_167, 300
"""The run whose hours are told: that of the paper's table of efficiency."""


def measure_recipe(trainer: Trainer, source: Source, feed: Feed) -> dict[str, Any]:
    """One row of the table: every part, the whole and what follows from them."""
    config, batch = trainer.config, trainer.config.training.batch_size
    parts = {"decode": time_decoding(source, config, trainer.device), **time_training(trainer, feed)}
    rate = parts["end to end"]["images_per_second"]
    on_gpu = trainer.device.type == "cuda"
    return {
        "method": config.method.name,
        "title": METHOD_TITLES.get(config.method.name, config.method.name),
        "fingerprint": fingerprint(config),
        "backbone": config.backbone.name,
        "views": describe_views(config),
        "batch_size": batch,
        "precision": config.compute.precision,
        "compiled": config.compute.compile,
        "pictures": "decoded while they are used" if isinstance(feed, StreamFeed) else "on the device whole",
        "parameters": count_parameters(trainer.method),
        "parts": parts,
        "peak_memory_gib": round(torch.cuda.max_memory_allocated(trainer.device) / 2**30, 2) if on_gpu else None,
        "devices": 1,
        "hours": round(EPOCHS * IMAGENET / rate / 3600, 1),
        "views_share": round(parts["views"]["ms"] / (parts["views"]["ms"] + parts["step"]["ms"]), 4),
        "bound": what_bounds(parts, streamed=isinstance(feed, StreamFeed)),
    }


def time_decoding(source: Source, config: Config, device: torch.device) -> dict[str, Any] | None:
    """Reading and decoding alone, as a stream does it; None for pictures that come decoded."""
    if isinstance(source.read(0), Tensor):
        return None
    stream = StreamFeed(
        source, device=device, max_bad=config.data.max_bad, nvjpeg=config.compute.nvjpeg, option=MORE_BAD
    )
    batch = config.training.batch_size
    with closing(stream.batches(random_orders(len(source), batch=batch))) as batches:  # type: ignore[type-var]
        return measure(lambda: next(batches), device, warmup=AHEAD + 1).row(batch)


def time_training(trainer: Trainer, feed: Feed) -> dict[str, Any]:
    """Views, step, and both fed by the pictures; the peak of memory is that of the last."""
    batch, device = trainer.config.training.batch_size, trainer.device
    with closing(feed.batches(random_orders(len(feed), batch=batch))) as batches:  # type: ignore[type-var]
        pieces = trainer.pieces(next(batches))

        def make_views() -> None:
            for piece in pieces:
                trainer.views(piece)

        making = measure(make_views, device)
        ready = [trainer.views(pieces[0])] * len(pieces)
        stepping = measure(lambda: trainer.step(ready), device)
        ready.clear()
        pieces.clear()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        whole = measure(lambda: trainer.train(next(batches)), device, warmup=AHEAD + 1)
    trainer.check()
    return {"views": making.row(batch), "step": stepping.row(batch), "end to end": whole.row(batch)}


def describe_views(config: Config) -> str:
    """Such as 2x224 + 8x96."""
    views = config.views
    local = f" + {views.local}x{views.local_size}" if views.local else ""
    return f"{GLOBAL_VIEWS}x{views.global_size}{local}"


def what_bounds(parts: dict[str, Any], *, streamed: bool) -> str:
    """The largest part, in one sentence."""
    views, step, whole = (parts[name]["ms"] for name in ("views", "step", "end to end"))
    decode = parts["decode"]["ms"] if parts["decode"] and streamed else 0.0
    if decode > views + step:
        return (
            f"Decoding bounds it: {decode:.4g} ms a batch, {decode / (views + step):.1f} times the "
            f"{views + step:.4g} ms of views and step."
        )
    name, most = ("The step", step) if step >= views else ("Making the views", views)
    share = f"{name} bounds it: {most:.4g} of the {views + step:.4g} ms of views and step"
    if not streamed:
        return f"{share}; the pictures wait on the device."
    waiting = whole / (views + step) - 1.0
    beside = "costs nothing" if waiting < 0.05 else f"adds {waiting:.0%}"
    return f"{share}; decoding beside them, {decode:.4g} ms, {beside}."
