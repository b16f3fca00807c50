"""Images for training, by number and always ready: whole on the device, or streamed.

A set whose decoded images fit under a limit is decoded once and lives on the device as one uint8 tensor.
A larger one is read and decoded by threads (the decoders work outside Python's lock) into pinned, padded
batches, some batches ahead of the one in use, and copied to the device beside the running computation. Both
give the same images for the same order: an unreadable image is replaced by the next one that can be
read.
"""

import contextlib
import mmap
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prosmin.data.decode import PictureError, bounded, decode_batch
from prosmin.data.image_sets import (
    Pictures,
    TooLargeError,
    check_not_empty,
    check_readable,
    load_source,
    read_picture,
    worker_count,
)
from prosmin.data.sources import Source, open_source
from prosmin.errors import ProsminError
from prosmin.machine import main_memory

MEMORY_LIMIT = 2 << 30
"""Bytes a decoded set may take to live on the device whole; CIFAR takes 0.15 GB."""

AHEAD = 3
"""Batches that are decoded before they are asked for."""

IN_FLIGHT = 2
"""Batches that a GPU has in its queue, at most: without a limit the host runs ahead, and each takes other memory."""

SWITCH = 5e-4
"""Seconds after which a thread that waits for Python's lock is given it, while a GPU is fed."""

STRIDE = 128
"""Sides of streamed batches are multiples of it, so that compiled views meet few shapes."""

MORE_BAD = "--data.max_bad SHARE"
"""Where whoever trains allows more unreadable images."""


class Batch(NamedTuple):
    """b images on the device."""

    images: Tensor  # (b, 3, H, W) uint8, zero below and right of each image
    sizes: Tensor  # (b, 2) int64: height, width
    index: Tensor  # type: ignore[assignment]  # (b,) int64 on the CPU: each image's own number


class Feed(Protocol):
    """Images in any order."""

    @property
    def bad(self) -> list[str]:
        """ "key: reason" of each image found unreadable so far."""

    @property
    def labels(self) -> Tensor | None:
        """(N,) int64 on the CPU, by image number; None where there are none."""

    def __len__(self) -> int: ...

    def key(self, i: int) -> str:
        """Path or name of image i."""

    def batches(self, orders: Iterable[Tensor]) -> Iterator[Batch]:
        """One batch for each order, an int64 tensor of image numbers."""


