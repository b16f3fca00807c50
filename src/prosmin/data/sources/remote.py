"""Files in object stores, through fsspec: `s3://`, `gs://`, `hf://` and every other protocol that it knows.

fsspec is imported at the first remote path.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from prosmin.errors import ProsminError, UsageError

PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub", "az": "adlfs",
    "abfs": "adlfs", "abfss": "adlfs", "http": "aiohttp", "https": "aiohttp", "sftp": "paramiko", "ssh": "paramiko",
}  # fmt: skip
"""The package for pip that reads a protocol."""

_VERSIONS = ("ETag", "etag", "md5Hash", "blob_id", "checksum")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
"""Entries of fsspec's descriptions of files that change when the contents do; each store has others."""

Result = TypeVar("Result")


def is_remote(path: object) -> bool:
    """Whether a path is a text such as s3://BUCKET/NAME."""
    return isinstance(path, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", path) is not None


def path_of(text: str | os.PathLike[str]) -> "Path | RemotePath":
    """The path of a text."""
    return RemotePath(text) if isinstance(text, str) and is_remote(text) else Path(text)


class FileState(NamedTuple):
    """What a listing says of a file."""

    size: int
    version: str  # hash of the contents or time of modification, whichever the store has; empty if neither
    modified: float | None  # in seconds since 1970

    def text(self, *, times: bool) -> str:
        """As `file_state` describes local files."""
        return f"{self.size} {self.version}" if times else str(self.size)


@dataclass(frozen=True)
class RemotePath:
    """A path of an object store, with those methods of pathlib's paths that sources use. Safe from several threads."""

    url: str

    def __str__(self) -> str:
        return self.url.rstrip("/")

    def __truediv__(self, name: str) -> "RemotePath":
        child = RemotePath(f"{self}/{name}")
        # Not parsed again: `#`, `?` and `::` in the name of a file would have a meaning in a URL.
        path = self._path.rstrip("/")  # empty: the root of an archive
        child.__dict__["_connection"] = (self._system, f"{path}/{name}" if path else name)
        return child

    @property
    def name(self) -> str:
        """The last part."""
        return str(self).rpartition("/")[2]

    def expanduser(self) -> "RemotePath":
        """Itself."""
        return self

    def absolute(self) -> "RemotePath":
        """Itself."""
        return self

    def exists(self) -> bool:
        """Whether there is a file or folder."""
        return self._kind is not None

    def is_file(self) -> bool:
        """Whether it is a file."""
        return self._kind == "file"

    def is_dir(self) -> bool:
        """Whether it is a folder: a prefix of other paths."""
        return self._kind == "directory"

    def subfolders(self) -> list[str]:
        """Names of the folders in it, sorted."""
        entries = self._asked(lambda: self._system.ls(self._path, detail=True))
        folders = (entry["name"].rstrip("/") for entry in entries if entry["type"] == "directory")
        return sorted(name.rpartition("/")[2] for name in folders)

    def files(self) -> dict[str, FileState]:
        """All files below it, by their sorted paths relative to it, as they are now."""

        def listed() -> dict[str, Any]:
            self._system.invalidate_cache(self._path)
            return self._system.find(self._path, detail=True)

        start = len(self._path.rstrip("/"))
        found = {path[start:].lstrip("/"): state_of(entry) for path, entry in self._asked(listed).items()}
        return dict(sorted(found.items()))

    def state(self) -> FileState:
        """What the store says of the file now."""

        def described() -> dict[str, Any]:
            self._system.invalidate_cache(self._path)
            return self._system.info(self._path)

        return state_of(self._asked(described))

    def read(self) -> bytes:
        """The bytes of the file. Raises OSError where it cannot be read."""
        try:
            return self._system.cat_file(self._path)
        except Exception as error:  # each store has its own errors
            raise OSError(_reason(error)) from None

    def open(self) -> Any:
        """The file, open for reading anywhere in it. Raises OSError where it cannot be read."""
        try:
            return self._system.open(self._path, "rb", cache_type="none")  # its readers ask for whole blocks
        except Exception as error:  # each store has its own errors
            raise OSError(_reason(error)) from None

    @cached_property
    def _connection(self) -> tuple[Any, str]:
        """The file system and the path in it."""
        return connect(self.url)

    @property
    def _system(self) -> Any:
        return self._connection[0]

    @property
    def _path(self) -> str:
        return self._connection[1]

    @cached_property
    def _kind(self) -> str | None:
        def described() -> str | None:
            try:
                return self._system.info(self._path)["type"]
            except (FileNotFoundError, NotADirectoryError):
                return None

        return self._asked(described)

    def _asked(self, question: Callable[[], Result]) -> Result:
        """The answer of the store; its error says what to check."""
        try:
            return question()
        except ProsminError:
            raise
        except Exception as error:  # each store has its own errors
            raise ProsminError(
                f"{self} cannot be opened: {_reason(error)}. Check the address, and that this machine has credentials "
                "for it (docs/data.md)."
            ) from None


def connect(url: str) -> tuple[Any, str]:
    """fsspec's file system for a URL, and the path in it; an error that names a missing package."""
    protocol = url.partition("://")[0]
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise ProsminError(f"{url} needs the package fsspec: pip install fsspec") from None
    try:
        return url_to_fs(url)
    except ImportError as error:
        package = PACKAGES.get(protocol)
        remedy = f"needs the package {package}: pip install {package}" if package else f"cannot be opened: {error}"
        raise ProsminError(f"{url} {remedy}") from None
    except ValueError as error:
        if "not known" not in str(error):
            raise ProsminError(f"{url} cannot be opened: {_reason(error)}.") from None
        raise UsageError(
            f"fsspec does not know the protocol {protocol}:// of {url}; allowed: s3://, gs://, hf:// and others that "
            "`python -c 'import fsspec; print(fsspec.available_protocols())'` lists."
        ) from None
    except FileNotFoundError:  # an archive in a chain of URLs
        raise
    except IsADirectoryError as error:  # zip://NAME without an archive behind ::
        raise UsageError(
            f"{url} cannot be opened: {_reason(error)}. A URL of an archive is zip://NAME::ARCHIVE."
        ) from None
    except Exception as error:  # a store that asks for credentials when it is opened
        raise ProsminError(f"{url} cannot be opened: {_reason(error)}. Check the credentials (docs/data.md).") from None


def state_of(entry: dict[str, Any]) -> FileState:
    """The state in a description by fsspec."""
    version = next((str(entry[name]) for name in (*_VERSIONS, *_TIMES) if entry.get(name)), "")
    time = next((entry[name] for name in _TIMES if entry.get(name)), None)
    return FileState(int(entry.get("size") or 0), version, _seconds(time))


def _seconds(time: Any) -> float | None:
    """A time since 1970: stores give seconds, datetimes or texts such as 2026-01-31T12:00:00Z."""
    try:
        time = datetime.fromisoformat(time) if isinstance(time, str) else time
    except ValueError:
        return None
    if isinstance(time, datetime):
        return time.timestamp()
    return float(time) if isinstance(time, int | float) else None


def _reason(error: Exception) -> str:
    """In one line: many errors of fsspec have only the path as their text."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, PermissionError):
        return f"permission denied ({error})" if str(error) else "permission denied"
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
