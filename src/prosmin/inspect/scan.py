"""Every image is decoded once: features, uncertainty, hashes, size, thumbnail, fingerprint and quality measures."""

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from prosmin.data.decode import PictureError, upright_size
from prosmin.data.sources import Source
from prosmin.data.unreadable import CheckedSource
from prosmin.embed.parts import PART, Parts, Process
from prosmin.embed.rows import write_table
from prosmin.embed.stream import BATCH, fill, recorded
from prosmin.encoder import Encoder, Summary
from prosmin.errors import ProsminError
from prosmin.inspect.fingerprint import LENGTH, fingerprint
from prosmin.inspect.images import is_link, marks_of, modified, name_of
from prosmin.inspect.quality import measure
from prosmin.inspect.store import MARK, Rows, Store
from prosmin.messages import some

VERSION = 1
"""Raised when a measurement changes: rows of an earlier version are computed again."""

THUMBNAIL, QUALITY = 128, 80
"""Longer side of a thumbnail in pixels, and the quality of its JPEG."""

IMAGE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""As the images of Hugging Face `datasets`."""


SCANNED = (
    MARK, "features", "mean_log_scale", "width", "height", "file_size", "modified", "content", "pixels", "fingerprint",
    "image",
)  # fmt: skip
"""The columns of a scan, without the quality measures."""


class Measurement(NamedTuple):
    """What is taken from one image while it is decoded."""

    width: int  # of the file, upright
    height: int
    file_size: int | None  # bytes; None if the image is stored decoded
    modified: float | None
    content: str  # hash of the file
    pixels: int  # hash of the decoded pixels
    thumbnail: bytes  # JPEG
    fingerprint: NDArray[np.uint8]
    quality: dict[str, float]


def measurement(picture: Tensor, data: bytes | Tensor, *, changed: float | None) -> Measurement:
    """Of an image (3, H, W) decoded from `data`. With numpy and Pillow, since it runs in the decoding threads."""
    array = np.ascontiguousarray(picture.numpy().transpose(1, 2, 0))  # (H, W, 3)
    shape = np.array(array.shape, dtype="<i4").tobytes()
    pixels = hashlib.blake2b(shape + array.tobytes(), digest_size=8).digest()
    encoded = data if isinstance(data, bytes) else None
    height, width = upright_size(encoded) if encoded is not None else data.shape[-2:]  # type: ignore[union-attr]
    return Measurement(
        width=width or array.shape[1],
        height=height or array.shape[0],
        file_size=None if encoded is None else len(encoded),
        modified=changed,
        content=pixels.hex() if encoded is None else hashlib.blake2b(encoded, digest_size=16).hexdigest(),
        pixels=int.from_bytes(pixels, "little", signed=True),
        thumbnail=thumbnail(array),
        fingerprint=fingerprint(picture),
        quality=measure(picture),
    )


def thumbnail(array: NDArray[np.uint8]) -> bytes:
    """A JPEG of an image (H, W, 3) whose longer side is at most THUMBNAIL."""
    image, file = Image.fromarray(array), io.BytesIO()
    image.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.BILINEAR)
    image.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


@dataclass(frozen=True)
class MeasuredSource(CheckedSource):
    """A checked source that measures each image it decodes."""

    measured: dict[int, Measurement] = field(default_factory=dict)  # number -> until its part is written

    def image(self, i: int, data: bytes | Tensor | None = None) -> Tensor | None:
        """As in `CheckedSource`."""
        try:
            data = self.source.read(i) if data is None else data
        except OSError as error:
            self.record(i, PictureError(error.strerror or str(error)))
            return None
        picture = super().image(i, data)
        if picture is not None:
            self.measured[i] = measurement(picture, data, changed=modified(self.source, i))
        return picture


@dataclass(frozen=True, kw_only=True)
class Scan:
    """The N readable images of a source, and the others."""

    source: Source
    numbers: NDArray[np.int64]  # (N,): the images' numbers in the source
    rows: Rows  # of N images
    unreadable: list[tuple[str, str]]  # names and reasons
    computed: int  # images that were computed now; the others had rows

    def __len__(self) -> int:
        return len(self.numbers)

    def names(self) -> list[str]:
        """The names of the images, see `name_of`."""
        return [name_of(self.source, i) for i in self.numbers.tolist()]

    def links(self) -> NDArray[np.bool_]:
        """Which of them are symbolic links: (N,)."""
        return np.array([is_link(self.source, i) for i in self.numbers.tolist()], dtype=bool)

    def labels(self) -> list[str | None]:
        """The names of their classes; None for a label that is no class, such as the -1 of published test sets."""
        if self.source.labels is None:
            return [None] * len(self)
        classes = self.source.classes
        labels = self.source.labels.numpy()[self.numbers].tolist()
        return [classes[label] if 0 <= label < len(classes) else None for label in labels]


def settings_of(encoder: Encoder) -> dict[str, Any]:
    """What the rows depend on, besides the images."""
    return {"encoder": encoder.card["hash"], "version": VERSION, "measures": list(measures()), "fingerprint": LENGTH}


@cache
def measures() -> tuple[str, ...]:
    """The names of the quality measures."""
    return tuple(measure(torch.zeros(3, 1, 1, dtype=torch.uint8)))


def scan(source: Source, encoder: Encoder, store: Store, *, title: str) -> Scan:
    """Compute the rows that the store does not have, in parts: after an interruption the same call continues."""
    marks, places = marks_of(source), store.places()
    missing = [i for i, mark in enumerate(marks) if mark not in places]
    checked = MeasuredSource(source)
    if missing:
        _fill(checked, encoder, store, torch.tensor(missing), marks, title=title)
        places = store.places()
    readable = [i for i, mark in enumerate(marks) if mark in places]
    unreadable = [(name_of(source, i), reason) for i, reason in sorted(checked.unreadable.items())]
    if not readable:
        raise ProsminError(
            f"None of the {len(source)} images in {source.spec} can be read: {some(checked.lines())}. "
            "Repair them, or give a folder with other images."
        )
    return Scan(
        source=source,
        numbers=np.array(readable),
        rows=Rows([places[marks[i]] for i in readable]),
        unreadable=unreadable,
        computed=len(missing) - len(unreadable),
    )


def _fill(
    source: MeasuredSource, encoder: Encoder, store: Store, numbers: Tensor, marks: Sequence[str], *, title: str
) -> None:
    batch = min(encoder.batch_size, BATCH if encoder.device.type == "cuda" else PART, PART)

    def write(path: Path, chosen: Tensor, made: list[Summary]) -> None:
        if bool(source.readable(chosen).any()):
            table = _table(chosen, made, source, marks)
            write_table(path, table.replace_schema_metadata({"prosmin": store.about()}))

    fill(
        Parts(store.parts, store.next_name(), numbers),
        source,
        Process(0, 1, 0),
        device=encoder.device,
        batch=batch,
        max_bad=None,
        make=recorded(encoder.summarise, encoder, size=batch),
        write=write,
        title=title,
    )


def _table(chosen: Tensor, made: list[Summary], source: MeasuredSource, marks: Sequence[str]) -> pa.Table:
    """One row for each readable image."""
    good = source.readable(chosen).numpy()
    kept = chosen.numpy()[good].tolist()
    found = [source.measured.pop(i) for i in kept]
    features = np.concatenate([part.features.cpu().numpy() for part in made])[good]
    if not np.isfinite(features).all():
        raise ProsminError("The features contain values that are not finite; is the checkpoint sound?")
    scales = [part.log_scale.cpu().numpy() for part in made if part.log_scale is not None]
    log_scale = np.concatenate(scales)[good] if scales else np.full(len(kept), np.nan, np.float32)
    prints = [item.fingerprint.tobytes() for item in found]
    pictures = [{"bytes": item.thumbnail, "path": source.key(i)} for i, item in zip(kept, found, strict=True)]
    columns: Mapping[str, pa.Array] = {
        MARK: pa.array([marks[i] for i in kept], pa.string()),
        "features": pa.FixedSizeListArray.from_arrays(pa.array(features.reshape(-1)), features.shape[1]),
        "mean_log_scale": pa.array(log_scale, pa.float32(), mask=~np.isfinite(log_scale)),
        "width": pa.array([item.width for item in found], pa.int32()),
        "height": pa.array([item.height for item in found], pa.int32()),
        "file_size": pa.array([item.file_size for item in found], pa.int64()),
        "modified": pa.array([_milliseconds(item.modified) for item in found], pa.timestamp("ms", tz="UTC")),
        "content": pa.array([item.content for item in found], pa.string()),
        "pixels": pa.array([item.pixels for item in found], pa.int64()),
        "fingerprint": pa.array(prints, pa.binary()),
        **{name: pa.array([item.quality[name] for item in found], pa.float32()) for name in measures()},
        "image": pa.array(pictures, IMAGE_TYPE),
    }
    return pa.table(dict(columns))


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(1000 * seconds)
