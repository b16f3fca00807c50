"""Features in the Parquet files of `prosmin embed` and `prosmin inspect`: their encoder, and the most similar rows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from prosmin.encoder.detectors import chord
from prosmin.errors import MissingFileError, ProsminError, UsageError

IMAGES = "images.parquet"
"""The file in a folder that `prosmin inspect` wrote."""
_ROWS = 2**13  # compared at once: 12 MiB for 384 dimensions


class Match(NamedTuple):
    """An image of a file, and its distance from the query, 0 to 2."""

    key: str
    distance: float


@dataclass(frozen=True)
class Stored:
    """A file with one row per image and the columns `key` and `features`; nothing of it stays in memory."""

    path: Path
    run: str  # the encoder that made the features, as `load` takes it
    encoder: str  # hash of its weights

    def check_encoder(self, found: str | None) -> None:
        """An error if an encoder with another hash is to be compared with the features."""
        if found != self.encoder:
            raise ProsminError(
                f"The features of {self.path} were made by the encoder {self.run} with the hash {self.encoder}, and "
                f"this one has {found}. Search with that encoder, or embed the images again with this one."
            )

    def row(self, key: str) -> int | None:
        """The row of the image with this key."""
        first = 0
        for batch in self._file.iter_batches(_ROWS, columns=["key"]):
            if (found := pc.index(batch.column(0), key).as_py()) >= 0:
                return first + found
            first += len(batch)
        return None

    def features(self, row: int) -> Tensor:
        """The features of a row (1, D)."""
        return torch.tensor(self._take("features", [row]))

    def search(self, query: Tensor, k: int, *, leave_out: int | None = None) -> list[Match]:
        """The k nearest rows of a query (1, D), nearest first, without the row `leave_out`; all if there are fewer."""
        if k < 1:
            raise UsageError(f"k is {k}; allowed: 1 or more.")
        cosines, first = np.empty(self._file.metadata.num_rows, np.float32), 0
        for batch in self._file.iter_batches(_ROWS, columns=["features"]):
            cosines[first : first + len(batch)] = _cosines(_matrix(batch), query[0].numpy())
            first += len(batch)
        others = len(cosines)
        if leave_out is not None:
            cosines[leave_out], others = -np.inf, others - 1
        best = torch.from_numpy(cosines).topk(min(k, others))
        keys = self._take("key", best.indices.tolist())
        return [Match(*pair) for pair in zip(keys, chord(best.values).tolist(), strict=True)]

    @cached_property
    def _file(self) -> pq.ParquetFile:
        return pq.ParquetFile(self.path, memory_map=True)

    def _take(self, column: str, rows: Sequence[int]) -> list[Any]:
        """Values of some rows; only their row groups are read."""
        counts = [self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)]
        starts = np.cumsum([0, *counts])
        groups = np.searchsorted(starts, rows, side="right") - 1
        places = zip(groups.tolist(), (rows - starts[groups]).tolist(), strict=True)
        return [self._file.read_row_group(i, columns=[column])[column][place].as_py() for i, place in places]


def _matrix(batch: pa.RecordBatch) -> NDArray[np.float32]:
    """The features of a batch (n, D), not copied."""
    return batch.column("features").flatten().to_numpy().reshape(len(batch), -1)


def _cosines(bank: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """(n, D), (D,) -> (n,). A row of zeros is similar to none.

    By einsum, in this thread: BLAS would divide every batch among its threads, which is far slower while other programs
    use the cores.
    """
    lengths = np.sqrt(np.einsum("nd,nd->n", bank, bank) * np.einsum("d,d", query, query))
    return np.einsum("nd,d->n", bank, query) / np.maximum(lengths, 1e-12)


def open_stored(within: Path | str) -> Stored:
    """The file at this path, or in this folder of an inspection; an error if prosmin did not write it."""
    path = Path(within).expanduser()
    path = path / IMAGES if path.is_dir() else path
    if not path.is_file():
        raise MissingFileError(
            f"{path} does not exist. Give a folder that `prosmin inspect` wrote, or a file of `prosmin embed`."
        )
    try:
        about = metadata_of(pq.read_schema(path)) or {}
        return Stored(path, about["run"], about["settings"]["encoder"])
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ProsminError(
            f"{path} cannot be searched: neither `prosmin inspect` nor `prosmin embed` wrote it, or it is damaged "
            f"({error}). Write it again."
        ) from None


def metadata_of(found: pa.Schema) -> dict[str, Any] | None:
    """What prosmin wrote into the metadata of a schema; None if another program wrote the file."""
    text = (found.metadata or {}).get(b"prosmin")
    try:
        about = json.loads(text) if text else None
    except ValueError:
        return None
    return about if isinstance(about, dict) else None
