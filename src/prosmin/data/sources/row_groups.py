"""Columns of encoded images in Parquet files, and row groups of remote files that are read when they are needed."""

import threading
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from prosmin.data.sources.remote import RemotePath


def is_bytes(kind: pa.DataType) -> bool:
    """Encoded images."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def has_bytes(kind: pa.DataType) -> bool:
    """Hugging Face's struct."""
    return bool(pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)


def bytes_type(kind: pa.DataType) -> pa.DataType:
    """The type of the encoded images in a column of this type."""
    return kind.field("bytes").type if has_bytes(kind) else kind


def bytes_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The encoded images of a column, taken out of Hugging Face's struct if necessary."""
    return column.flatten()[column.type.get_field_index("bytes")] if has_bytes(column.type) else column


class RowGroup:
    """The encoded images of a row group of a remote file, read with the first of them and then kept in memory.

    Safe from several threads: each row group is read once, different ones at the same time.
    """

    def __init__(self, file: RemotePath, metadata: pq.FileMetaData, number: int, column: str) -> None:
        self._file, self._metadata, self._number, self._column = file, metadata, number, column
        self._rows: int = metadata.row_group(number).num_rows
        self._images: pa.ChunkedArray | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: int) -> Any:
        with self._lock:
            if self._images is None:
                self._images = self._read()
        return self._images[row]

    def _read(self) -> pa.ChunkedArray:
        """Raises OSError where it cannot be read."""
        with self._file.open() as opened:
            try:
                file = pq.ParquetFile(opened, metadata=self._metadata, pre_buffer=True)
                images = bytes_of(file.read_row_group(self._number, columns=[self._column]).column(0))
            except pa.ArrowException as error:
                raise OSError(f"the file is damaged or has changed: {error}") from None
        if len(images) != self._rows:
            raise OSError("the file has changed")
        return images
