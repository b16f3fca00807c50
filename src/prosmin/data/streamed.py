"""Sets that do not fit into memory: decoded as they are used, with their labels and names at hand.

`open_pictures` gives a set as Pictures where it fits and as Streamed where it does not. Both have a length, labels,
classes, keys, a spec, a hash of their content and subsets; `picture_batches` gives the batches of either.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from prosmin.data.pictures import (
    Pictures,
    TooLargeError,
    check_not_empty,
    load_source,
    main_memory,
    tell_left_out,
    worker_count,
)
from prosmin.data.sources import Source, open_source
from prosmin.errors import ProsminError

MAX_BAD = 0.01
"""The share of a set that may be unreadable, unless a run was told otherwise; it is left out."""
HASHED = 8192
"""Pictures whose hashes are under way at a time."""


@dataclass(frozen=True)
class Streamed:
    """N pictures of one or more sources, read when they are asked for: a source itself."""

    sources: tuple[Source, ...]
    places: Tensor  # (N, 2) int64: which source, and the picture's number there
    classes: tuple[str, ...]
    spec: str
    max_bad: float = MAX_BAD

    def __len__(self) -> int:
        return len(self.places)

    def key(self, i: int) -> str:
        """Path or name of picture i."""
        which, number = self.places[i].tolist()
        return self.sources[which].key(number)

    def read(self, i: int) -> bytes | Tensor:
        """Picture i: encoded bytes, or uint8 (3, H, W). Raises OSError where it cannot be read."""
        which, number = self.places[i].tolist()
        return self.sources[which].read(number)

    @cached_property
    def labels(self) -> Tensor | None:
        """(N,) int64; None where a source has none."""
        labels = self.places.new_empty(len(self))
        for which, source in enumerate(self.sources):
            if source.labels is None:
                return None
            here = self.places[:, 0] == which
            labels[here] = source.labels[self.places[here, 1]]
        return labels

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Path or name of each picture."""
        return tuple(self.sources[which].key(number) for which, number in self.places.tolist())

    def subset(self, indices: Tensor) -> "Streamed":
        """The pictures at `indices` (int64, or a mask), in that order."""
        return dataclasses.replace(self, places=self.places[indices.cpu()])

    def content_hash(self) -> str:
        """32 hexadecimal digits that follow from the pictures' bytes alone, which are read for it, by all cores."""
        digest = hashlib.blake2b(digest_size=16)
        with ThreadPoolExecutor(worker_count(), thread_name_prefix="prosmin-hash") as pool:
            for start in range(0, len(self), HASHED):  # a task for each of a million pictures would fill the memory
                for own in pool.map(self._picture_hash, range(start, min(start + HASHED, len(self)))):
                    digest.update(own)
        return digest.hexdigest()

    def _picture_hash(self, i: int) -> bytes:
        try:
            data = self.read(i)
        except OSError:
            return b"unreadable"
        if not isinstance(data, Tensor):
            return hashlib.blake2b(data, digest_size=16).digest()
        digest = hashlib.blake2b(str(tuple(data.shape)).encode(), digest_size=16)
        digest.update(data.contiguous().numpy().data)
        return digest.digest()


def tell_unread(pictures: Streamed, readable: Tensor) -> None:
    """Name those that turned out unreadable, on stderr: all but the ones with these numbers."""
    missing = set(range(len(pictures))) - set(readable.tolist())
    tell_left_out(pictures.spec, [pictures.key(i) for i in sorted(missing)])


PictureSet = Pictures | Streamed


def open_pictures(spec: str, *, limit: int | None = None, max_bad: float = MAX_BAD) -> PictureSet:
    """The pictures of a SPEC: decoded, where that takes at most `limit` bytes (a third of main memory), else streamed.

    Of decoded ones the unreadable are left out; which they are among streamed ones shows when they are read.
    """
    source = open_source(spec)
    try:
        return load_source(source, max_bad=max_bad, limit=memory_limit() if limit is None else limit)[0]
    except TooLargeError:
        return streamed([source], max_bad=max_bad)


def streamed(sources: Sequence[Source], *, max_bad: float = MAX_BAD) -> Streamed:
    """All pictures of sources that count the same classes, one source after the other."""
    for source in sources:
        check_not_empty(source)
    places = [
        torch.stack([torch.full((len(source),), which), torch.arange(len(source))], dim=1)
        for which, source in enumerate(sources)
    ]
    spec = " + ".join(source.spec for source in sources)
    return Streamed(tuple(sources), torch.cat(places), sources[0].classes, spec, max_bad)


def where_it_fits(pictures: PictureSet) -> PictureSet:
    """The set decoded if it fits into memory, for what is read many times."""
    if isinstance(pictures, Pictures):
        return pictures
    try:
        return load_source(pictures, max_bad=pictures.max_bad, limit=memory_limit())[0]
    except TooLargeError:
        return pictures


def in_memory(pictures: PictureSet) -> Pictures:
    """The set decoded, for the few pictures that a protocol looks at one by one."""
    found = where_it_fits(pictures)
    if isinstance(found, Pictures):
        return found
    raise ProsminError(
        f"{len(pictures)} pictures of {pictures.spec} would take more than a third of the memory of this machine "
        "decoded. Name smaller pictures, or fewer of them, for example a subfolder."
    )


def allowed_bad(pictures: PictureSet) -> float:
    """The share of a set that may still turn out to be unreadable: of a decoded one, none."""
    return pictures.max_bad if isinstance(pictures, Streamed) else 0.0


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


def memory_limit() -> int:
    """Bytes that decoded pictures may take: packing needs them twice for a moment."""
    return main_memory() // 3
