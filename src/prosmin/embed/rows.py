"""The rows of the Parquet file: its columns, one table per part, and joining the parts to one file."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from torch import Tensor

from prosmin.data.unreadable import CheckedSource, check_readable
from prosmin.embed import patches as patch_column
from prosmin.embed.parts import Parts
from prosmin.embed.reference import Distances, Reference
from prosmin.encoder import Summary
from prosmin.encoder.stored import metadata_of
from prosmin.errors import ProsminError
from prosmin.files import writing


class Scoring(NamedTuple):
    """How images are scored and flagged."""

    reference: Reference
    rate: float  # of false alarms
    groups: Tensor | None  # (N,): the group of each image to score, see `own_groups`; None if none is in the reference
    key: Callable[[int], str]  # the name of a reference image, by its number
    mark: str  # hash of the state of the reference's files

    @property
    def threshold(self) -> float:
        """An image with a score above it is flagged."""
        return self.reference.threshold(self.rate)

    def measure(self, features: Tensor, numbers: Tensor) -> Distances:
        """The distances of the images with these numbers."""
        if self.groups is None:
            return self.reference.measure(features)
        groups = self.groups[numbers]
        if features.device.type == "cuda":
            groups = groups.pin_memory()  # a plain copy would wait for all work in the queue
        return self.reference.measure(features, groups.to(features.device, non_blocking=True))


COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "key": (pa.string(), "path or name of the image"),
    "label": (pa.int64(), "number of its class, if the data have labels"),
    "label_name": (pa.string(), "name of its class"),
    "features": (pa.list_(pa.float32()), "features of the backbone"),
    "mean_log_scale": (pa.float32(), "uncertainty within the view: mean of ln(scale); empty if there is no scale"),
    "view_variance": (pa.float32(), "uncertainty between views: variance of the forecast's mean over random views"),
    "nearest": (pa.string(), "path or name of the nearest reference image, other than the image itself"),
    "reference_distance": (pa.float32(), "distance to the nearest reference image, 0 to 2"),
    "ood_score": (pa.float32(), "mean distance to the nearest other reference images, 0 to 2"),
    "flag": (pa.bool_(), "whether ood_score is above the threshold"),
    "uncertainty": (
        pa.float32(),
        "how different the nearest known images are from each other, and how far away; highest far from all of them. "
        "Known: the reference; without one, that of Encoder.save or training images that the encoder carries; empty "
        "if it has neither",
    ),
}
"""Name -> type and meaning; `features` becomes a list of fixed size."""


def column_meanings(*, patches: bool) -> dict[str, str]:
    """Name -> meaning of the columns of a file, in their order."""
    meanings = {name: meaning for name, (_, meaning) in COLUMNS.items()}
    return meanings | {patch_column.NAME: patch_column.MEANING} if patches else meanings


def schema(dim: int, about: dict[str, Any], *, patches: pa.DataType | None = None) -> pa.Schema:
    """The schema of files with features of this size, and `about` in its metadata; `patches` is that column's type."""
    types = {name: kind for name, (kind, _) in COLUMNS.items()} | {"features": pa.list_(pa.float32(), dim)}
    if patches is not None:
        types[patch_column.NAME] = patches
    return pa.schema(list(types.items()), metadata={"prosmin": json.dumps(about)})


def compression(found: pa.Schema) -> dict[str, str]:
    """The codec of each column: lists and images are stored as they are.

    zstd would save 8 % of the bytes, and a search would take nearly twice as long: benchmarks/results/search-cpu.json.
    """
    return {field.name: "zstd" for field in found if not pa.types.is_nested(field.type)}


class Made(NamedTuple):
    """What was computed for a batch, on the encoder's device; `distances` is None without a reference."""

    summary: Summary
    distances: Distances | None
    uncertainty: Tensor | None
    patches: Tensor | None = None  # (n, h, w, D), in the type of the file


def table(numbers: Tensor, made: list[Made], source: CheckedSource, scoring: Scoring | None, *, mark: str) -> pa.Table:
    """One row for each readable image. The metadata have the unreadable ones by number, and the mark of the files.

    This runs in a thread while the networks compute, and uses numpy: a parallel operation of torch would start a
    second team of threads, and with more threads than cores the networks' own team would wait longer.
    """
    good = source.readable(numbers).numpy()
    features = _joined([part.summary.features for part in made])
    distances = [part.distances for part in made if part.distances is not None]
    score = _joined([part.score for part in distances])
    if features is None or not np.isfinite(features).all():
        raise ProsminError("The features contain values that are not finite; is the checkpoint sound?")
    kept, dim = numbers.numpy()[good], features.shape[1]
    numeric = {
        "uncertainty": _joined([part.uncertainty for part in made]),
        "mean_log_scale": _joined([part.summary.log_scale for part in made]),
        "view_variance": _joined([part.summary.view_variance for part in made]),
        "reference_distance": _joined([part.near for part in distances]),
        "ood_score": score,
        "flag": None if score is None or scoring is None else score.astype(np.float64) > scoring.threshold,
    }
    columns = {name: _column(name, value, good) for name, value in numeric.items()}
    nearest = _joined([part.nearest for part in distances])
    columns["nearest"] = _keys(None if nearest is None else nearest[good], columns["reference_distance"], scoring)
    columns["key"] = pa.array([source.key(i) for i in kept.tolist()], pa.string())
    columns["label"], columns["label_name"] = _labels(source, kept)
    columns["features"] = pa.FixedSizeListArray.from_arrays(pa.array(features[good].reshape(-1)), dim)
    unreadable = {str(i): source.unreadable[i] for i in numbers.numpy()[~good].tolist()}
    about: dict[str, Any] = {"unreadable": unreadable, "mark": mark}
    kind = None
    if (patches := _joined([part.patches for part in made])) is not None:
        columns[patch_column.NAME] = patch_column.column(patches[good])
        kind = columns[patch_column.NAME].type
        about["patches"] = {"shape": patches.shape[1:]}
    file_schema = schema(dim, about, patches=kind)
    return pa.table([columns[name] for name in file_schema.names], schema=file_schema)


