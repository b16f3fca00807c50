"""The columns of the file."""

import json
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from prosmin.data.noting import Noting
from prosmin.embed.reference import Reference
from prosmin.encoder import Summary

COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "key": (pa.string(), "path or name of the picture"),
    "label": (pa.int64(), "number of its class, where the data have labels"),
    "label_name": (pa.string(), "name of its class"),
    "features": (pa.list_(pa.float32()), "features of the backbone"),
    "mean_log_scale": (pa.float32(), "uncertainty within the view: mean of ln(scale); empty where there is no scale"),
    "view_variance": (pa.float32(), "uncertainty between views: variance of the forecast's mean over random views"),
    "reference_distance": (pa.float32(), "distance to the nearest reference picture, 0 to 2"),
    "ood_score": (pa.float32(), "distance to the k-th nearest reference picture, 0 to 2"),
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


def table(
    numbers: Tensor, summaries: list[Summary], source: Noting, *, reference: Reference | None, threshold: float | None
) -> pa.Table:
    """One row for each readable picture; the unreadable ones are in the metadata, by number."""
    good = source.readable(numbers)
    features = torch.cat([summary.features for summary in summaries])
    dim = features.shape[1]
    score: Tensor | None = None
    near: Tensor | None = None
    if reference is not None:
        near, score = reference.measure(features)
    kept = numbers[good].tolist()
    labels = None if source.labels is None else source.labels[numbers[good]].tolist()
    values = {
        "key": [source.key(i) for i in kept],
        "label": labels,
        "label_name": [source.classes[i] for i in labels] if labels is not None and source.classes else None,
        "mean_log_scale": _joined([summary.log_scale for summary in summaries]),
        "view_variance": _joined([summary.view_variance for summary in summaries]),
        "reference_distance": near,
        "ood_score": score,
        "flag": None if score is None or threshold is None else score.double() > threshold,
    }
    flat = pa.array(features.cpu()[good].flatten().numpy())
    columns = {name: _column(name, value, good) for name, value in values.items()}
    columns["features"] = pa.FixedSizeListArray.from_arrays(flat, dim)
    unreadable = {str(i): source.unreadable[i] for i in numbers[~good].tolist()}
    return pa.table([columns[name] for name in COLUMNS], schema=schema(dim, {"unreadable": unreadable}))


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    found = [part.cpu() for part in parts if part is not None]
    return torch.cat(found) if found else None


def _column(name: str, value: list[Any] | Tensor | None, good: Tensor) -> pa.Array:
    """Nulls where there is no value, and where a number is not finite, as the log of a scale of 0."""
    kind = COLUMNS[name][0]
    if value is None:
        return pa.nulls(int(good.sum()), kind)
    if isinstance(value, list):
        return pa.array(value, kind)
    rows = value[good]
    return pa.array(rows.numpy(), kind, mask=~rows.isfinite().numpy())
