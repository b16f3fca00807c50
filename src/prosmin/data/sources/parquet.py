"""SPEC `parquet:PATH` and `parquet:PATH@SPLIT`: a Parquet file, or a folder of them.

Columns: `image` (encoded bytes, or a struct with `bytes` as Hugging Face writes it), or the only column of that
type; optionally `label` (numbers or names), or the column that Hugging Face's metadata declares as class labels, and
`label_name`. In a folder, files are grouped by the split in their name (`train-00000.parquet`); the default is
`train`. The encoded bytes are kept in memory; of a remote file (s3://...) only the row groups that were needed so far.
"""

import json
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from prosmin.data.sources import splits
from prosmin.data.sources.kind import SourceKind
from prosmin.data.sources.remote import RemotePath, path_of
from prosmin.data.sources.row_groups import RowGroup, bytes_of, bytes_type, is_bytes
from prosmin.errors import MissingFileError, ProsminError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

AnyPath = Path | RemotePath

LARGEST_LABEL = 1_000_000
"""Larger numbers are dates or identifiers, not classes; every class up to the largest gets a name."""


@dataclass(frozen=True)
class ParquetSource:
    """Rows of one or more files, in the order of files and rows."""

    spec: str
    chunks: list[Any]  # binary arrays, and row groups of remote files
    starts: list[int]  # the first row of each chunk
    name: str
    total: int
    labels: "Tensor | None"
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return self.total

    def key(self, i: int) -> str:
        """File or folder, and row."""
        return f"{self.name}[{i}]"

    def read(self, i: int) -> bytes:
        """The encoded image of row i."""
        chunk = bisect_right(self.starts, i) - 1
        data = self.chunks[chunk][i - self.starts[chunk]].as_py()
        if data is None:
            raise OSError("the row contains no bytes")
        return data


def open_parquet(rest: str) -> ParquetSource:
    """The images of a Parquet file or of a folder of them."""
    path, files = _files(rest)
    chunks, table = _read(files, spec=f"parquet:{rest}")
    starts = list(accumulate((len(chunk) for chunk in chunks), initial=0))
    labels, classes = _labels(table, spec=f"parquet:{rest}")
    return ParquetSource(f"parquet:{rest}", chunks, starts[:-1], path.name, starts[-1], labels, classes)


def files(rest: str) -> Collection[str]:
    """The paths of its files; of remote ones with their states."""
    paths = _files(rest)[1]
    states = {str(path): path.state() for path in paths if isinstance(path, RemotePath)}
    return states or [str(path) for path in paths]


def other_split(rest: str, split: str) -> str:
    """The rest of another split's SPEC: other files of the folder, or the file beside this one."""
    base = rest.rpartition("@")[0] if not path_of(rest).expanduser().exists() and "@" in rest else rest
    path = path_of(base).expanduser()
    if path.is_dir():
        return f"{base}@{splits.choose(split, _by_split(_inside(path)), spec=f'parquet:{base}')}"
    for other in splits.renamed(base, split):
        if path_of(other).expanduser().is_file():
            return other
    raise UsageError(
        f"The data parquet:{base} has no split {split!r}: there is no file of that name beside it. "
        "Give the other images as a separate SPEC."
    )


KIND = SourceKind(
    name="parquet", form="parquet:PATH[@SPLIT]", open=open_parquet, other_split=other_split, files=files
)  # fmt: skip


def _files(rest: str) -> tuple[AnyPath, list[AnyPath]]:
    base, split = rest, ""
    if not path_of(rest).expanduser().exists() and "@" in rest:
        base, _, split = rest.rpartition("@")
    path = path_of(base).expanduser()
    if not base or not path.exists():
        raise MissingFileError(f"The file {base!r} of the data parquet:{rest} does not exist; write parquet:PATH.")
    if path.is_file():
        if split:
            raise UsageError(f"The data parquet:{base} is one file and has no split {split!r}.")
        return path, [path]
    files = _inside(path)
    if not files:
        raise ProsminError(f"There are no files named *.parquet in the folder {path}.")
    groups = _by_split(files)
    if split:
        return path, groups[splits.choose(split, groups, spec=f"parquet:{base}")]
    return path, splits.train_group(groups) or list(files.values())


def _inside(folder: AnyPath) -> dict[str, AnyPath]:
    """The Parquet files below a folder, by their paths relative to it."""
    if isinstance(folder, RemotePath):
        return {name: folder / name for name in folder.files() if name.endswith(".parquet")}
    found = sorted(file for file in folder.rglob("*.parquet") if file.is_file())
    return {file.relative_to(folder).as_posix(): file for file in found}


def _by_split(files: dict[str, AnyPath]) -> dict[str, list[AnyPath]]:
    """By the split in the name of the file, or else of its folder."""
    groups: dict[str, list[AnyPath]] = {}
    for name, file in files.items():
        if (split := next(filter(None, map(splits.word, reversed(name.split("/")))), None)) is not None:
            groups.setdefault(split, []).append(file)
    return groups


def _read(files: list[AnyPath], *, spec: str) -> tuple[list[Any], pa.Table]:
    """Their images, and a table of the columns label and label_name as far as they exist."""
    chunks: list[Any] = []
    tables = []
    for file in files:
        try:
            if isinstance(file, RemotePath):
                images, table = _read_remote(file, spec=spec)
            else:
                images, table = _read_local(file, spec=spec)
        except (pa.ArrowException, OSError) as error:
            raise ProsminError(f"The file {file} cannot be read as Parquet: {error}") from None
        chunks += [chunk for chunk in images if len(chunk)]
        tables.append(table)
    try:
        return chunks, pa.concat_tables(tables, promote_options="permissive")  # int32 beside int64, say
    except pa.ArrowException as error:
        raise ProsminError(f"The files of the data {spec} differ in their columns: {error}") from None


