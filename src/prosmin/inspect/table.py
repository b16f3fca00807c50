"""images.parquet: one row per readable image, what was measured and what was found, for other programs too."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from prosmin.embed.rows import COLUMNS as EMBEDDED
from prosmin.embed.rows import compression
from prosmin.files import writing
from prosmin.inspect.findings import Findings
from prosmin.inspect.scan import SCANNED, Scan, measures
from prosmin.inspect.store import Store

ROWS = 512
"""Rows of a row group: a thumbnail is read with those of its group."""

HUGGINGFACE = json.dumps({"info": {"features": {"image": {"_type": "Image"}}}})
"""What `datasets` has to be told: it works out the other columns from their types."""

MEANINGS: dict[str, str] = {
    "key": EMBEDDED["key"][1],
    "label": EMBEDDED["label"][1],
    "label_name": EMBEDDED["label_name"][1],
    "image": "thumbnail, a JPEG",
    "x": "place on the map, 0 to 1",
    "y": "place on the map, 0 to 1",
    "issues": "kinds of issues of the image",
    "group": "number of its group of copies; empty without copies",
    "representative": "rank among the images to label first, from 0; empty for all others",
    "ood_score": EMBEDDED["ood_score"][1],
    "flag": EMBEDDED["flag"][1],
    "nearest": EMBEDDED["nearest"][1],
    "reference_distance": EMBEDDED["reference_distance"][1],
    "uncertainty": EMBEDDED["uncertainty"][1],
    "mean_log_scale": EMBEDDED["mean_log_scale"][1],
    "width": "in pixels, upright",
    "height": "in pixels, upright",
    "file_size": "in bytes",
    "modified": "when the file was changed last",
    "neighbors": "row numbers of the nearest images, from 0, and their distances, 0 to 2",
    "features": EMBEDDED["features"][1],
    "content": "hash of the file",
    "pixels": "hash of the decoded pixels",
    "fingerprint": "a tiny version of the image, by which copies are recognised",
    "mark": "hash of the path, size and time of the file: an image with another mark is read again",
}
"""Column -> meaning, in the order of the file; the quality measures follow `modified`."""


def order() -> list[str]:
    """The columns of the file in order."""
    names = list(MEANINGS)
    at = names.index("modified") + 1
    return [*names[:at], *measures(), *names[at:]]


def write_images(
    store: Store, scan: Scan, findings: Findings, *, nearest: Sequence[str] | None, about: Mapping[str, Any]
) -> None:
    """Write the file of the store: the scanned rows as they are stored, and the findings beside them."""
    found = _found(scan, findings, nearest)
    metadata = {"prosmin": store.about({**about} | {"columns": MEANINGS}), "huggingface": HUGGINGFACE}

    def tables() -> Iterator[pa.Table]:
        first = 0
        for table in _scanned(scan):
            for name, column in found.items():
                table = table.append_column(name, column.slice(first, len(table)))
            first += len(table)
            yield table.select(order()).replace_schema_metadata(metadata)

    _write(store.file, tables())


def write_scanned(store: Store, scan: Scan) -> None:
    """Write only the scanned rows, as for a reference."""
    metadata = {"prosmin": store.about()}
    _write(store.file, (table.replace_schema_metadata(metadata) for table in _scanned(scan)))


def _scanned(scan: Scan) -> Iterator[pa.Table]:
    """The scanned rows, one row group at a time: never the thumbnails of all images."""
    return scan.rows.tables([*SCANNED, *measures()], size=ROWS)


def _write(path: Path, tables: Iterator[pa.Table]) -> None:
    """Write tables as row groups."""
    first = next(tables)
    with (
        writing(path) as part,
        pq.ParquetWriter(
            part, first.schema, compression=compression(first.schema), use_dictionary=["label_name"]
        ) as file,
    ):
        for table in chain([first], tables):
            file.write_table(table, row_group_size=ROWS)


def _found(scan: Scan, findings: Findings, nearest: Sequence[str] | None) -> dict[str, pa.Array]:
    """The columns that are not scanned."""
    count, source = len(findings), scan.source
    issues: list[list[str]] = [[] for _ in range(count)]
    group: list[int | None] = [None] * count
    for one in findings.issues:
        if one.image >= 0:
            issues[one.image].append(one.kind)
            group[one.image] = one.group if one.group is not None else group[one.image]
    ranks = {row: rank for rank, row in enumerate(findings.representative)}
    labels = None if source.labels is None else source.labels.numpy()[scan.numbers]
    score = findings.columns.get("ood_score")
    neighbours = pa.StructArray.from_arrays(
        [_lists(findings.neighbours.astype(np.int64)), _lists(findings.distances)], ["ids", "distances"]
    )
    return {
        "key": pa.array([source.key(i) for i in scan.numbers.tolist()], pa.string()),
        "label": pa.nulls(count, pa.int64()) if labels is None else pa.array(labels, pa.int64()),
        "label_name": pa.array(findings.labels, pa.string()),
        "x": pa.array(findings.points[:, 0], pa.float32()),
        "y": pa.array(findings.points[:, 1], pa.float32()),
        "issues": pa.array(issues, pa.list_(pa.string())),
        "group": pa.array(group, pa.int32()),
        "representative": pa.array([ranks.get(row) for row in range(count)], pa.int32()),
        "ood_score": _numbers(score, count),
        "flag": pa.nulls(count, pa.bool_())
        if score is None
        else pa.array(score.astype(np.float64) > findings.threshold),
        "nearest": pa.nulls(count, pa.string()) if nearest is None else pa.array(nearest, pa.string()),
        "reference_distance": _numbers(findings.columns.get("reference_distance"), count),
        "uncertainty": _numbers(findings.columns.get("uncertainty"), count),
        "neighbors": neighbours,
    }


def _numbers(values: NDArray[Any] | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.float32()) if values is None else pa.array(values, pa.float32())


def _lists(values: NDArray[Any]) -> pa.Array:
    """An array (N, k) as N lists."""
    count, k = values.shape
    return pa.ListArray.from_arrays(np.arange(count + 1, dtype=np.int32) * k, pa.array(values.reshape(-1)))
