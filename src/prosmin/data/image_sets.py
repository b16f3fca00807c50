"""Sets of images for evaluation: decoded in memory, or streamed from disk if they do not fit."""

import dataclasses
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from prosmin.data.decode import PictureError
from prosmin.data.sources import Source, open_source
from prosmin.data.unreadable import CheckedSource, read_picture, report_left_out
from prosmin.errors import ProsminError
from prosmin.machine import main_memory

CHUNK = 64
"""Images per task of a worker: small ones are decoded faster than a task is handed over."""

MAX_BAD = 0.01
"""The share of a set that may be unreadable and is left out, unless a run's configuration says otherwise."""

HASHED = 8192
"""Images that are hashed at a time: a task for each of a million images would fill the memory."""


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """N decoded images, padded with zeros below and on the right."""

    images: Tensor  # (N, 3, H, W) uint8
    sizes: Tensor  # (N, 2) int64: height, width
    labels: Tensor | None  # (N,) int64
    classes: tuple[str, ...]  # names of the labels; empty without labels
    keys: tuple[str, ...]  # path or name of each image
    spec: str
    bad: tuple[str, ...] = ()  # "key: reason" of each image that was left out

    def __len__(self) -> int:
        return len(self.images)

    def subset(self, indices: Tensor) -> "Pictures":
        """The images at `indices` (int64, or a mask), in that order."""
        where = indices.nonzero()[:, 0] if indices.dtype == torch.bool else indices
        here = where.to(self.images.device)
        return dataclasses.replace(
            self,
            images=self.images[here],
            sizes=self.sizes[here],
            labels=None if self.labels is None else self.labels[here],
            keys=tuple(self.keys[i] for i in where.tolist()),
        )

    def to(self, device: torch.device | str) -> "Pictures":
        """The same images with their tensors on `device`."""
        labels = None if self.labels is None else self.labels.to(device)
        return dataclasses.replace(self, images=self.images.to(device), sizes=self.sizes.to(device), labels=labels)

    def content_hash(self) -> str:
        """32 hexadecimal digits that depend only on pixels and sizes."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(str(tuple(self.images.shape)).encode())
        for tensor in (self.sizes, self.images):
            digest.update(tensor.cpu().contiguous().numpy().data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Streamed:
    """N images of one or more sources, read when they are used. It is a source itself."""

    sources: tuple[Source, ...]
    places: Tensor  # (N, 2) int64: which source, and the image's number there
    classes: tuple[str, ...]
    spec: str
    max_bad: float = MAX_BAD

    def __len__(self) -> int:
        return len(self.places)

    def key(self, i: int) -> str:
        """Path or name of image i."""
        which, number = self.places[i].tolist()
        return self.sources[which].key(number)

    def read(self, i: int) -> bytes | Tensor:
        """Image i: encoded bytes, or uint8 (3, H, W). Raises OSError where it cannot be read."""
        which, number = self.places[i].tolist()
        return self.sources[which].read(number)

    @cached_property
    def labels(self) -> Tensor | None:
        """(N,) int64; None if a source has none."""
        labels = self.places.new_empty(len(self))
        for which, source in enumerate(self.sources):
            if source.labels is None:
                return None
            here = self.places[:, 0] == which
            labels[here] = source.labels[self.places[here, 1]]
        return labels

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Path or name of each image."""
        return tuple(self.sources[which].key(number) for which, number in self.places.tolist())

    def subset(self, indices: Tensor) -> "Streamed":
        """The images at `indices` (int64, or a mask), in that order."""
        return dataclasses.replace(self, places=self.places[indices.cpu()])

    def content_hash(self) -> str:
        """32 hexadecimal digits that depend only on the images' bytes, which are all read."""
        digest = hashlib.blake2b(digest_size=16)
        with ThreadPoolExecutor(worker_count(), thread_name_prefix="prosmin-hash") as pool:
            for start in range(0, len(self), HASHED):
                for part in pool.map(self._image_hash, range(start, min(start + HASHED, len(self)))):
                    digest.update(part)
        return digest.hexdigest()

    def _image_hash(self, i: int) -> bytes:
        try:
            data = self.read(i)
        except OSError:
            return b"unreadable"
        if not isinstance(data, Tensor):
            return hashlib.blake2b(data, digest_size=16).digest()
        digest = hashlib.blake2b(str(tuple(data.shape)).encode(), digest_size=16)
        digest.update(data.contiguous().numpy().data)
        return digest.digest()


PictureSet = Pictures | Streamed


class TooLargeError(Exception):
    """The decoded set would take more than the limit."""


def load_pictures(spec: str, *, max_bad: float = MAX_BAD) -> Pictures:
    """Every image of a source, decoded by all cores; unreadable ones are left out and recorded."""
    source = CheckedSource(open_source(spec), max_bad)
    try:
        return load_source(source, limit=memory_limit())[0]
    except TooLargeError:
        raise _too_large(source) from None


def open_pictures(spec: str, *, limit: int | None = None, max_bad: float = MAX_BAD) -> PictureSet:
    """The images of a SPEC: decoded if that takes at most `limit` bytes (a third of main memory), else streamed."""
    source = open_source(spec)
    try:
        return load_source(CheckedSource(source, max_bad), limit=memory_limit() if limit is None else limit)[0]
    except TooLargeError:
        return streamed([source], max_bad=max_bad)


