"""Through the encoder: read ahead, computed batch by batch, written part by part in threads beside it."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from prosmin.data.feed import Batch
from prosmin.data.noting import Noting
from prosmin.data.pictures import check_readable
from prosmin.embed.decoding import decoded
from prosmin.embed.parts import Parts
from prosmin.embed.processes import Process
from prosmin.embed.progress import EmbedProgress

Made = TypeVar("Made")

WRITERS = 2
"""Parts that are written at a time: a disk takes a while to say that one is safe."""


def fill(
    parts: Parts,
    source: Noting,
    process: Process,
    *,
    device: torch.device,
    batch: int,
    max_bad: float,
    make: Callable[[Batch], Made],
    write: Callable[[Path, Tensor, list[Made]], None],
    title: str,
) -> None:
    """Write this process's missing parts: `make` of every batch, then `write(path, numbers, made)` of the part.

    Batches end where a part ends, so on a CPU a part is the same to the bit whatever was there before. Memory holds a
    few parts and the batches read ahead, whatever the size of the set.
    """
    missing = parts.missing(process)
    orders = (order for i in missing for order in parts.pictures(i).split(batch))
    batches = decoded(source, orders, device)
    total = sum(len(parts.pictures(i)) for i in parts.own(process))
    progress = EmbedProgress(
        title, total=total, done=total - sum(len(parts.pictures(i)) for i in missing), process=process
    )
    written: deque[Future[None]] = deque()
    with closing(batches), ThreadPoolExecutor(WRITERS, thread_name_prefix="prosmin-write") as writer, progress:
        for i in missing:
            process.helpers.check()
            made: list[Made] = []
            for order in parts.pictures(i).split(batch):
                made.append(make(next(batches)))
                progress.advance(len(order))
            if source.unreadable:
                check_readable(
                    source.lines(),
                    total=len(parts.numbers),
                    max_bad=max_bad,
                    spec=source.spec,
                    option="--max-bad SHARE",
                )
            if len(written) == WRITERS:
                written.popleft().result()
            written.append(writer.submit(write, parts.path(i), parts.pictures(i), made))
        for each in written:
            each.result()