def open_feed(
    spec: str,
    *,
    device: torch.device | str,
    max_bad: float = 0.01,
    memory_limit: int = MEMORY_LIMIT,
    nvjpeg: bool = False,
) -> Feed:
    """The images of a SPEC, on the device whole if they take at most `memory_limit` bytes, else streamed.

    With `nvjpeg` the GPU decodes the JPEGs of a stream: for machines with few CPU cores beside it.
    """
    source = open_source(spec)
    check_not_empty(source)
    device = torch.device(device)
    limit = min(memory_limit, main_memory() // 3)  # packing needs the images twice for a moment
    try:
        pictures, places = load_source(source, max_bad=max_bad, limit=limit, option=MORE_BAD)
    except TooLargeError:
        return StreamFeed(source, device=device, max_bad=max_bad, nvjpeg=nvjpeg, option=MORE_BAD)
    return MemoryFeed(source, pictures.to(device), places)


class MemoryFeed:
    """A set that lives on the device."""

    def __init__(self, source: Source, pictures: Pictures, places: Tensor) -> None:
        self.pictures = pictures
        self._source = source
        total = len(source)
        # the row shown for number i: its own, or that of the next readable image, cyclically
        following = torch.searchsorted(places, torch.arange(total))
        self._row = following % len(places)
        self._place = places

    @property
    def bad(self) -> list[str]:
        """ "key: reason" of each unreadable image."""
        return list(self.pictures.bad)

    @property
    def labels(self) -> Tensor | None:
        """(N,) int64 on the CPU, by image number; None where there are none."""
        return self._source.labels

    def __len__(self) -> int:
        return len(self._row)

    def key(self, i: int) -> str:
        """Path or name of image i."""
        return self._source.key(i)

    def batches(self, orders: Iterable[Tensor]) -> Iterator[Batch]:
        """One batch for each order, an int64 tensor of image numbers."""
        for order in orders:
            rows = self._row[order.cpu()]
            # From memory that is not pinned the copy would wait until the device has done all that is in its queue.
            ready = rows.pin_memory() if self.pictures.images.is_cuda else rows
            here = ready.to(self.pictures.images.device, non_blocking=True)
            yield Batch(self.pictures.images[here], self.pictures.sizes[here], self._place[rows])


class StreamFeed:
    """A set that is decoded while it is used."""

    def __init__(
        self, source: Source, *, device: torch.device, max_bad: float, nvjpeg: bool = False, option: str = ""
    ) -> None:
        self._source = source
        self._device = device
        self._max_bad = max_bad
        self._option = option  # where the user allows more unreadable images, if there is such a place
        # One stream for all copies: the allocator keeps freed memory apart for every stream.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._decoding = torch.cuda.Stream(device) if nvjpeg and device.type == "cuda" else None
        self._bad: dict[int, str] = {}
        self._lock = threading.Lock()
        self._canvas = (0, 0)

    @property
    def bad(self) -> list[str]:
        """ "key: reason" of each image found unreadable so far, in the order of the source."""
        with self._lock:
            return [reason for _, reason in sorted(self._bad.items())]

    @property
    def labels(self) -> Tensor | None:
        """(N,) int64 on the CPU, by image number; None where there are none."""
        return self._source.labels

    def __len__(self) -> int:
        return len(self._source)

    def key(self, i: int) -> str:
        """Path or name of image i."""
        return self._source.key(i)

    def batches(self, orders: Iterable[Tensor]) -> Iterator[Batch]:
        """One batch for each order, an int64 tensor of image numbers, decoded ahead of its use."""
        stop = threading.Event()
        # Two batches are put together at a time: while one is packed, the decoders work on the next.
        workers = ThreadPoolExecutor(max_workers=worker_count(), thread_name_prefix="prosmin-decode")
        packers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="prosmin-pack")
        ready: deque[Future[_Packed]] = deque()
        remaining = iter(orders)
        in_use: deque[torch.cuda.Event] = deque()
        patience = sys.getswitchinterval()
        if self._stream is not None:
            # The thread that feeds a GPU holds Python's lock nearly always, also while it waits for room in the GPU's
            # queue: a decoder that needs the lock for a moment would wait 5 ms for it, several times an image.
            sys.setswitchinterval(SWITCH)
        try:
            while True:
                while len(ready) < AHEAD and (order := next(remaining, None)) is not None:
                    ready.append(packers.submit(self._pack, order.tolist(), workers, stop))
                if not ready:
                    return
                yield ready.popleft().result().received()
                if self._stream is not None:
                    _await_room(in_use, self._device)
        finally:
            # Reached at the end, by an error of a worker, by Ctrl-C and when the caller stops early.
            sys.setswitchinterval(patience)
            stop.set()
            packers.shutdown(wait=False, cancel_futures=True)
            workers.shutdown(wait=True, cancel_futures=True)
            packers.shutdown(wait=True)

    def _pack(self, numbers: list[int], workers: ThreadPoolExecutor, stop: threading.Event) -> "_Packed":
        """Reads, decodes and pads the images of one order, and starts their copy to the device."""
        step = max(1, len(numbers) // (2 * worker_count()))  # images a task; other batches' tasks fill what is idle
        starts = range(0, len(numbers), step)
        if self._stream is not None and self._decoding is not None:
            read = workers.map(lambda start: self._read_part(numbers[start : start + step], stop), starts)
            data = [item for part in read for item in part]
            return self._decode_on_device(numbers, data, self._decoding, self._stream)
        # Most batches fit where the last one did: an image is laid there as soon as it is decoded, fresh in the cache.
        canvas = self._new_canvas(len(numbers), self._canvas)
        pages = self._pages(canvas)
        parts = workers.map(
            lambda start: self._find_part(numbers[start : start + step], pages[start : start + step], stop), starts
        )
        found = [item for part in parts for item in part]
        sizes = torch.tensor([item.size for item in found])  # (b, 2)
        side = self._grown(padded(sizes))
        if side != pages.shape[1:3]:
            canvas, small = self._new_canvas(len(numbers), side), pages
            pages = self._pages(canvas)

            def lay_again(start: int) -> None:
                for i in range(start, min(start + step, len(found))):
                    (height, width), rest = found[i].size, found[i].rest
                    lay(pages[i], small[i, :height, :width] if rest is None else rest)

            list(workers.map(lay_again, starts))
        index = torch.tensor([item.number for item in found])
        if self._stream is None:
            return _Packed(Batch(canvas, sizes, index), None)
        with torch.cuda.stream(self._stream):
            # The device clears what lies around the images: its memory is quicker than the decoders'.
            there = sizes.pin_memory().to(self._device, non_blocking=True)
            images = canvas.to(self._device, non_blocking=True).permute(0, 3, 1, 2).contiguous()
            return _Packed(Batch(clear_around(images, there), there, index), self._stream.record_event())

    def _new_canvas(self, count: int, side: tuple[int, int]) -> Tensor:
        """Room for a batch; for a GPU pixel by pixel, as decoders write: rows are copied whole, the device sorts."""
        if self._stream is None:
            return _zeros(count * 3 * side[0] * side[1]).view(count, 3, *side)
        return torch.empty(count, *side, 3, dtype=torch.uint8, pin_memory=True)

    def _pages(self, canvas: Tensor) -> NDArray[np.uint8]:
        """(b, H, W, 3). numpy copies in its own thread alone, where torch would start a team in every worker."""
        return canvas.numpy().transpose(0, 2, 3, 1) if self._stream is None else canvas.numpy()

    def _laid(self, page: NDArray[np.uint8], number: int, picture: Tensor) -> "_Laid":
        """Lay the image (3, h, w) on its page (H, W, 3), if it fits."""
        pixels = picture.numpy().transpose(1, 2, 0)
        height, width = pixels.shape[:2]
        if height > page.shape[0] or width > page.shape[1]:
            return _Laid(number, (height, width), pixels)
        lay(page, pixels)
        return _Laid(number, (height, width), None)

    def _grown(self, size: tuple[int, int]) -> tuple[int, int]:
        """On a GPU the sides of a batch never shrink: code compiled for a shape then serves nearly every batch."""
        with self._lock:
            largest = (max(size[0], self._canvas[0]), max(size[1], self._canvas[1]))
            self._canvas = size if self._stream is None else largest
            return self._canvas

    def _find_part(self, numbers: list[int], pages: NDArray[np.uint8], stop: threading.Event) -> list["_Laid"]:
        return [
            self._laid(page, *self._find(number))
            for number, page in zip(numbers, pages, strict=True)
            if not stop.is_set()
        ]

    def _find(self, number: int) -> tuple[int, Tensor]:
        """The first readable image from `number` on, cyclically, and its own number."""
        for _ in range(len(self._source)):
            if number not in self._bad:
                try:
                    return number, read_picture(self._source, number)
                except PictureError as reason:
                    self._note(number, reason)
            number = (number + 1) % len(self._source)
        raise ProsminError(f"None of the images of {self._source.spec} can be read.")

    def _note(self, number: int, reason: PictureError) -> None:
        """Remembers an unreadable image; an error when there are too many, and when there is no other."""
        with self._lock:
            self._bad[number] = f"{self._source.key(number)}: {reason}"
            bad = list(self._bad.values())
        check_readable(bad, total=len(self._source), max_bad=self._max_bad, spec=self._source.spec, option=self._option)

    def _read_part(self, numbers: list[int], stop: threading.Event) -> list[bytes | Tensor | None]:
        """Bytes for nvJPEG; None where there are none, which `_find` will then name."""
        results: list[bytes | Tensor | None] = []
        for number in numbers:
            try:
                results.append(None if stop.is_set() or number in self._bad else self._source.read(number))
            except OSError:
                results.append(None)
        return results

    def _decode_on_device(
        self,
        numbers: list[int],
        data: list[bytes | Tensor | None],
        decoding: torch.cuda.Stream,
        stream: torch.cuda.Stream,
    ) -> "_Packed":
        """One batch through nvJPEG; what it does not take goes the usual way."""
        encoded = [i for i, item in enumerate(data) if isinstance(item, bytes)]
        # nvJPEG takes memory of the current stream and writes there in one of its own, which waits for nobody. So it is
        # called in a stream without other work, and what it gave is kept until the copies below are made.
        with torch.cuda.stream(decoding):
            decoded = decode_batch([data[i] for i in encoded], self._device)  # type: ignore[misc]
        usable = dict(zip(encoded, decoded, strict=True))
        stream.wait_stream(decoding)
        with torch.cuda.stream(stream):
            found = []
            for i, number in enumerate(numbers):
                picture = usable.get(i)
                if isinstance(picture, Tensor) and picture.is_cuda:
                    picture.record_stream(stream)
                found.append((number, bounded(picture)) if isinstance(picture, Tensor) else self._find(number))
            sizes = torch.tensor([tuple(picture.shape[1:]) for _, picture in found])
            images = torch.zeros(len(found), 3, *self._grown(padded(sizes)), dtype=torch.uint8, device=self._device)
            for image, (_, picture) in zip(images, found, strict=True):
                image[:, : picture.shape[1], : picture.shape[2]].copy_(picture, non_blocking=True)
            index = torch.tensor([number for number, _ in found])
            batch = Batch(images, sizes.pin_memory().to(self._device, non_blocking=True), index)
            return _Packed(batch, stream.record_event())


class _Packed(NamedTuple):
    """A batch whose copy may still be under way."""

    batch: Batch
    copied: torch.cuda.Event | None

    def received(self) -> Batch:
        """The batch, safe to use in the caller's stream."""
        if self.copied is not None:
            current = torch.cuda.current_stream(self.batch.images.device)
            current.wait_event(self.copied)
            for tensor in (self.batch.images, self.batch.sizes):
                tensor.record_stream(current)  # or its memory could be given away while it is in use
        return self.batch


class _Laid(NamedTuple):
    """An image that was decoded, and laid on its page where that has room for it."""

    number: int
    size: tuple[int, int]
    rest: NDArray[np.uint8] | None  # (h, w, 3), where it had not


def _zeros(size: int) -> Tensor:
    """So many zero bytes, as the system gives them, in pages of 2 MiB where it has such: small ones take far longer."""
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)[:size]


