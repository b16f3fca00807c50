"""How long does an exact search of a million images take, and where does the time go?

    python benchmarks/search.py --out benchmarks/results/search-cpu.json

A file as `prosmin embed` writes it, of random features around 1,000 centres and with row groups of 8,192, is written to
a temporary folder and searched by the key of an image; only the features matter for the time. The file is in the page
cache. Beside it: the same features compressed with zstd, a bare matrix product of features that are already in memory,
and, where faiss is installed, its exact index and an approximate one (HNSW).
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from prosmin.embed.rows import ROWS, compression, schema
from prosmin.encoder.stored import open_stored
from prosmin.machine import describe_machine

DIM, CENTRES, REPEATS = 384, 1_000, 5
APPROXIMATE = 50_000
"""Rows of the approximate index: building one of all takes too long."""


def features_of(first: int, count: int) -> np.ndarray:
    """Rows (count, DIM) that depend only on their numbers."""
    centres = np.random.default_rng(0).standard_normal((CENTRES, DIM), dtype=np.float32)
    random = np.random.default_rng([1, first])
    return centres[random.integers(0, CENTRES, count)] + 0.5 * random.standard_normal((count, DIM), dtype=np.float32)


def write(path: Path, count: int, *, codec: str | None = None) -> None:
    """A file of `count` images with the columns of `prosmin embed` that a search reads."""
    full = schema(DIM, {"run": "none", "settings": {"encoder": "none"}})
    found = pa.schema([full.field("key"), full.field("features")], metadata=full.metadata)
    with pq.ParquetWriter(path, found, compression=codec or compression(found), use_dictionary=False) as file:
        for first in range(0, count, ROWS):
            values = features_of(first, min(ROWS, count - first))
            keys = pa.array([f"folder/{first + i:07d}.jpg" for i in range(len(values))])
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), DIM)
            file.write_table(pa.table([keys, vectors], schema=found), row_group_size=ROWS)


def timed(work: Callable[[], Any]) -> dict[str, float]:
    """Seconds after a first call that warms up: the least and the median of the wall clock, and the processor's."""
    work()
    wall, cpu = [], []
    for _ in range(REPEATS):
        began = time.perf_counter(), time.process_time()
        work()
        wall.append(time.perf_counter() - began[0])
        cpu.append(time.process_time() - began[1])
    found = {"least": min(wall), "median": statistics.median(wall), "processor": statistics.median(cpu)}
    return {name: float(f"{value:.3g}") for name, value in found.items()}


def search(path: Path, key: str) -> list[Any]:
    """As `prosmin search KEY --in FILE` does it."""
    file = open_stored(path)
    row = file.row(key)
    assert row is not None
    return file.search(file.features(row), 24, leave_out=row)


def recall(index: Any, bank: np.ndarray) -> float:
    """The share of the true 25 nearest rows that an index finds, over 100 rows of the bank."""
    queries = bank[:: len(bank) // 100][:100]
    exact = (torch.from_numpy(queries) @ torch.from_numpy(bank).T).topk(25).indices.tolist()
    _, found = index.search(queries, 25)
    shares = [len({*own} & {*true}) / 25 for own, true in zip(found.tolist(), exact, strict=True)]
    return round(statistics.fmean(shares), 3)


def with_faiss(bank: np.ndarray, query: np.ndarray) -> dict[str, Any]:
    """Seconds of faiss's exact index over all rows and of an approximate one over some; empty if not installed."""
    try:
        import faiss  # type: ignore[import-not-found]
    except ImportError:
        return {}
    found: dict[str, Any] = {"version": faiss.__version__}
    for index, rows in ((faiss.IndexFlatIP(DIM), len(bank)), (faiss.IndexHNSWFlat(DIM, 32), APPROXIMATE)):
        began = time.perf_counter(), time.process_time()
        index.add(bank[:rows])
        found[type(index).__name__] = {
            "rows": rows,
            "build": round(time.perf_counter() - began[0], 1),
            "build, processor": round(time.process_time() - began[1], 1),
            "search": timed(lambda index=index: index.search(query[None], 25)),  # type: ignore[misc]
            "recall": recall(index, bank[:rows]),
        }
    return found


def main() -> None:
    """Write the files, search them, time the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    seconds: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        plain, packed = Path(folder) / "plain.parquet", Path(folder) / "zstd.parquet"
        write(plain, options.rows)
        key = f"folder/{options.rows // 2:07d}.jpg"
        seconds["search"] = timed(lambda: search(plain, key))
        seconds["reading the features alone"] = timed(
            lambda: [len(b) for b in pq.ParquetFile(plain, memory_map=True).iter_batches(2**14, columns=["features"])]
        )
        write(packed, options.rows, codec="zstd")
        seconds["search, features with zstd"] = timed(lambda: search(packed, key))
        sizes = {"plain": plain.stat().st_size, "zstd": packed.stat().st_size}
        matches = [int(Path(match.key).stem) for match in search(plain, key)]
    starts = range(0, options.rows, ROWS)
    bank = np.concatenate([features_of(first, min(ROWS, options.rows - first)) for first in starts])
    bank /= np.linalg.norm(bank, axis=1, keepdims=True)
    query = bank[options.rows // 2]
    matrix, vector = torch.from_numpy(bank), torch.from_numpy(query)
    seconds["product in memory"] = timed(lambda: (matrix @ vector).topk(25))
    assert set((matrix @ vector).topk(25).indices.tolist()) == {*matches, options.rows // 2}, "the search is not exact"
    found = {
        "meaning": "seconds of one search for 24 neighbours; the file is in the page cache",
        "rows": options.rows,
        "dimensions": DIM,
        "bytes": sizes,
        "seconds": seconds,
        "faiss, features in memory": with_faiss(bank, query),
        "hardware": describe_machine(torch.device("cpu")),
        "command": "python benchmarks/search.py --out benchmarks/results/search-cpu.json",
    }
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
