"""Where images come from: a SPEC such as `photos@test` or `folder:PATH` names a source.

A source knows how many images it has, their labels if there are any, and how to read one; it decodes
nothing. A new one is two functions in a file of its own and a line in each dictionary here.
"""

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from torch import Tensor

from prosmin.data.sources import folder, huggingface, parquet, photos, splits, torchvision_sets, webdataset
from prosmin.errors import ProsminError, UsageError
from prosmin.messages import closest, did_you_mean


class Source(Protocol):
    """Images by number, read one at a time; reading is safe from several threads."""

    @property
    def spec(self) -> str:
        """The SPEC that opens it."""

    @property
    def labels(self) -> Tensor | None:
        """(N,) int64, or None."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the labels; empty without labels."""

    def __len__(self) -> int: ...

    def key(self, i: int) -> str:
        """Path or name of image i."""

    def read(self, i: int) -> bytes | Tensor:
        """Image i: encoded bytes, or uint8 (3, H, W). Raises OSError where it cannot be read."""


SOURCES: dict[str, Callable[[str], Source]] = {
    "photos": photos.open_photos,
    "folder": folder.open_folder,
    "parquet": parquet.open_parquet,
    "torchvision": torchvision_sets.open_torchvision,
    "hf": huggingface.open_huggingface,
    "webdataset": webdataset.open_webdataset,
}
"""What opens each scheme, given the part of the SPEC behind it."""

OTHER_SPLITS: dict[str, Callable[[str, str], str]] = {
    "photos": lambda rest, split: splits.choose(split, photos.SPLITS, spec="photos"),
    "folder": folder.other_split,
    "parquet": parquet.other_split,
    "torchvision": torchvision_sets.other_split,
    "hf": huggingface.other_split,
    "webdataset": webdataset.other_split,
}
"""What finds another split of a scheme, given the part of the SPEC behind it and the split's name."""

FILES: dict[str, Callable[[str], list[str]]] = {
    "folder": folder.files,
    "parquet": parquet.files,
    "webdataset": webdataset.files,
}
"""What names the files of a scheme, where a user may put others in their place."""

FORMS = (
    "photos[@train|test|ood], folder:PATH[@SPLIT], parquet:PATH[@SPLIT], torchvision:NAME@ROOT[@SPLIT], "
    "hf:NAME[@SPLIT], webdataset:PATTERN"
)


def open_source(spec: str) -> Source:
    """The source a SPEC names."""
    scheme, rest = parse(spec)
    return SOURCES[scheme](rest)


def split_spec(spec: str, split: str) -> str:
    """The SPEC of another split of the same source: ("photos", "test") -> "photos@test".

    Where a source has no `test` but a `val` split, as ImageNet does, that is meant by `test`.
    """
    scheme, rest = parse(spec)
    return f"{scheme}{'@' if scheme == 'photos' else ':'}{OTHER_SPLITS[scheme](rest, split)}"


def place_of(spec: str) -> str:
    """The SPEC with its path resolved and the split that is meant where none is named: one text for one place."""
    scheme, _, rest = spec.partition(":")
    if scheme not in ("hf", "torchvision"):
        return f"{scheme}:{_resolved(rest)}" if rest else spec
    parts = rest.split("@")
    path = 1 if scheme == "torchvision" else 0  # torchvision:NAME@DIR@SPLIT, hf:NAME@SPLIT
    if len(parts) == path + 1:
        parts.append("train")
    if len(parts) > path:
        parts[path] = _resolved(parts[path])
    return f"{scheme}:{'@'.join(parts)}"


def _resolved(path: str) -> str:
    return os.path.realpath(os.path.expanduser(path))


def files_mark(spec: str, *, times: bool = False) -> str | None:
    """A hash of the names and sizes of the files behind a SPEC: another one, other images.

    With `times` their times of modification count too. None where it stands for a published set, or where its files
    are not there.
    """
    scheme, rest = parse(spec)
    if scheme not in FILES:
        return None
    digest = hashlib.blake2b(digest_size=8)
    try:
        for path in FILES[scheme](rest):
            digest.update(os.fsencode(f"{path} {file_state(path, times=times)}\n"))
    except (OSError, ProsminError):
        return None
    return digest.hexdigest()


def tree_mark(path: str) -> str:
    """The same for a file, by its bytes, or for all files below a folder, by their names and sizes; empty: nothing."""
    place = Path(path).expanduser()
    try:
        if place.is_file():
            return hashlib.blake2b(place.read_bytes(), digest_size=8).hexdigest()
        found = sorted(
            f"{file.relative_to(place)} {file.stat().st_size}" for file in place.rglob("*") if file.is_file()
        )
    except OSError:
        return ""
    return hashlib.blake2b("\n".join(found).encode("utf-8", "replace"), digest_size=8).hexdigest() if found else ""


def file_state(path: str, *, times: bool) -> str:
    """The size of a file and, with `times`, when it was written to."""
    found = os.stat(path)
    return f"{found.st_size} {found.st_mtime_ns}" if times else str(found.st_size)


def files_marks(specs: Iterable[str], *, times: bool = False) -> dict[str, str]:
    """`files_mark` of each SPEC that has one."""
    marks = {spec: files_mark(spec, times=times) for spec in dict.fromkeys(specs)}
    return {spec: mark for spec, mark in marks.items() if mark is not None}


def parse(spec: str) -> tuple[str, str]:
    """The scheme of a SPEC and what stands behind it."""
    if spec == "photos" or spec.startswith("photos@"):
        return "photos", spec[len("photos@") :]
    scheme, colon, rest = spec.partition(":")
    if colon and scheme in SOURCES and scheme != "photos":
        return scheme, rest
    raise UsageError(f"The data {spec!r} names no source.{_meant(spec)} Allowed: {FORMS}.")


def _meant(spec: str) -> str:
    """What may have been meant: a path without its scheme, or a scheme with a slip of the hand."""
    path = Path(spec).expanduser()
    if spec and path.is_dir():
        return did_you_mean(f"folder:{spec}")
    if spec and path.is_file():
        return did_you_mean(f"parquet:{spec}") if path.suffix == ".parquet" else " A single file is no source."
    scheme, sign, rest = spec.partition(":") if ":" in spec else spec.partition("@")
    close = closest(scheme.lower(), SOURCES)
    if close == "photos":
        return did_you_mean(f"photos@{rest}" if rest else "photos")
    return did_you_mean(f"{close}:{rest}" if close and sign == ":" else None)
