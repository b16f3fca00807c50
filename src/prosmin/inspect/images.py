"""The images that are inspected: a folder with all its splits or any other source, and the state of each image."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from prosmin.data.sources import Source, files_mark, open_source, place_of, splits
from prosmin.data.sources.folder import SUFFIXES, FolderSource, images_among, walk
from prosmin.data.sources.remote import FileState, RemotePath, path_of
from prosmin.errors import UsageError


class Opened(NamedTuple):
    """Images to inspect, and a sentence on each folder that could not be listed."""

    source: Source
    notes: list[str]


def open_whole(spec: str, *, leave_out: Path) -> Opened:
    """The images a SPEC names: of a folder those of all its splits, without those below `leave_out`.

    A folder that cannot be listed is noted and left out.
    """
    path = path_of(spec.removeprefix("folder:")).expanduser()
    if not spec.startswith("folder:") or not path.is_dir():
        return Opened(open_source(spec), [])
    notes: list[str] = []
    listed: dict[str, FileState] = {}
    if isinstance(path, RemotePath):
        listed = path.files()
        names = images_among(listed)
    else:
        names = sorted(walk(path, on_error=lambda error: notes.append(_note(error))))
        own = os.path.relpath(os.path.realpath(leave_out), os.path.realpath(path)) + os.sep
        names = [name for name in names if not name.startswith(own)]
    if not names:
        raise UsageError(
            f"There are no images in the folder {path}. Allowed: files named {', '.join(SUFFIXES[:7])}, ... "
            f"in it or in its subfolders. {' '.join(notes)}".strip()
        )
    classes, labels = _classes(names)
    return Opened(FolderSource(spec, path, names, labels, classes, listed), notes)


def _note(error: OSError) -> str:
    return f"The folder {printable(error.filename)} cannot be listed ({error.strerror}): its images are missing here."


def _classes(names: list[str]) -> tuple[tuple[str, ...], torch.Tensor | None]:
    """Names of classes and the label of each image (N,): its first folder below the split, if every image has one."""
    below = [name.split(os.sep, 1)[1] if split else name for name, split in zip(names, splits_of(names), strict=True)]
    folders = [printable(os.path.dirname(name).split(os.sep, 1)[0]) for name in below]
    if not all(folders):
        return (), None
    number = {name: i for i, name in enumerate(sorted(set(folders)))}
    return tuple(number), torch.tensor([number[folder] for folder in folders])


def splits_of(keys: Sequence[str]) -> list[str | None]:
    """The split of each image, from the first folder of its path; None outside a split.

    A folder has splits if it contains a training split and another one: a class may be called `train` too.
    """
    first = [key.split(os.sep, 1)[0] if os.sep in key else "" for key in keys]
    named = {folder: split for split in ("test", "val", "train") for folder in splits.ALIASES[split]}
    found = {named[folder] for folder in set(first) if folder in named}
    if "train" not in found or len(found) < 2:
        return [None] * len(first)
    return [named.get(folder) for folder in first]


def name_of(source: Source, i: int) -> str:
    """The path of an image below the folder, bytes that are not UTF-8 as surrogates; elsewhere the image's key."""
    return source.names[i] if isinstance(source, FolderSource) else source.key(i)


def printable(name: str) -> str:
    """The name with bytes that are not UTF-8 replaced, as in `FolderSource.key`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def marks_of(source: Source) -> list[str]:
    """A hash of each image's place and of the state of its file: an image with another mark is read again."""
    place = place_of(source.spec)
    whole = "" if isinstance(source, FolderSource) else files_mark(source.spec, times=True) or ""
    marks = []
    for i in range(len(source)):
        if isinstance(source, FolderSource):
            name, state = source.names[i], source.state(i, times=True)
        else:
            name, state = str(i), whole
        text = os.fsencode("\0".join((place, name, state)))
        marks.append(hashlib.blake2b(text, digest_size=16).hexdigest())
    return marks


def is_link(source: Source, i: int) -> bool:
    """Whether the file of image i is a symbolic link."""
    return isinstance(source, FolderSource) and os.path.islink(source.path(i))  # a remote path is no file here


def modified(source: Source, i: int) -> float | None:
    """When the file of image i was changed last, in seconds since 1970; None if it has no file of its own."""
    return source.modified(i) if isinstance(source, FolderSource) else None
