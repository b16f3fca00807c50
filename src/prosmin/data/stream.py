"""One stream of images for training, evaluation, encoder and embed: orders of image numbers in, batches out.

Decoded images are indexed (`memory_batches`). All others are read and decoded by threads, some batches ahead of
the one in use, and copied to the device beside the running computation (`Stream`): the decoders work outside
Python's lock. Both give the same images for the same order.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor

from prosmin.data.decode import PictureError, decode_batch
from prosmin.data.image_sets import Pictures, TooLargeError, check_not_empty, load_source, worker_count
from prosmin.data.packing import Batch, Packed, Packer, Placed
from prosmin.data.sources import Source, open_source
from prosmin.data.unreadable import CheckedSource
from prosmin.machine import main_memory

MEMORY_LIMIT = 2 << 30
"""Bytes that a decoded set may take to be kept on the device; CIFAR takes 0.15 GB."""

AHEAD = 3
"""Batches that are decoded before they are asked for."""

IN_FLIGHT = 2
"""Batches in a GPU's queue, at most: without a limit the host runs ahead, and each batch takes more memory."""

SWITCH = 5e-4
"""Seconds after which a thread that waits for Python's lock gets it, while a GPU is fed."""

MAX_BAD_OPTION = "--data.max_bad SHARE"
"""How training allows more unreadable images."""

Batches = Generator[Batch, None, None]
Data = bytes | Tensor | None
"""An image as its source stores it; None if it has not been read."""


@dataclass(frozen=True)
class Feed:
    """The images of a training set, by number."""

    source: CheckedSource
    batches: Callable[[Iterable[Tensor]], Batches]
    """Orders (b,) int64 of image numbers -> one batch each. An unreadable image is replaced by the next readable."""
    streamed: bool

    @property
    def bad(self) -> list[str]:
        """ "key: reason" of each unreadable image found so far."""
        return self.source.lines()

    @property
    def labels(self) -> Tensor | None:
        """(N,) int64 on the CPU, by image number; None without labels."""
        return self.source.labels

    def __len__(self) -> int:
        return len(self.source)

    def key(self, i: int) -> str:
        """Path or name of image i."""
        return self.source.key(i)


