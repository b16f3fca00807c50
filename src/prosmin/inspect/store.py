"""Rows of scanned images in a folder: one finished Parquet file, and parts of 512 rows that are not in it yet.

A row is found by its mark, which names an image and the state of its file. So a command that continues, and one that
runs again after some images changed, compute only the rows that are missing.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from prosmin.embed.parts import take
from prosmin.encoder.stored import metadata_of
from prosmin.errors import ProsminError
from prosmin.files import check_writable
from prosmin.interrupts import if_interrupted

PARTS = ".parts"
MARK = "mark"
HANDLES = 8
"""Files and row groups that stay open: rows are read nearly in the order in which they are stored."""


class Place(NamedTuple):
    """Where a row is stored."""

    path: Path
    group: int
    row: int  # within the row group


@dataclass(frozen=True)
class Store:
    """The rows of one set of images below a folder."""

    folder: Path
    name: str  # of its file, such as images.parquet
    settings: Mapping[str, Any]  # rows written with other settings are not used

    @property
    def file(self) -> Path:
        """The finished file."""
        return self.folder / self.name

    @property
    def parts(self) -> Path:
        """The folder of its parts."""
        return self.folder / PARTS / Path(self.name).stem

    def about(self, more: Mapping[str, Any] | None = None) -> bytes:
        """The metadata of its files."""
        return json.dumps({"scan": dict(self.settings), **(more or {})}).encode()

    def next_name(self) -> str:
        """The pattern of names of new parts, after those that are there."""
        found = [int(path.name.split("-")[0]) for path in self.parts.glob("[0-9]*-*.parquet")]
        return f"{max(found, default=-1) + 1:05d}-{{:05d}}.parquet"

    def places(self) -> dict[str, Place]:
        """The place of every row that can be used, by its mark. A damaged part counts as missing."""
        found: dict[str, Place] = {}
        for path in (self.file, *sorted(self.parts.glob("*.parquet"))):
            try:
                with pq.ParquetFile(path) as file:
                    if (metadata_of(file.schema_arrow) or {}).get("scan") != dict(self.settings):
                        continue
                    for group in range(file.num_row_groups):
                        marks = file.read_row_group(group, [MARK]).column(MARK).to_pylist()
                        found |= {mark: Place(path, group, row) for row, mark in enumerate(marks)}
            except (pa.ArrowException, OSError):
                continue
        return found

    def column(self, group: int, name: str) -> pa.Array:
        """A column of a row group of the finished file."""
        return _read_group(self.file, group, (name,)).column(name).combine_chunks()


@dataclass(frozen=True)
class Rows:
    """Stored rows in the order of their images."""

    places: Sequence[Place]
    _cached: Any = field(default_factory=lambda: lru_cache(HANDLES)(_read_group))

    def __len__(self) -> int:
        return len(self.places)

    def table(self, numbers: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """These rows."""
        groups: dict[tuple[Path, int], list[int]] = {}
        for at, number in enumerate(numbers):
            place = self.places[number]
            groups.setdefault((place.path, place.group), []).append(at)
        pieces = []
        for (path, group), spots in groups.items():
            whole = self._cached(path, group, tuple(columns))
            pieces.append(whole.take([self.places[numbers[at]].row for at in spots]))
        order = np.argsort([at for spots in groups.values() for at in spots], kind="stable")
        return pa.concat_tables(pieces).take(order).combine_chunks()

    def tables(self, columns: Sequence[str], *, size: int) -> Iterator[pa.Table]:
        """All rows in order, `size` at a time."""
        for first in range(0, len(self), size):
            yield self.table(range(first, min(first + size, len(self))), columns)

    def arrays(self, columns: Sequence[str], *, size: int = 4096) -> dict[str, NDArray[Any]]:
        """The values of all rows: (N,), and (N, F) of lists and bytes; null is NaN."""
        found: dict[str, list[NDArray[Any]]] = {name: [] for name in columns}
        for table in self.tables(columns, size=size):
            for name in columns:
                found[name].append(_array(table.column(name)))
        return {name: np.concatenate(pieces) for name, pieces in found.items()}


def _read_group(path: Path, group: int, columns: tuple[str, ...]) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:
            return file.read_row_group(group, list(columns)).replace_schema_metadata(None)
    except (pa.ArrowException, OSError) as error:
        raise ProsminError(f"{path} cannot be read: {error}. Remove it; the same command writes it again.") from None


def _array(column: pa.ChunkedArray) -> NDArray[Any]:
    kind, count = column.type, len(column)
    whole = column.combine_chunks()
    if pa.types.is_fixed_size_list(kind):
        return whole.flatten().to_numpy(zero_copy_only=False).reshape(count, kind.list_size)
    if pa.types.is_binary(kind):
        return np.frombuffer(b"".join(whole.to_pylist()), np.uint8).reshape(count, -1)
    if pa.types.is_string(kind):
        return np.array(whole.to_pylist(), dtype=object)
    if pa.types.is_floating(kind):
        whole = pc.fill_null(whole, float("nan"))
    return whole.to_numpy(zero_copy_only=False)


@contextmanager
def used_alone(folder: Path, outputs: Sequence[str]) -> Iterator[None]:
    """Make the folder and lock it; an error if another process uses it, or if it has such files of another program."""
    check_writable(folder)
    refuse_foreign(folder, outputs)
    try:
        (folder / PARTS).mkdir(parents=True, exist_ok=True)
        lock = (folder / PARTS / ".lock").open("w")
    except OSError as error:
        raise ProsminError(f"{folder} cannot be used: {error.strerror}. Give another folder with --out.") from None

    def abandon() -> None:
        if any((folder / PARTS).rglob("*.parquet")):
            return  # the same command continues with these
        shutil.rmtree(folder / PARTS, ignore_errors=True)
        with suppress(OSError):  # it is not empty: an earlier inspection is in it
            folder.rmdir()

    def remove_parts() -> None:
        shutil.rmtree(folder / PARTS, ignore_errors=True)

    with lock:
        if not take(lock):
            raise ProsminError(f"Another process is writing to {folder}. Wait for it, or give another one with --out.")
        try:
            with if_interrupted(abandon):
                yield
        except BaseException:
            abandon()
            raise
        with if_interrupted(remove_parts):
            remove_parts()


def refuse_foreign(folder: Path, outputs: Sequence[str]) -> None:
    """An error if the folder has files of these names, the first a Parquet file, that an inspection did not write."""
    there = [name for name in outputs if os.path.lexists(folder / name)]
    try:
        ours = "scan" in (metadata_of(pq.read_schema(folder / outputs[0])) or {})
    except (pa.ArrowException, OSError):
        ours = False
    if there and not ours:
        raise ProsminError(
            f"{folder} has a file {there[0]} that `prosmin inspect` did not write. Give another folder with --out."
        )
