"""The rows of the file: columns, and the way from the parts to one Parquet file."""

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
from prosmin.embed.parts import Parts
from prosmin.embed.reference import Measured, Reference
from prosmin.encoder import Summary
from prosmin.errors import ProsminError
from prosmin.files import writing


class Judging(NamedTuple):
    """The fitted reference, the rate its threshold is for, which images of the set are its own, names and files."""

    reference: Reference
    rate: float
    own: Tensor | None  # (N,): their groups, -1 for the others; None where there are only others
    key: Callable[[int], str]  # the name of a reference image, by its number
    mark: str  # what the reference's files are known by

    @property
    def threshold(self) -> float:
        """Above it a score is flagged."""
        return self.reference.threshold(self.rate)

    def measure(self, features: Tensor, numbers: Tensor) -> Measured:
        """The images with these numbers, as `Reference.measure` has them."""
        if self.own is None:
            return self.reference.measure(features)
        own = self.own[numbers]
        if features.device.type == "cuda":
            own = own.pin_memory()  # a plain copy would wait for all before it
        return self.reference.measure(features, own.to(features.device, non_blocking=True))


COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "key": (pa.string(), "path or name of the image"),
    "label": (pa.int64(), "number of its class, where the data have labels"),
    "label_name": (pa.string(), "name of its class"),
    "features": (pa.list_(pa.float32()), "features of the backbone"),
    "mean_log_scale": (pa.float32(), "uncertainty within the view: mean of ln(scale); empty where there is no scale"),
    "view_variance": (pa.float32(), "uncertainty between views: variance of the forecast's mean over random views"),
    "nearest": (pa.string(), "path or name of the nearest reference image; of its own images, the nearest other"),
    "reference_distance": (pa.float32(), "distance to the nearest reference image, 0 to 2"),
    "ood_score": (pa.float32(), "distance to the k-th nearest reference image, 0 to 2"),
    "flag": (pa.bool_(), "whether ood_score is above the threshold"),
}
"""Name -> type and meaning; `features` becomes a list of fixed size."""


def schema(dim: int, about: dict[str, Any]) -> pa.Schema:
    """The schema of files with features of this size, `about` among its metadata."""
    types = {name: kind for name, (kind, _) in COLUMNS.items()} | {"features": pa.list_(pa.float32(), dim)}
    return pa.schema(list(types.items()), metadata={"prosmin": json.dumps(about)})


def told(found: pa.Schema) -> dict[str, Any] | None:
    """What `schema` was told about; None where another program wrote the file."""
    text = (found.metadata or {}).get(b"prosmin")
    try:
        about = json.loads(text) if text else None
    except ValueError:
        return None
    return about if isinstance(about, dict) else None


class Made(NamedTuple):
    """What was computed of a batch, on the encoder's device; `measured` is None without a reference."""

    summary: Summary
    measured: Measured | None


def table(
    numbers: Tensor,
    made: list[Made],
    source: CheckedSource,
    *,
    belonging: Callable[[int], str] | None,
    threshold: float | None,
    mark: str,
) -> pa.Table:
    """One row for each readable image; the unreadable ones are in the metadata, by number, and the files' mark.

    `belonging` names the images of the reference.

    It runs beside the networks. On the CPU it is numpy's work: a parallel operation of torch would start a second team
    of threads for this thread, and with more threads than cores every wait of the networks' own team takes longer.
    """
    good = source.readable(numbers).numpy()
    features = _joined([part.summary.features for part in made])
    measured = [part.measured for part in made if part.measured is not None]
    score = _joined([part.score for part in measured])
    if features is None or not np.isfinite(features).all():
        raise ProsminError("The features hold values that are not finite; is the checkpoint sound?")
    dim = features.shape[1]
    kept = numbers.numpy()[good]
    labels = None if source.labels is None else source.labels.numpy()[kept]
    numeric = {
        "mean_log_scale": _joined([part.summary.log_scale for part in made]),
        "view_variance": _joined([part.summary.view_variance for part in made]),
        "reference_distance": _joined([part.near for part in measured]),
        "ood_score": score,
        "flag": None if score is None or threshold is None else score.astype(np.float64) > threshold,
    }
    columns = {name: _column(name, value, good) for name, value in numeric.items()}
    nearest = _joined([part.nearest for part in measured])
    columns["nearest"] = _keys(None if nearest is None else nearest[good], columns["reference_distance"], belonging)
    names = None if labels is None or not source.classes else [_name(source.classes, i) for i in labels.tolist()]
    columns["key"] = pa.array([source.key(i) for i in kept.tolist()], pa.string())
    columns["label"] = pa.nulls(len(kept), pa.int64()) if labels is None else pa.array(labels, pa.int64())
    columns["label_name"] = pa.nulls(len(kept), pa.string()) if names is None else pa.array(names, pa.string())
    columns["features"] = pa.FixedSizeListArray.from_arrays(pa.array(features[good].reshape(-1)), dim)
    unreadable = {str(i): source.unreadable[i] for i in numbers.numpy()[~good].tolist()}
    return pa.table([columns[name] for name in COLUMNS], schema=schema(dim, {"unreadable": unreadable, "mark": mark}))