def open_feed(
    spec: str,
    *,
    device: torch.device | str,
    max_bad: float = 0.01,
    memory_limit: int = MEMORY_LIMIT,
    nvjpeg: bool = False,
) -> Feed:
    """The images of a SPEC, decoded on the device if they take at most `memory_limit` bytes, else streamed.

    With `nvjpeg` the GPU decodes the JPEGs of a stream: for machines with few CPU cores.
    """
    opened, device = open_source(spec), torch.device(device)
    limit = min(memory_limit, main_memory() // 3)  # packing needs the images twice for a moment
    source = CheckedSource(opened, max_bad, MAX_BAD_OPTION)
    try:
        pictures, places = load_source(source, limit=limit)
    except TooLargeError:
        source = CheckedSource(opened, max_bad, MAX_BAD_OPTION)
        return Feed(source, Stream(source, device=device, nvjpeg=nvjpeg).batches, streamed=True)
    resident = pictures.to(device)
    # the row for number i: that of image i, or of the next readable image, cyclically
    row = torch.searchsorted(places, torch.arange(len(source))) % len(places)

    def batches(orders: Iterable[Tensor]) -> Batches:
        for batch in memory_batches(resident, (row[order.cpu()] for order in orders), device=device):
            yield batch._replace(index=places[batch.index])

    return Feed(source, batches, streamed=False)


def image_batches(
    images: Pictures | Source, orders: Iterable[Tensor], *, device: torch.device, max_bad: float
) -> Batches:
    """One batch for each order, an int64 tensor of image numbers. An unreadable image is replaced by the next."""
    if not isinstance(images, Pictures):
        return Stream(CheckedSource(images, max_bad), device=device).batches(orders)
    return memory_batches(
        images.to(device) if images.images.nbytes <= MEMORY_LIMIT else images, orders, device=device
    )  # fmt: skip


def picture_batches(
    images: Pictures | Source, *, size: int, device: torch.device, max_bad: float = 0.0
) -> Iterator[Batch]:
    """All images in their order, `size` at a time. Up to `max_bad` of them may be unreadable and are left out."""
    check_not_empty(images)
    orders = torch.arange(len(images)).split(size)
    if isinstance(images, Pictures):
        yield from memory_batches(images, orders, device=device)
        return
    source = CheckedSource(images, max_bad)
    with closing(Stream(source, device=device, replace=False).batches(orders)) as batches:  # ends its threads
        for batch in batches:
            good = source.readable(batch.index)
            if not bool(good.all()):
                here = good.to(device)
                batch = Batch(batch.images[here], batch.sizes[here], batch.index[good])
            if len(batch.index):
                yield batch


def memory_batches(pictures: Pictures, orders: Iterable[Tensor], *, device: torch.device) -> Batches:
    """One batch of decoded images for each order."""
    where = pictures.images.device
    for order in orders:
        rows: Tensor | slice
        if len(order) and bool((order == torch.arange(int(order[0]), int(order[0]) + len(order))).all()):
            rows = slice(int(order[0]), int(order[0]) + len(order))  # a view: nothing is copied
        elif where.type == "cuda":
            rows = order.pin_memory().to(where, non_blocking=True)  # not pinned, the copy would wait for the queue
        else:
            rows = order
        yield Batch(pictures.images[rows].to(device), pictures.sizes[rows].to(device), order)


class Stream:
    """Images that are decoded while they are used.

    An unreadable image is replaced by the next readable one; with `replace=False` by one black pixel, for callers
    that leave it out by the record of `source`. With `overlap=False` a batch is decoded when it is asked for, and only
    the files of the next one are read ahead: faster if the computation keeps all cores busy.
    """

    def __init__(
        self,
        source: CheckedSource,
        *,
        device: torch.device,
        replace: bool = True,
        overlap: bool = True,
        nvjpeg: bool = False,
    ) -> None:
        self._source, self._device, self._replace, self._overlap = source, device, replace, overlap
        self._packer = Packer(device)
        self._decoding = torch.cuda.Stream(device) if nvjpeg and device.type == "cuda" else None

    def batches(self, orders: Iterable[Tensor]) -> Batches:
        """One batch for each order, an int64 tensor of image numbers."""
        stop = threading.Event()
        workers = ThreadPoolExecutor(max_workers=worker_count(), thread_name_prefix="prosmin-decode")
        # Two batches are put together at a time: while one is packed, the decoders work on the next.
        packers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="prosmin-pack")
        ready: deque[tuple[list[int], Future[Packed] | Future[list[Data]]]] = deque()
        remaining = iter(orders)

        def prepare(count: int) -> None:
            while len(ready) < count and (order := next(remaining, None)) is not None:
                numbers = order.tolist()
                if self._overlap:
                    ready.append((numbers, packers.submit(self._pack, numbers, None, workers, stop)))
                else:
                    ready.append((numbers, packers.submit(self._read, numbers, stop)))

        in_use: deque[torch.cuda.Event] = deque()
        interval = sys.getswitchinterval()
        if self._packer.stream is not None:
            # The thread that feeds a GPU holds Python's lock nearly always, even while it waits for room in the GPU's
            # queue: a decoder that needs the lock for a moment would wait 5 ms for it, several times per image.
            sys.setswitchinterval(SWITCH)
        try:
            while True:
                prepare(AHEAD if self._overlap else 1)
                if not ready:
                    return
                numbers, prepared = ready.popleft()
                found = prepared.result()
                if not isinstance(found, Packed):
                    found = self._pack(numbers, found, workers, stop)
                    prepare(1)
                yield found.received()
                if self._packer.stream is not None:
                    _await_room(in_use, self._device)
        finally:
            # Reached at the end, by an error of a worker, by Ctrl-C and when the caller stops early.
            sys.setswitchinterval(interval)
            stop.set()
            packers.shutdown(wait=False, cancel_futures=True)
            workers.shutdown(wait=True, cancel_futures=True)
            packers.shutdown(wait=True)

    def _pack(
        self, numbers: list[int], data: list[Data] | None, workers: ThreadPoolExecutor, stop: threading.Event
    ) -> Packed:
        """Read, decode and pad the images of one order, and start their copy to the device."""
        step = max(1, len(numbers) // (2 * worker_count()))  # images per task; other batches' tasks fill idle time
        parts = [range(start, min(start + step, len(numbers))) for start in range(0, len(numbers), step)]
        if self._decoding is not None:
            read = workers.map(lambda part: self._read([numbers[i] for i in part], stop), parts)
            return self._decode_on_device(numbers, [item for some in read for item in some], self._decoding)
        canvas, pages = self._packer.new_pages(len(numbers))
        ahead: list[Data] = [None] * len(numbers) if data is None else data

        def decode(part: range) -> list[Placed]:
            return [
                self._packer.place(pages[i], *self._find(numbers[i], ahead[i])) for i in part if not stop.is_set()
            ]  # fmt: skip

        placed = [item for some in workers.map(decode, parts) for item in some]

        def for_each(work: Callable[[int], None]) -> None:
            list(workers.map(lambda part: deque(map(work, part), maxlen=0), parts))

        return self._packer.pack(canvas, pages, placed, for_each)

    def _find(self, number: int, data: Data = None) -> tuple[int, Tensor]:
        """The number and the pixels of an image, or of what replaces it."""
        if not self._replace:
            picture = self._source.image(number, data)
            return number, torch.zeros(3, 1, 1, dtype=torch.uint8) if picture is None else picture
        for _ in range(len(self._source)):
            if number not in self._source.unreadable and (picture := self._source.image(number, data)) is not None:
                return number, picture
            number, data = (number + 1) % len(self._source), None
        raise self._source.error()

    def _read(self, numbers: list[int], stop: threading.Event) -> list[Data]:
        """The images undecoded; None where `_find` has to read again, and to record why it cannot."""
        found: list[Data] = []
        for number in numbers:
            try:
                skip = stop.is_set() or number in self._source.unreadable
                found.append(None if skip else self._source.read(number))
            except (OSError, PictureError):
                found.append(None)
        return found

    def _decode_on_device(self, numbers: list[int], data: list[Data], decoding: torch.cuda.Stream) -> Packed:
        """One batch through nvJPEG; the CPU decodes what nvJPEG cannot."""
        encoded = {i: item for i, item in enumerate(data) if isinstance(item, bytes)}
        # nvJPEG allocates in the current stream and writes in another one that waits for none. So it is called in a
        # stream without other work, and its results are kept until they are copied.
        with torch.cuda.stream(decoding):
            decoded = dict(zip(encoded, decode_batch(list(encoded.values()), self._device), strict=True))
        found = []
        for i, number in enumerate(numbers):
            picture = decoded.get(i)
            found.append((number, picture) if isinstance(picture, Tensor) else self._find(number))
        return self._packer.pack_on_device(found, decoding)


def _await_room(in_use: "deque[torch.cuda.Event]", device: torch.device) -> None:
    """Note that all uses of a batch are in the queue now; wait, without Python's lock, while it has too many."""
    used = torch.cuda.Event(blocking=True)
    used.record(torch.cuda.current_stream(device))
    in_use.append(used)
    if len(in_use) > IN_FLIGHT:
        in_use.popleft().synchronize()