def _labels(source: CheckedSource, kept: NDArray[Any]) -> tuple[pa.Array, pa.Array]:
    """Numbers and names of classes; no name for a label that is no class, such as the -1 of published test sets."""
    if source.labels is None:
        return pa.nulls(len(kept), pa.int64()), pa.nulls(len(kept), pa.string())
    labels, classes = source.labels.numpy()[kept], source.classes
    names = [classes[label] if 0 <= label < len(classes) else None for label in labels.tolist()]
    return pa.array(labels, pa.int64()), pa.array(names, pa.string())


def _keys(rows: NDArray[Any] | None, distances: pa.Array, scoring: Scoring | None) -> pa.Array:
    """The names of reference images; null if there is no distance."""
    if rows is None or scoring is None:
        return pa.nulls(len(distances), pa.string())
    mask = distances.is_null().to_numpy(zero_copy_only=False)
    return pa.array([scoring.key(i) for i in rows.tolist()], pa.string(), mask=mask)


def _joined(parts: Sequence[Tensor | None]) -> NDArray[Any] | None:
    found = [part.cpu().numpy() for part in parts if part is not None]
    return np.concatenate(found) if found else None


def _column(name: str, value: NDArray[Any] | None, good: NDArray[np.bool_]) -> pa.Array:
    """Null if there is no value, or if a number is not finite, such as the log of a scale of 0."""
    kind = COLUMNS[name][0]
    if value is None:
        return pa.nulls(int(good.sum()), kind)
    rows = value[good]
    return pa.array(rows, kind, mask=~np.isfinite(rows))


ROWS = 8192
"""Rows of a row group, fewer with patches: fixed, so that the file is the same however it was computed."""


class Joined(NamedTuple):
    """What the finished file contains."""

    rows: int
    flagged: int
    unreadable: list[str]


def write_table(path: Path, table: pa.Table) -> None:
    """Write one part; it is read once and removed, so it is not compressed."""
    with writing(path) as part:
        pq.write_table(table, part, compression="none", use_dictionary=False, write_statistics=False)


def unreadable_of(path: Path) -> dict[int, str]:
    """The unreadable images of a part: number -> reason."""
    about = metadata_of(_schema(path)) or {}
    return {int(number): reason for number, reason in about["unreadable"].items()}


def mark_of(path: Path) -> str | None:
    """The mark of the files when the part was written."""
    return (metadata_of(_schema(path)) or {}).get("mark")


def join(parts: Parts, out: Path, source: CheckedSource, about: dict[str, Any], *, max_bad: float) -> Joined:
    """Write all parts to one file with `about` in its metadata; too many unreadable images are an error."""
    paths = [parts.path(i) for i in range(len(parts))]
    unreadable = {number: reason for path in paths for number, reason in unreadable_of(path).items()}
    lines = [f"{source.key(number)}: {reason}" for number, reason in unreadable.items()]
    check_readable(lines, total=len(parts.numbers), max_bad=max_bad, spec=source.spec, option="--max-bad SHARE")
    first = _schema(paths[0])
    kind = first.field(patch_column.NAME).type if patch_column.NAME in first.names else None
    if kind is not None:
        about = about | {"patches": (metadata_of(first) or {})["patches"]}
    file_schema = schema(first.field("features").type.list_size, about | {"unreadable": lines}, patches=kind)
    size = ROWS if kind is None else patch_column.rows_per_group(kind, ROWS)
    rows = flagged = 0
    with (
        writing(out) as part,
        pq.ParquetWriter(
            part, file_schema, compression=compression(file_schema), use_dictionary=["label_name"]
        ) as file,
    ):
        for group in _groups(paths, size):
            file.write_table(group.replace_schema_metadata(file_schema.metadata), row_group_size=size)
            rows += len(group)
            flagged += sum(flag is True for flag in group.column("flag").to_pylist())
    return Joined(rows, flagged, lines)


def _groups(paths: list[Path], size: int) -> Iterator[pa.Table]:
    """The rows in order, `size` at a time."""
    waiting: list[pa.Table] = []
    for path in paths:
        try:
            waiting.append(pq.read_table(path).replace_schema_metadata(None))
        except (pa.ArrowException, OSError) as error:
            raise _damaged(path, error) from None
        while sum(len(table) for table in waiting) >= size:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, size)
            waiting = [whole.slice(size)]
    rest = pa.concat_tables(waiting)
    if len(rest):
        yield rest


def _schema(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> ProsminError:
    return ProsminError(f"{path} is damaged: {error}. Remove it; the same command writes it again.")


def read_about(out: Path) -> dict[str, Any] | None:
    """The metadata of a finished file, None if there is no file; a file of another program is an error."""
    if not out.exists():
        return None
    try:
        about = metadata_of(pq.read_schema(out))
    except (pa.ArrowException, OSError):
        about = None
    if about is None or "settings" not in about:
        raise ProsminError(f"{out} exists, but `prosmin embed` did not write it. Give another file with --out.")
    return about