def _keys(rows: NDArray[Any] | None, distances: pa.Array, belonging: Callable[[int], str] | None) -> pa.Array:
    """The names of reference images; null where there is no distance to one."""
    if rows is None or belonging is None:
        return pa.nulls(len(distances), pa.string())
    mask = distances.is_null().to_numpy(zero_copy_only=False)
    return pa.array([belonging(i) for i in rows.tolist()], pa.string(), mask=mask)


def _name(classes: tuple[str, ...], label: int) -> str | None:
    """Of a label that stands for none, such as the -1 of published tests, there is no name."""
    return classes[label] if 0 <= label < len(classes) else None


def _joined(parts: Sequence[Tensor | None]) -> NDArray[Any] | None:
    found = [part.cpu().numpy() for part in parts if part is not None]
    return np.concatenate(found) if found else None


def _column(name: str, value: NDArray[Any] | None, good: NDArray[np.bool_]) -> pa.Array:
    """Nulls where there is no value, and where a number is not finite, as the log of a scale of 0."""
    kind = COLUMNS[name][0]
    if value is None:
        return pa.nulls(int(good.sum()), kind)
    rows = value[good]
    return pa.array(rows, kind, mask=~np.isfinite(rows))


ROWS = 8192
"""Rows of a row group: fixed, so that the file does not tell how it was made."""


class Joined(NamedTuple):
    """What the file holds."""

    rows: int
    flagged: int
    unreadable: list[str]


def write_table(path: Path, table: pa.Table) -> None:
    """One part, which is read once and removed: not compressed."""
    with writing(path) as part:
        pq.write_table(table, part, compression="none", use_dictionary=False, write_statistics=False)


def unreadable_of(path: Path) -> dict[int, str]:
    """The images a part left out: number -> reason."""
    about = told(_schema(path)) or {}
    return {int(number): reason for number, reason in about["unreadable"].items()}


def mark_of(path: Path) -> str | None:
    """What the files of a part's images were known by."""
    return (told(_schema(path)) or {}).get("mark")


def join(parts: Parts, out: Path, source: CheckedSource, about: dict[str, Any], *, max_bad: float) -> Joined:
    """All parts as one file with `about` in its metadata; too many unreadable images are an error."""
    paths = [parts.path(i) for i in range(len(parts))]
    unreadable = {number: reason for path in paths for number, reason in unreadable_of(path).items()}
    lines = [f"{source.key(number)}: {reason}" for number, reason in unreadable.items()]
    check_readable(lines, total=len(parts.numbers), max_bad=max_bad, spec=source.spec, option="--max-bad SHARE")
    dim = _schema(paths[0]).field("features").type.list_size
    file_schema = schema(dim, about | {"unreadable": lines})
    rows = flagged = 0
    with (
        writing(out) as part,
        pq.ParquetWriter(part, file_schema, compression="zstd", use_dictionary=["label_name"]) as file,
    ):
        for group in _groups(paths):
            file.write_table(group.replace_schema_metadata(file_schema.metadata), row_group_size=ROWS)
            rows += len(group)
            flagged += sum(flag is True for flag in group.column("flag").to_pylist())
    return Joined(rows, flagged, lines)


def _groups(paths: list[Path]) -> Iterator[pa.Table]:
    """The rows in their order, `ROWS` at a time."""
    waiting: list[pa.Table] = []
    for path in paths:
        try:
            waiting.append(pq.read_table(path).replace_schema_metadata(None))
        except (pa.ArrowException, OSError) as error:
            raise _damaged(path, error) from None
        while sum(len(table) for table in waiting) >= ROWS:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, ROWS)
            waiting = [whole.slice(ROWS)]
    rest = pa.concat_tables(waiting)
    if len(rest):
        yield rest


def _schema(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> ProsminError:
    return ProsminError(f"{path} is damaged: {error}. Remove it; the same command makes it again.")


def told_of(out: Path) -> dict[str, Any] | None:
    """What a finished file tells of itself, None where there is no file; one that is not ours is an error."""
    if not out.exists():
        return None
    try:
        about = told(pq.read_schema(out))
    except (pa.ArrowException, OSError):
        about = None
    if about is None or "settings" not in about:
        raise ProsminError(f"{out} exists and was not written by `prosmin embed`. Give another file with --out.")
    return about
