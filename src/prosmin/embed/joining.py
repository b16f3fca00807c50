"""From the parts to the file, a few thousand rows in memory at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from prosmin.data.noting import Noting
from prosmin.data.pictures import check_readable
from prosmin.embed import columns
from prosmin.embed.parts import Parts
from prosmin.errors import ProsminError
from prosmin.files import writing

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
    """The pictures a part left out: number -> reason."""
    about = columns.told(_schema(path)) or {}
    return {int(number): reason for number, reason in about["unreadable"].items()}


def mark_of(path: Path) -> str | None:
    """What the files of a part's pictures were known by."""
    return (columns.told(_schema(path)) or {}).get("mark")


def join(parts: Parts, out: Path, source: Noting, about: dict[str, Any], *, max_bad: float) -> Joined:
    """All parts as one file with `about` in its metadata; too many unreadable pictures are an error."""
    paths = [parts.path(i) for i in range(len(parts))]
    unreadable = {number: reason for path in paths for number, reason in unreadable_of(path).items()}
    lines = [f"{source.key(number)}: {reason}" for number, reason in unreadable.items()]
    check_readable(lines, total=len(parts.numbers), max_bad=max_bad, spec=source.spec, option="--max-bad SHARE")
    dim = _schema(paths[0]).field("features").type.list_size
    schema = columns.schema(dim, about | {"unreadable": lines})
    rows = flagged = 0
    with (
        writing(out) as part,
        pq.ParquetWriter(part, schema, compression="zstd", use_dictionary=["label_name"]) as file,
    ):
        for group in _groups(paths):
            file.write_table(group.replace_schema_metadata(schema.metadata), row_group_size=ROWS)
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
        about = columns.told(pq.read_schema(out))
    except (pa.ArrowException, OSError):
        about = None
    if about is None or "settings" not in about:
        raise ProsminError(f"{out} exists and was not written by `prosmin embed`. Give another file with --out.")
    return about
