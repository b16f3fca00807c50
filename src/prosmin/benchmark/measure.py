"""Times of the parts of a training step: decoding, views, step, all together; warmed up, synchronised, medians."""

import statistics
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from prosmin.benchmark.trainer import Trainer, random_orders
from prosmin.config import Config, fingerprint, method_title, to_tree
from prosmin.data.sources import Source
from prosmin.data.stream import AHEAD, MAX_BAD_OPTION, Feed, Stream
from prosmin.data.unreadable import CheckedSource
from prosmin.data.views import GLOBAL_VIEWS

MOST_CALLS = 50
"""The most calls per repeat."""


class Timing(NamedTuple):
    """Seconds per call: median, fastest and slowest of the repeats."""

    median: float
    lowest: float
    highest: float
    repeats: int
    calls: int  # per repeat

    def row(self, pictures: int) -> dict[str, Any]:
        """The saved numbers of calls on so many images."""
        return {
            "ms": round(1e3 * self.median, 3),
            "ms_lowest": round(1e3 * self.lowest, 3),
            "ms_highest": round(1e3 * self.highest, 3),
            "images_per_second": round(pictures / self.median, 1),
            "repeats": self.repeats,
            "calls": self.calls,
        }


def measure(
    run: Callable[[], object],
    device: torch.device,
    *,
    warmup: int = 3,
    repeats: int = 5,
    seconds: float = 0.5,
    limit: float = 60.0,
) -> Timing:
    """The time of one call of `run`.

    A repeat makes as many calls as fit into `seconds` and waits for the device once, at its end: in training, too, a
    GPU works while the host prepares the next call. No repeat starts after `limit` seconds.
    """
    for _ in range(warmup):
        run()
    calls = min(MOST_CALLS, max(1, round(seconds / elapsed(run, device))))
    began, times = time.perf_counter(), []
    for _ in range(repeats):
        times.append(elapsed(run, device, calls=calls) / calls)
        if time.perf_counter() - began > limit:
            break
    return summarise(times, calls=calls)


def summarise(times: list[float], *, calls: int) -> Timing:
    """The timing of repeats, given their seconds per call."""
    return Timing(statistics.median(times), min(times), max(times), len(times), calls)


def elapsed(run: Callable[[], object], device: torch.device, *, calls: int = 1) -> float:
    """Seconds of `calls` calls, until the device has finished all of them."""
    synchronise(device)
    began = time.perf_counter()
    for _ in range(calls):
        run()
    synchronise(device)
    return time.perf_counter() - began


def synchronise(device: torch.device) -> None:
    """Wait for a GPU to finish its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def count_parameters(method: nn.Module) -> dict[str, int]:
    """Trained parameters: the backbone, the projector (the rest of `online`), and other children such as a predictor.

    The target network is a copy and does not count.
    """
    counts = {"backbone": 0, "projector": 0}
    for name, parameter in method.named_parameters():
        first, _, rest = name.partition(".")
        if first == "target":
            continue
        part = first
        if first == "online":
            part = "backbone" if rest.startswith("backbone.") else "projector"
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


IMAGENET, EPOCHS = 1_281_167, 300
"""The run whose hours are estimated: that of the paper's efficiency table."""


def measure_recipe(trainer: Trainer, source: Source, feed: Feed) -> dict[str, Any]:
    """One row of the table: the time of each part and of the whole, and what limits it."""
    config, batch = trainer.config, trainer.config.training.batch_size
    parts = {"decode": time_decoding(source, config, trainer.device), **time_training(trainer, feed)}
    rate = parts["end to end"]["images_per_second"]
    on_gpu = trainer.device.type == "cuda"
    return {
        "method": config.method.name,
        "title": method_title(to_tree(config)),
        "fingerprint": fingerprint(config),
        "backbone": config.backbone.name,
        "views": describe_views(config),
        "batch_size": batch,
        "precision": config.compute.precision,
        "compiled": config.compute.compile,
        "pictures": "decoded while they are used" if feed.streamed else "on the device whole",
        "parameters": count_parameters(trainer.method),
        "parts": parts,
        "peak_memory_gib": round(torch.cuda.max_memory_allocated(trainer.device) / 2**30, 2) if on_gpu else None,
        "devices": 1,
        "hours": round(EPOCHS * IMAGENET / rate / 3600, 1),
        "views_share": round(parts["views"]["ms"] / (parts["views"]["ms"] + parts["step"]["ms"]), 4),
        "bound": what_bounds(parts, streamed=feed.streamed),
    }


def time_decoding(source: Source, config: Config, device: torch.device) -> dict[str, Any] | None:
    """Reading and decoding only, as a stream does it; None for images that are stored decoded."""
    if isinstance(source.read(0), Tensor):
        return None
    checked = CheckedSource(source, config.data.max_bad, MAX_BAD_OPTION)
    stream = Stream(checked, device=device, nvjpeg=config.compute.nvjpeg)
    batch = config.training.batch_size
    with closing(stream.batches(random_orders(len(source), batch=batch))) as batches:
        return measure(lambda: next(batches), device, warmup=AHEAD + 1).row(batch)


def time_training(trainer: Trainer, feed: Feed) -> dict[str, Any]:
    """Views only, step only, and both with the images read; peak memory is that of the last."""
    batch, device = trainer.config.training.batch_size, trainer.device
    with closing(feed.batches(random_orders(len(feed), batch=batch))) as batches:
        pieces = trainer.pieces(next(batches))

        def make_views() -> None:
            for piece in pieces:
                trainer.views(piece)

        making = measure(make_views, device)
        ready = [trainer.views(pieces[0])] * len(pieces)
        stepping = measure(lambda: trainer.train(ready), device)
        ready.clear()
        pieces.clear()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        whole = measure(lambda: trainer.train(next(batches)), device, warmup=AHEAD + 1)
    trainer.check()
    return {"views": making.row(batch), "step": stepping.row(batch), "end to end": whole.row(batch)}


def describe_views(config: Config) -> str:
    """Number and size of the views: 2x224 + 8x96."""
    views = config.views
    local = f" + {views.local}x{views.local_size}" if views.local else ""
    return f"{GLOBAL_VIEWS}x{views.global_size}{local}"


def what_bounds(parts: dict[str, Any], *, streamed: bool) -> str:
    """What takes the most time, in one sentence."""
    views, step, whole = (parts[name]["ms"] for name in ("views", "step", "end to end"))
    decode = parts["decode"]["ms"] if parts["decode"] and streamed else 0.0
    if decode > views + step:
        return (
            f"Decoding is the bottleneck: {decode:.4g} ms per batch, {decode / (views + step):.1f} times the "
            f"{views + step:.4g} ms of views and step."
        )
    name, most = ("The step", step) if step >= views else ("Making the views", views)
    share = f"{name} is the bottleneck: {most:.4g} of the {views + step:.4g} ms of views and step"
    if not streamed:
        return f"{share}; the images are already on the device."
    waiting = whole / (views + step) - 1.0
    cost = "costs nothing" if waiting < 0.05 else f"adds {waiting:.0%}"
    return f"{share}; decoding in parallel, {decode:.4g} ms, {cost}."