def where_it_fits(pictures: PictureSet) -> PictureSet:
    """The set decoded if it fits into memory, for images that are used many times."""
    if isinstance(pictures, Pictures):
        return pictures
    try:
        return load_source(CheckedSource(pictures, pictures.max_bad), limit=memory_limit())[0]
    except TooLargeError:
        return pictures


def in_memory(pictures: PictureSet) -> Pictures:
    """The set decoded, for the few images that a protocol shows one by one."""
    found = where_it_fits(pictures)
    if isinstance(found, Pictures):
        return found
    raise _too_large(pictures)


def _too_large(images: Pictures | Source) -> ProsminError:
    return ProsminError(
        f"The {len(images)} images of {images.spec}, decoded, take more than a third of the memory that this process "
        f"may use; allowed: {memory_limit() / 2**30:.3g} GiB. Give smaller images, or fewer, for example a subfolder."
    )


def load_source(source: CheckedSource, *, limit: int) -> tuple[Pictures, Tensor]:
    """The decoded images and their numbers in the source (N,). Raises TooLargeError above `limit` bytes."""
    check_not_empty(source)
    kept: list[int] = []
    pictures: list[Tensor] = []
    height = width = 0
    for i, picture in enumerate(_decode_all(source)):
        if isinstance(picture, PictureError):
            source.record(i, picture)  # in order, not by the workers, which are ahead
            continue
        height, width = max(height, picture.shape[1]), max(width, picture.shape[2])
        if len(source) * 3 * height * width > limit:
            raise TooLargeError
        kept.append(i)
        pictures.append(picture)
    images, sizes = pack(pictures)
    numbers = torch.tensor(kept)
    loaded = Pictures(
        images=images,
        sizes=sizes,
        labels=None if source.labels is None else source.labels[numbers],
        classes=source.classes,
        keys=tuple(source.key(i) for i in kept),
        spec=source.spec,
        bad=tuple(source.lines()),
    )
    return loaded, numbers


def _decode_all(source: Source) -> Iterator[Tensor | PictureError]:
    """Every image in order, decoded by all cores, or the reason why it cannot be read."""
    stop = threading.Event()

    def attempt(i: int) -> Tensor | PictureError:
        try:
            return read_picture(source, i)
        except PictureError as reason:
            return reason

    def work(start: int) -> list[Tensor | PictureError]:
        numbers = range(start, min(start + CHUNK, len(source)))
        return [attempt(i) for i in numbers if not stop.is_set()]

    pool = ThreadPoolExecutor(max_workers=worker_count(), thread_name_prefix="prosmin-decode")
    try:
        for results in pool.map(work, range(0, len(source), CHUNK)):
            yield from results
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def pack(pictures: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Images (3, h, w) of any sizes as one tensor (N, 3, H, W) with zeros around, and the sizes (N, 2)."""
    sizes = torch.tensor([tuple(p.shape[1:]) for p in pictures])
    height, width = sizes.amax(0).tolist()
    if bool((sizes == sizes[0]).all()):
        return torch.stack(pictures), sizes
    images = torch.zeros(len(pictures), 3, height, width, dtype=torch.uint8)
    for image, picture in zip(images, pictures, strict=True):
        image[:, : picture.shape[1], : picture.shape[2]] = picture
    return images, sizes


def streamed(sources: Sequence[Source], *, max_bad: float = MAX_BAD) -> Streamed:
    """All images of sources with the same classes, one source after the other."""
    for source in sources:
        check_not_empty(source)
    places = [
        torch.stack([torch.full((len(source),), which), torch.arange(len(source))], dim=1)
        for which, source in enumerate(sources)
    ]
    spec = " + ".join(source.spec for source in sources)
    return Streamed(tuple(sources), torch.cat(places), sources[0].classes, spec, max_bad)


def joined(parts: Sequence[Pictures]) -> Pictures:
    """Several decoded sets of the same classes as one."""
    if len(parts) == 1:
        return parts[0]
    height, width = (max(part.images.shape[side] for part in parts) for side in (2, 3))
    padded = [
        torch.nn.functional.pad(part.images, (0, width - part.images.shape[3], 0, height - part.images.shape[2]))
        for part in parts
    ]
    labels = [part.labels for part in parts if part.labels is not None]
    return Pictures(
        images=torch.cat(padded),
        sizes=torch.cat([part.sizes for part in parts]),
        labels=torch.cat(labels) if len(labels) == len(parts) else None,
        classes=parts[0].classes,
        keys=tuple(key for part in parts for key in part.keys),
        spec=" + ".join(dict.fromkeys(part.spec for part in parts)),
    )


def report_unread(pictures: Streamed, readable: Tensor) -> None:
    """Name the images that could not be read, on stderr: all but those with these numbers."""
    missing = set(range(len(pictures))) - set(readable.tolist())
    report_left_out(pictures.spec, [pictures.key(i) for i in sorted(missing)])


def allowed_bad(pictures: PictureSet) -> float:
    """The share of a set that may turn out to be unreadable; none of a decoded one."""
    return pictures.max_bad if isinstance(pictures, Streamed) else 0.0


def check_not_empty(images: Pictures | Source) -> None:
    """Raise for a source without images."""
    if len(images) == 0:
        raise ProsminError(f"There are no images in {images.spec}.")


def memory_limit() -> int:
    """Bytes that decoded images may take: packing needs them twice for a moment."""
    return main_memory() // 3


def worker_count() -> int:
    """Threads that decode: the cores this process may use, divided among the processes of this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    beside = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(2, cores // (int(beside) if beside.isdigit() and int(beside) else 1))
