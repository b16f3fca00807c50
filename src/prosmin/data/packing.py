"""Decoded images of any sizes into one padded batch on a device.

Threads write each image into its page of the batch as soon as it is decoded. For a GPU the pages are pinned
memory, pixel by pixel as decoders write them: rows are copied whole, and the GPU rearranges and clears them.
"""

import contextlib
import mmap
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prosmin.data.decode import bounded

STRIDE = 128
"""Sides of batches of large images are multiples of it, so that compiled views meet few shapes."""


class Batch(NamedTuple):
    """b images on a device."""

    images: Tensor  # (b, 3, H, W) uint8, zero below and right of each image
    sizes: Tensor  # (b, 2) int64: height, width
    index: Tensor  # type: ignore[assignment]  # (b,) int64 on the CPU: the number of each image


class Packed(NamedTuple):
    """A batch whose copy to the device may not be complete."""

    batch: Batch
    copied: torch.cuda.Event | None

    def received(self) -> Batch:
        """The batch, safe to use in the caller's stream."""
        if self.copied is not None:
            current = torch.cuda.current_stream(self.batch.images.device)
            current.wait_event(self.copied)
            for tensor in (self.batch.images, self.batch.sizes):
                tensor.record_stream(current)  # or its memory could be reused while it is in use
        return self.batch


class Placed(NamedTuple):
    """A decoded image, written to its page if it fits."""

    number: int
    size: tuple[int, int]
    rest: NDArray[np.uint8] | None  # (h, w, 3) if it does not fit


class Packer:
    """Makes batches for one device. Safe from several threads."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # One stream for all copies: the allocator keeps a separate pool of freed memory for every stream.
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._side = (0, 0)  # of the last batch
        self._lock = threading.Lock()

    def new_pages(self, count: int) -> tuple[Tensor, NDArray[np.uint8]]:
        """Memory for a batch as large as the last one, which most batches fit, and its pages (b, H, W, 3)."""
        return self._allocate(count, self._side)

    def place(self, page: NDArray[np.uint8], number: int, picture: Tensor) -> Placed:
        """Write the image (3, h, w) to its page (H, W, 3), if it fits."""
        pixels = picture.numpy().transpose(1, 2, 0)
        height, width = pixels.shape[:2]
        if height > page.shape[0] or width > page.shape[1]:
            return Placed(number, (height, width), pixels)
        page[:height, :width] = pixels
        return Placed(number, (height, width), None)

    def pack(
        self,
        canvas: Tensor,
        pages: NDArray[np.uint8],
        placed: list[Placed],
        for_each: Callable[[Callable[[int], None]], None],
    ) -> Packed:
        """The batch of placed images, moved to larger pages if one did not fit; `for_each` calls with every place."""
        sizes = torch.tensor([item.size for item in placed])  # (b, 2)
        side = self._next_side(padded(sizes))
        if side != pages.shape[1:3]:
            small = pages
            canvas, pages = self._allocate(len(placed), side)

            def move(i: int) -> None:
                (height, width), rest = placed[i].size, placed[i].rest
                pages[i, :height, :width] = small[i, :height, :width] if rest is None else rest

            for_each(move)
        index = torch.tensor([item.number for item in placed])
        if self.stream is None:
            return Packed(Batch(canvas, sizes, index), None)
        with torch.cuda.stream(self.stream):
            # The GPU clears what is around the images: its memory is faster.
            there = sizes.pin_memory().to(self._device, non_blocking=True)
            images = canvas.to(self._device, non_blocking=True).permute(0, 3, 1, 2).contiguous()
            return Packed(Batch(clear_around(images, there), there, index), self.stream.record_event())

    def pack_on_device(self, found: list[tuple[int, Tensor]], decoding: torch.cuda.Stream) -> Packed:
        """The batch of numbered images of which most are on the GPU already, decoded in the stream `decoding`."""
        assert self.stream is not None
        self.stream.wait_stream(decoding)
        with torch.cuda.stream(self.stream):
            pictures = []
            for _, picture in found:
                if picture.is_cuda:
                    picture.record_stream(self.stream)
                pictures.append(bounded(picture))
            sizes = torch.tensor([tuple(picture.shape[1:]) for picture in pictures])
            images = torch.zeros(len(found), 3, *self._next_side(padded(sizes)), dtype=torch.uint8, device=self._device)
            for image, picture in zip(images, pictures, strict=True):
                image[:, : picture.shape[1], : picture.shape[2]].copy_(picture, non_blocking=True)
            index = torch.tensor([number for number, _ in found])
            batch = Batch(images, sizes.pin_memory().to(self._device, non_blocking=True), index)
            return Packed(batch, self.stream.record_event())

    def _allocate(self, count: int, side: tuple[int, int]) -> tuple[Tensor, NDArray[np.uint8]]:
        """The memory, and the same as pages for numpy, which copies in its own thread; torch would start a team."""
        if self.stream is None:
            canvas = zeros(count * 3 * side[0] * side[1]).view(count, 3, *side)
            return canvas, canvas.numpy().transpose(0, 2, 3, 1)
        canvas = torch.empty(count, *side, 3, dtype=torch.uint8, pin_memory=True)
        return canvas, canvas.numpy()

    def _next_side(self, side: tuple[int, int]) -> tuple[int, int]:
        """On a GPU the sides of batches never shrink, so that code compiled for a shape is used again."""
        with self._lock:
            largest = (max(side[0], self._side[0]), max(side[1], self._side[1]))
            self._side = side if self.stream is None else largest
            return self._side


def padded(sizes: Tensor) -> tuple[int, int]:
    """Height and width of a batch of images of these sizes (b, 2)."""
    height, width = sizes.amax(0).tolist()
    if max(height, width) <= STRIDE:
        return height, width
    return -(-height // STRIDE) * STRIDE, -(-width // STRIDE) * STRIDE


def clear_around(images: Tensor, sizes: Tensor) -> Tensor:
    """Zeros below and right of each image, in place: (b, 3, H, W), (b, 2)."""
    below, right = (
        torch.arange(side, device=images.device) >= size[:, None]
        for side, size in zip(images.shape[2:], sizes.unbind(1), strict=True)
    )  # (b, H), (b, W)
    return images.masked_fill_((below[:, :, None] | right[:, None, :])[:, None], 0)


def zeros(size: int) -> Tensor:
    """Zero bytes directly from the system, in pages of 2 MiB if it has them: small pages take far longer."""
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)[:size]
