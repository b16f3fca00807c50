"""Where images come from: a SPEC such as `photos@test` or `folder:PATH` names a source.

A new kind of source is one file with its `SourceKind`, listed in `KINDS`.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from prosmin.data.sources import folder, huggingface, parquet, photos, torchvision_sets, webdataset
from prosmin.data.sources.folder import file_state
from prosmin.data.sources.kind import Source, SourceKind
from prosmin.data.sources.remote import is_remote
from prosmin.errors import ProsminError, UsageError
from prosmin.messages import closest, did_you_mean

__all__ = ["Source", "SourceKind"]

KINDS: dict[str, SourceKind] = {
    kind.name: kind
    for kind in (photos.KIND, folder.KIND, parquet.KIND, torchvision_sets.KIND, huggingface.KIND, webdataset.KIND)
}
FORMS = ", ".join(kind.form for kind in KINDS.values())


def open_source(spec: str) -> Source:
    """The source a SPEC names."""
    kind, rest = parse(spec)
    return kind.open(rest)


def spec_of(text: str) -> str:
    """The SPEC of a folder's path; a SPEC stays as it is. A path that does not exist is taken for a folder."""
    if is_remote(text):
        return f"folder:{text}"
    path = Path(text).expanduser()
    if path.is_dir() or not (_kind(text) or ":" in text or path.is_file()):
        return f"folder:{text}"
    return text


def split_spec(spec: str, split: str) -> str:
    """The SPEC of another split of the same source: ("photos", "test") -> "photos@test".

    `test` means `val` where a source has only that, as ImageNet does.
    """
    kind, rest = parse(spec)
    return f"{kind.name}{kind.separator}{kind.other_split(rest, split)}"


def parse(spec: str) -> tuple[SourceKind, str]:
    """The kind of a SPEC, and the part after its name and separator."""
    kind = None if is_remote(spec) else _kind(spec)  # hf://... is a path, hf:... a set
    if kind is None:
        raise UsageError(f"The data {spec!r} names no source.{_suggestion(spec)} Allowed: {FORMS}.")
    return kind, spec[len(kind.name + kind.separator) :]


def _kind(spec: str) -> SourceKind | None:
    for kind in KINDS.values():
        if spec.startswith(kind.name + kind.separator) or (spec == kind.name and kind.separator == "@"):
            return kind
    return None


def _suggestion(spec: str) -> str:
    """For a path without the name of its kind, and for a misspelt kind."""
    if is_remote(spec):
        return did_you_mean(f"parquet:{spec}" if spec.endswith(".parquet") else f"folder:{spec}")
    path = Path(spec).expanduser()
    if spec and path.is_dir():
        return did_you_mean(f"folder:{spec}")
    if spec and path.is_file():
        return did_you_mean(f"parquet:{spec}") if path.suffix == ".parquet" else " A single file is no source."
    name, separator, rest = spec.partition(":") if ":" in spec else spec.partition("@")
    close = closest(name.lower(), KINDS)
    if close == "photos":
        return did_you_mean(f"photos@{rest}" if rest else "photos")
    return did_you_mean(f"{close}:{rest}" if close and separator == ":" else None)


def group_names(spec: str, keys: Iterable[str]) -> list[str] | None:
    """The name of each image's group, from the images' keys; None where a source has no groups."""
    kind = _kind(spec)
    return kind.groups(keys) if kind is not None and kind.groups is not None else None


def place_of(spec: str) -> str:
    """The SPEC with its path resolved and its default split named, so that two texts for one place are equal."""
    name, _, rest = spec.partition(":")
    return f"{name}:{KINDS[name].place(rest)}" if rest and name in KINDS else spec


def files_mark(spec: str, *, times: bool = False) -> str | None:
    """A hash of the paths and sizes of a source's files, with `times` of their times of modification too.

    None for a published set, and where the files are missing.
    """
    kind, rest = parse(spec)
    if kind.files is None:
        return None
    digest = hashlib.blake2b(digest_size=8)
    try:
        files = kind.files(rest)
        for path in files:
            state = files[path].text(times=times) if isinstance(files, Mapping) else file_state(path, times=times)
            digest.update(os.fsencode(f"{path} {state}\n"))
    except (OSError, ProsminError):
        return None
    return digest.hexdigest()


def files_marks(specs: Iterable[str], *, times: bool = False) -> dict[str, str]:
    """`files_mark` of each SPEC that has one."""
    marks = {spec: files_mark(spec, times=times) for spec in dict.fromkeys(specs)}
    return {spec: mark for spec, mark in marks.items() if mark is not None}


def tree_mark(path: str) -> str:
    """A hash of a file's bytes, or of the names and sizes of all files below a folder; empty where there are none."""
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