def _read_local(file: Path, *, spec: str) -> tuple[list[Any], pa.Table]:
    schema = pq.read_schema(file)
    image, names = _image_column(schema, file, spec=spec), _label_columns(schema)
    table = pq.read_table(file, columns=[image, *names])
    return bytes_of(table.column(image)).chunks, _renamed(table.select(list(names)), names)


def _read_remote(file: RemotePath, *, spec: str) -> tuple[list[Any], pa.Table]:
    """Only the labels are read at once."""
    with file.open() as opened:
        parquet = pq.ParquetFile(opened, pre_buffer=True)
        image, names = _image_column(parquet.schema_arrow, file, spec=spec), _label_columns(parquet.schema_arrow)
        table = parquet.read(columns=list(names))
        groups = [RowGroup(file, parquet.metadata, i, image) for i in range(parquet.num_row_groups)]
    return groups, _renamed(table, names)


def _renamed(table: pa.Table, names: dict[str, str]) -> pa.Table:
    renamed = table.rename_columns([names[name] for name in table.column_names])
    return renamed.replace_schema_metadata(table.schema.metadata)


def _image_column(schema: pa.Schema, file: AnyPath, *, spec: str) -> str:
    """`image`, or else the only column of bytes, such as `img` in published files."""
    if "image" in schema.names:
        if not is_bytes(bytes_type(kind := schema.field("image").type)):
            raise ProsminError(f"The column 'image' of the data {spec} is of type {kind}; allowed: encoded bytes.")
        return "image"
    found = [field.name for field in schema if is_bytes(bytes_type(field.type))]
    if len(found) == 1:
        return str(found[0])
    raise ProsminError(
        f"The file {file} of the data {spec} has no column 'image' (encoded bytes) and "
        f"{'several others' if found else 'no other'} of that type; its columns: {', '.join(schema.names) or 'none'}. "
        "Rename one to 'image': pyarrow.parquet.write_table(table.rename_columns([...]), FILE)."
    )


def _label_columns(schema: pa.Schema) -> dict[str, str]:
    """The columns of labels and their names, with what they are called here."""
    label = _label_column(schema)
    names = {label: "label"} if label else {}
    return names | ({"label_name": "label_name"} if "label_name" in schema.names else {})


def _label_column(schema: pa.Schema) -> str | None:
    """`label`, or else the only column that Hugging Face's metadata declares as class labels."""
    if "label" in schema.names:
        return "label"
    found = [name for name, classes in _published_classes(schema).items() if classes and name in schema.names]
    return found[0] if len(found) == 1 else None


def _labels(table: pa.Table, *, spec: str) -> "tuple[Tensor | None, tuple[str, ...]]":
    """Numbers and names of the labels; (None, ()) without a label column."""
    import torch

    if "label" not in table.column_names or table.column("label").null_count == len(table):
        return None, ()
    column = table.column("label")
    _check_filled(table, "label", spec=spec)
    values = column.to_pylist()
    if all(isinstance(value, str) for value in values):
        classes = tuple(sorted(set(values)))
        number = {name: i for i, name in enumerate(classes)}
        return torch.tensor([number[value] for value in values]), classes
    if not all(isinstance(value, int) for value in values):
        raise ProsminError(
            f"The column 'label' of the data {spec} is of type {column.type}; allowed: names, or numbers from 0."
        )
    if negative := [value for value in values if value < 0]:
        raise ProsminError(
            f"The column 'label' of the data {spec} is negative in {len(negative)} rows of {len(table)}, the first "
            f"{negative[0]}; allowed: names, or numbers from 0. Remove the column if the images have no labels."
        )
    if (largest := max(values)) > LARGEST_LABEL:
        raise ProsminError(
            f"The column 'label' of the data {spec} contains {largest}, which is too large for the number of a class; "
            f"allowed: names, or numbers from 0 to {LARGEST_LABEL:,}."
        )
    names = _published_names(table.schema) or {}
    if "label_name" in table.column_names and table.column("label_name").null_count < len(table):
        _check_filled(table, "label_name", spec=spec)
        names = dict(zip(values, table.column("label_name").to_pylist(), strict=True))
    count = max(largest, *names) + 1 if names else largest + 1
    return torch.tensor(values, dtype=torch.int64), tuple(str(names.get(i, i)) for i in range(count))


def _check_filled(table: pa.Table, name: str, *, spec: str) -> None:
    if missing := table.column(name).null_count:
        raise ProsminError(f"The column {name!r} of the data {spec} is empty in {missing} rows of {len(table)}.")


def _published_classes(schema: pa.Schema) -> dict[str, list[str]]:
    """The class names in Hugging Face's metadata, by column; empty for a column that is not of class labels."""
    text = (schema.metadata or {}).get(b"huggingface")
    try:
        features = dict(json.loads(text)["info"]["features"]) if text else {}
    except (ValueError, KeyError, TypeError):
        return {}
    return {name: kind.get("names") or [] if isinstance(kind, dict) else [] for name, kind in features.items()}


def _published_names(schema: pa.Schema) -> dict[int, str]:
    """Those of the label column."""
    classes = _published_classes(schema)
    found = [classes["label"]] if "label" in classes else [names for names in classes.values() if names]
    return dict(enumerate(found[0])) if len(found) == 1 else {}