def _await_room(in_use: "deque[torch.cuda.Event]", device: torch.device) -> None:
    """Note that all uses of a batch are in the queue now; wait, without Python's lock, while it holds too many."""
    used = torch.cuda.Event(blocking=True)
    used.record(torch.cuda.current_stream(device))
    in_use.append(used)
    if len(in_use) > IN_FLIGHT:
        in_use.popleft().synchronize()


def padded(sizes: Tensor) -> tuple[int, int]:
    """Height and width of a batch of images of these sizes (b, 2); small ones stay as they are."""
    height, width = sizes.amax(0).tolist()
    if max(height, width) <= STRIDE:
        return height, width
    return -(-height // STRIDE) * STRIDE, -(-width // STRIDE) * STRIDE


def lay(page: NDArray[np.uint8], picture: NDArray[np.uint8]) -> None:
    """The image (h, w, 3) in the upper left corner of its page (H, W, 3); in the rest what was there."""
    height, width = picture.shape[:2]
    page[:height, :width] = picture


def clear_around(images: Tensor, sizes: Tensor) -> Tensor:
    """Zeros below and right of each image, in place: (b, 3, H, W), (b, 2)."""
    below, right = (
        torch.arange(side, device=images.device) >= size[:, None]
        for side, size in zip(images.shape[2:], sizes.unbind(1), strict=True)
    )  # (b, H), (b, W)
    return images.masked_fill_((below[:, :, None] | right[:, None, :])[:, None], 0)
