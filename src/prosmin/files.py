"""Writing files so that a reader, or the next start, never meets half of one."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prosmin.errors import ProsminError


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; renamed onto it when the block ends well, removed when it does not."""
    beside = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield beside
        flush(beside)
        beside.replace(path)
        flush(path.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ProsminError(
            f"{path} cannot be written: {error.strerror or error}. Free some space or choose another folder."
        ) from error
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """The whole text or nothing."""
    with writing(path) as part:
        part.write_text(text, encoding="utf-8")


def flush(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_hash(path: Path) -> str:
    """A hash of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
