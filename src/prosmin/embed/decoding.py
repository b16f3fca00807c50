"""Pictures for the networks, batch by batch: decoded beside them where there is room, else between two batches.

Where the networks keep every core busy, a picture that is decoded beside them takes its time from one of their threads,
and the others wait for that one: two cores lose what one of them works. Between two batches all cores decode. Files are
read ahead in either case.
"""

from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import torch
from torch import Tensor

from prosmin.data.decode import PictureError, bounded, decode_bounded
from prosmin.data.feed import Batch, StreamFeed
from prosmin.data.noting import Noting
from prosmin.data.pictures import pack, worker_count

Data = bytes | Tensor | None
"""A picture as its source has it; None where it could not be read."""


def decoded(source: Noting, orders: Iterable[Tensor], device: torch.device) -> Generator[Batch, None, None]:
    """One batch on the device for each order, an int64 tensor of picture numbers; blanks where one is unreadable."""
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
            step = -(-len(numbers) // worker_count())  # a task a thread: small pictures are decoded faster than told
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
    """The pictures; what fails is given back to the source, which notes why."""
    found = []
    for number, item in zip(numbers, data, strict=True):
        try:
            picture = None if item is None else bounded(item) if isinstance(item, Tensor) else decode_bounded(item)
        except PictureError:
            picture = None
        found.append(source.read(number) if picture is None else picture)
    return found
