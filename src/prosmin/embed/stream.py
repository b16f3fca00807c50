"""Images through the encoder: read ahead, computed in batches (one CUDA graph on a GPU), written part by part."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from prosmin.cuda_graph import WARM_UP, Recorded
from prosmin.data.image_sets import worker_count
from prosmin.data.stream import Batch, Stream
from prosmin.data.unreadable import CheckedSource, check_readable
from prosmin.embed.parts import Parts, Process
from prosmin.encoder import Encoder
from prosmin.models.backbones import is_recordable
from prosmin.progress import Progress

BATCH = 128
"""Images per batch on a GPU: enough to keep it busy, and few enough to pin their memory quickly."""

Result = TypeVar("Result")


def recorded(work: Callable[[Batch], Result], encoder: Encoder, *, size: int) -> Callable[[Batch], Result]:
    """`work`, on a GPU recorded as a CUDA graph for batches of `size` images."""
    can = encoder.device.type == "cuda" and is_recordable(encoder.method.get_submodule("online.backbone"))
    return RecordedWork(work, encoder.device, size) if can else work


class RecordedWork(Generic[Result]):
    """A function of a batch, recorded; its results are tensors, None, or named tuples of these."""

    def __init__(self, work: Callable[[Batch], Result], device: torch.device, size: int) -> None:
        self._work, self._device, self._size = work, device, size
        self._inputs: list[torch.Tensor] = []
        self._recorded: Recorded[Result] | None = None

    def __call__(self, batch: Batch) -> Result:
        """The result for the batch, in new memory."""
        if len(batch.index) != self._size:  # the last of a part
            return self._work(batch)
        # Not pinned, the copy would wait for the queue.
        index = batch.index.pin_memory() if self._device.type == "cuda" else batch.index
        inputs = [batch.images, batch.sizes, index.to(self._device, non_blocking=True)]
        if self._recorded is None or [x.shape for x in inputs] != [x.shape for x in self._inputs]:
            self._record([x.clone() for x in inputs])
        assert self._recorded is not None
        for place, value in zip(self._inputs, inputs, strict=True):
            place.copy_(value)
        return _copied(self._recorded())

    def _record(self, inputs: list[torch.Tensor]) -> None:
        self._recorded = None  # frees its memory first
        self._inputs, work = inputs, self._work
        self._recorded = Recorded(lambda: work(Batch(*inputs)))  # without `self`, so that its memory is freed with it
        for _ in range(WARM_UP):  # now, so that the same kernels compute every batch
            self._recorded()


def _copied(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.clone()
    return None if result is None else type(result)(*map(_copied, result))


Made = TypeVar("Made")

WRITERS = 2
"""Parts that are written at a time: a disk takes time to confirm that one is stored."""


def fill(
    parts: Parts,
    source: CheckedSource,
    process: Process,
    *,
    device: torch.device,
    batch: int,
    max_bad: float | None,
    make: Callable[[Batch], Made],
    write: Callable[[Path, Tensor, list[Made]], None],
    title: str,
) -> None:
    """Write this process's missing parts: `make` for every batch, then `write(path, numbers, made)` for the part.

    More than the share `max_bad` of unreadable images is an error; None: never.
    A batch never spans two parts, so on a CPU a part is bit-identical whichever parts existed before.
    """
    missing = parts.missing(process)
    orders = (order for i in missing for order in parts.pictures(i).split(batch))
    # On a CPU whose cores all compute, decoding beside the computation would slow both.
    overlap = device.type != "cpu" or torch.get_num_threads() < worker_count()
    batches = Stream(source, device=device, replace=False, overlap=overlap).batches(orders)
    total = sum(len(parts.pictures(i)) for i in parts.own(process))
    done = total - sum(len(parts.pictures(i)) for i in missing)
    share = f" (share of 1 of {process.world} processes)" if process.world > 1 else ""
    progress = Progress(f"{title}{share}:", total=total, done=done, hidden=process.rank > 0)
    written: deque[Future[None]] = deque()
    with closing(batches), ThreadPoolExecutor(WRITERS, thread_name_prefix="prosmin-write") as writer, progress:
        for i in missing:
            process.helpers.check()
            made: list[Made] = []
            for order in parts.pictures(i).split(batch):
                made.append(make(next(batches)))
                progress.add_images(len(order))
            if source.unreadable and max_bad is not None:
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
