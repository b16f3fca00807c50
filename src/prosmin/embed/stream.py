"""Through the encoder: read ahead, computed in batches (one CUDA graph on a GPU), written part by part."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from prosmin.cuda_graph import WARM_UP, Recorded
from prosmin.data.decode import PictureError, bounded, decode_bounded
from prosmin.data.image_sets import check_readable, pack, worker_count
from prosmin.data.stream import Batch, StreamFeed
from prosmin.data.unreadable import Noting
from prosmin.embed.parts import Parts, Process
from prosmin.encoder import Encoder
from prosmin.models.backbones import is_recordable
from prosmin.progress import Progress

Data = bytes | Tensor | None
"""An image as its source has it; None where it could not be read."""


def decoded(source: Noting, orders: Iterable[Tensor], device: torch.device) -> Generator[Batch, None, None]:
    """One batch on the device for each order, an int64 tensor of image numbers; blanks where one is unreadable."""
    if device.type == "cpu" and torch.get_num_threads() >= worker_count():
        return decoded_between(source, orders)
    feed = StreamFeed(source, device=device, max_bad=1.0)  # the source notes what is unreadable, the feed meets none
    return cast(Generator[Batch, None, None], feed.batches(orders))


def decoded_between(source: Noting, orders: Iterable[Tensor]) -> Generator[Batch, None, None]:
    """The same on a CPU, each batch decoded when it is asked for, while the files of the one before were read."""
    remaining = iter(orders)
    order = next(remaining, None)
    with ThreadPoolExecutor(max_workers=worker_count(), thread_name_prefix="prosmin-decode") as workers:
        reading = None if order is None else workers.submit(_read, source, order.tolist())
        while order is not None and reading is not None:
            numbers, data = order.tolist(), reading.result()
            step = -(-len(numbers) // worker_count())  # a task a thread: small images are decoded faster than told
            tasks = [(numbers[i : i + step], data[i : i + step]) for i in range(0, len(numbers), step)]
            pictures = [picture for part in workers.map(lambda task: _decode(source, *task), tasks) for picture in part]
            following = next(remaining, None)
            reading = None if following is None else workers.submit(_read, source, following.tolist())
            images, sizes = pack(pictures)
            yield Batch(images, sizes, order)
            order = following


def _read(source: Noting, numbers: list[int]) -> list[Data]:
    found: list[Data] = []
    for number in numbers:
        try:
            found.append(source.source.read(number))
        except (OSError, PictureError):
            found.append(None)
    return found


def _decode(source: Noting, numbers: list[int], data: list[Data]) -> list[Tensor]:
    """The images; what fails is given back to the source, which notes why."""
    found = []
    for number, item in zip(numbers, data, strict=True):
        try:
            picture = None if item is None else bounded(item) if isinstance(item, Tensor) else decode_bounded(item)
        except PictureError:
            picture = None
        found.append(source.read(number) if picture is None else picture)
    return found


BATCH = 128
"""Images at once on a GPU: enough to keep it busy, and few enough that pinning their memory delays no start."""

Result = TypeVar("Result")


def recorded(work: Callable[[Batch], Result], encoder: Encoder, *, size: int) -> Callable[[Batch], Result]:
    """The encoder's work, on a GPU recorded for batches of `size` images; the work itself elsewhere."""
    can = encoder.device.type == "cuda" and is_recordable(encoder.method.get_submodule("online.backbone"))
    return RecordedWork(work, encoder.device, size) if can else work


class RecordedWork(Generic[Result]):
    """A function of a batch whose results are tensors, None, or named tuples of these."""

    def __init__(self, work: Callable[[Batch], Result], device: torch.device, size: int) -> None:
        self._work, self._device, self._size = work, device, size
        self._held: list[torch.Tensor] = []
        self._recorded: Recorded[Result] | None = None

    def __call__(self, batch: Batch) -> Result:
        """What the work makes of the batch, in memory of its own."""
        if len(batch.index) != self._size:  # the last of a part
            return self._work(batch)
        # From memory that is not pinned the copy would wait for all that is in the queue.
        index = batch.index.pin_memory() if self._device.type == "cuda" else batch.index
        inputs = [batch.images, batch.sizes, index.to(self._device, non_blocking=True)]
        if self._recorded is None or [x.shape for x in inputs] != [x.shape for x in self._held]:
            self._record([x.clone() for x in inputs])
        assert self._recorded is not None
        for place, value in zip(self._held, inputs, strict=True):
            place.copy_(value)
        return _copied(self._recorded())

    def _record(self, held: list[torch.Tensor]) -> None:
        self._recorded = None  # its memory first
        self._held, work = held, self._work
        self._recorded = Recorded(lambda: work(Batch(*held)))  # without `self`: its memory goes when this goes
        for _ in range(WARM_UP):  # at once: every batch is then computed by the same kernels
            self._recorded()


def _copied(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.clone()
    return None if result is None else type(result)(*map(_copied, result))


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
