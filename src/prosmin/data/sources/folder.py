"""SPEC `folder:PATH` and `folder:PATH@SPLIT`: image files, flat or in one folder per class; PATH may be remote.

A split is a subfolder of that name; a folder that contains `train` and `test` (or `val`) means its `train`.
If every image lies in a subfolder, the subfolder is the class; deeper folders do not matter. Files
without an image suffix are skipped. ImageNet and its variants (-A, -C, -O, -R) are read as published,
with WordNet numbers as classes: `folder:ROOT/gaussian_noise/3`.
"""

import os
import stat
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from prosmin.data.sources import splits
from prosmin.data.sources.kind import SourceKind
from prosmin.data.sources.remote import FileState, RemotePath, is_remote, path_of
from prosmin.errors import MissingFileError, ProsminError, UsageError
from prosmin.messages import closest, did_you_mean

if TYPE_CHECKING:  # importing torch takes seconds; the error for a missing folder need not wait for it
    from torch import Tensor

SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm",
)  # fmt: skip

_UNKNOWN = 2**20
"""Bytes to ask for where a file does not report its size."""

_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_BINARY", "O_CLOEXEC", "O_NONBLOCK"))
"""Flags for opening files, where the system has them; O_NONBLOCK: do not wait for a pipe."""


@dataclass(frozen=True)
class FolderSource:
    """Files under one folder, in the order of their paths."""

    spec: str
    root: Path | RemotePath
    names: list[str]  # relative to root
    labels: "Tensor | None"
    classes: tuple[str, ...]
    listed: dict[str, FileState] = field(default_factory=dict)  # of a remote folder: the files when it was opened

    def __len__(self) -> int:
        return len(self.names)

    def key(self, i: int) -> str:
        """The file's path below the folder; bytes that are not UTF-8 are replaced."""
        return os.fsencode(self.names[i]).decode("utf-8", "replace")

    def read(self, i: int) -> bytes:
        """The file's bytes."""
        if isinstance(self.root, RemotePath):
            return (self.root / self.names[i]).read()
        return read_file(self.path(i))

    def path(self, i: int) -> str:
        """The file's whole path."""
        return f"{self.root}{os.sep}{self.names[i]}"

    def state(self, i: int, *, times: bool) -> str:
        """The size of the file and, with `times`, its time of modification; `none` if it has vanished.

        A remote file's state is that of the listing: asking for each file would take a request per image.
        """
        if isinstance(self.root, RemotePath):
            return self.listed[self.names[i]].text(times=times)
        try:
            return file_state(self.path(i), times=times)
        except OSError:
            return "none"

    def modified(self, i: int) -> float | None:
        """When the file was changed last, in seconds since 1970; None if that is unknown."""
        if isinstance(self.root, RemotePath):
            return self.listed[self.names[i]].modified
        try:
            return os.stat(self.path(i)).st_mtime
        except OSError:
            return None


def file_state(path: str, *, times: bool) -> str:
    """The size of a local file and, with `times`, its time of modification."""
    found = os.stat(path)
    return f"{found.st_size} {found.st_mtime_ns}" if times else str(found.st_size)


def read_file(path: str) -> bytes:
    """All bytes of a file, with as few system calls as possible. Raises OSError for a pipe or a device.

    Each call releases Python's lock and waits for it again, among the decoding threads; `open` makes eight calls.
    """
    file = os.open(path, _FLAGS)
    try:
        state = os.fstat(file)
        if not stat.S_ISREG(state.st_mode):
            raise OSError("not a file")
        size = state.st_size
        data = os.read(file, size or _UNKNOWN)
        # A read may return less than the file contains, and some file systems report every size as 0.
        while data and len(data) != size and (more := os.read(file, _UNKNOWN)):
            data += more
        return data
    finally:
        os.close(file)


def open_folder(rest: str) -> FolderSource:
    """The images below a folder."""
    import torch

    root = find_folder(rest)
    listed = root.files() if isinstance(root, RemotePath) else {}
    names = sorted(walk(root)) if isinstance(root, Path) else images_among(listed)
    if not names:
        raise UsageError(
            f"There are no images in the folder {root}. Allowed: files named {', '.join(SUFFIXES[:7])}, ..., "
            "flat or in one folder per class."
        )
    folders = [name.split(os.sep, 1)[0] if os.sep in name else "" for name in names]
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()
    if all(folders):
        # Folders without images keep their number, so that the splits of a set number the classes alike.
        inside = _subfolders(root) if isinstance(root, Path) else sorted(set(folders))
        classes = tuple(name for name in inside if _is_visible(name))
        number = {name: i for i, name in enumerate(classes)}
        labels = torch.tensor([number[folder] for folder in folders])
    return FolderSource(f"folder:{rest}", root, names, labels, classes, listed)


def files(rest: str) -> Collection[str]:
    """The paths of its images; of remote ones with their states."""
    root = find_folder(rest)
    if isinstance(root, RemotePath):
        listed = root.files()
        return {f"{root}/{name}": listed[name] for name in images_among(listed)}
    return [f"{root}{os.sep}{name}" for name in sorted(walk(root))]


def other_split(rest: str, split: str) -> str:
    """The rest of another split's SPEC: a subfolder, or a folder beside this one.

    If several folders match (ImageNet has an unlabelled `test` beside `val`), one with this split's classes is used.
    """
    base = rest.rpartition("@")[0] if not path_of(rest).expanduser().is_dir() and "@" in rest else rest
    inside = {f"{base}@{name}": path_of(base) / name for name in splits.candidates(split)}
    beside = {path: path_of(path) for path in splits.renamed(str(path_of(base)), split)}
    for places in (inside, beside):
        found = [(other, path) for other, path in places.items() if path.expanduser().is_dir()]
        if len(found) > 1:
            classes = set(_subfolders(find_folder(rest)))
            found.sort(key=lambda place: classes.isdisjoint(_subfolders(place[1].expanduser())))
        if found:
            return found[0][0]
    raise UsageError(
        f"The data folder:{base} has no split {split!r}: there is no folder {path_of(base) / split}. "
        "Give the other images as a separate SPEC."
    )


def find_folder(rest: str) -> Path | RemotePath:
    """The folder of images, that of the split included."""
    path = path_of(rest).expanduser()
    if not rest:
        raise UsageError("The data 'folder:' names no folder; write folder:PATH or folder:PATH@SPLIT.")
    if not path.is_dir() and "@" in rest:
        base, _, split = rest.rpartition("@")
        folder = path_of(base).expanduser()
        if folder.is_dir():
            return folder / splits.choose(split, _subfolders(folder), spec=f"folder:{base}")
    if not path.is_dir():
        name = f"The folder {path.absolute()} of the data folder:{rest}"
        if path.is_file():
            raise UsageError(f"{name} is a file, not a folder.")
        raise MissingFileError(f"{name} does not exist.{_suggestion(rest)}")
    inside = set(_subfolders(path))
    train = next((name for name in splits.ALIASES["train"] if name in inside), None)
    return path / train if train and inside & set(splits.ALIASES["test"]) else path


KIND = SourceKind(
    name="folder", form="folder:PATH[@SPLIT]", open=open_folder, other_split=other_split, files=files
)  # fmt: skip


def _suggestion(rest: str) -> str:
    """The folder beside the missing one with the most similar name; nothing for a remote one."""
    if is_remote(rest):
        return ""
    base, at, split = rest.rpartition("@")
    for name, tail in ((base, at + split), (rest, "")):
        above = Path(name).expanduser().parent
        if name and above.is_dir() and os.access(above, os.R_OK | os.X_OK):
            near = closest(Path(name).name, _subfolders(above))
            if near:
                return did_you_mean(f"folder:{Path(name).with_name(near)}{tail}")
    return ""


def _subfolders(folder: Path | RemotePath) -> list[str]:
    if isinstance(folder, RemotePath):
        return folder.subfolders()
    try:
        return sorted(entry.name for entry in os.scandir(folder) if _is_folder(entry))
    except OSError as error:
        raise ProsminError(f"The folder {folder} cannot be listed: {error.strerror}.") from None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """False also for a link that leads nowhere or to itself."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def refuse(error: OSError) -> None:
    """An error for a folder that cannot be listed."""
    raise ProsminError(f"The folder {error.filename} cannot be listed: {error.strerror}.")


def walk(root: Path, *, on_error: Callable[[OSError], None] = refuse) -> list[str]:
    """The image files below a folder. Links are followed, last, and no folder is visited twice.

    `on_error` is called with the error of each folder that cannot be listed.
    """
    names: list[str] = []
    visited: set[str] = set()
    starts = [str(root)]
    for start in starts:  # grows by the links that are found
        for folder, subfolders, files in os.walk(start, onerror=on_error):
            if (place := os.path.realpath(folder)) in visited:
                subfolders.clear()
                continue
            visited.add(place)
            subfolders[:] = sorted(filter(_is_visible, subfolders))
            starts += [path for s in subfolders if os.path.islink(path := os.path.join(folder, s))]
            below = os.path.relpath(folder, root)
            prefix = "" if below == "." else below + os.sep
            names += [prefix + f for f in files if _is_visible(f) and f.lower().endswith(SUFFIXES)]
    return names


def images_among(names: Iterable[str]) -> list[str]:
    """The paths of images that are in no hidden folder."""
    return [name for name in names if name.lower().endswith(SUFFIXES) and all(map(_is_visible, name.split("/")))]


def _is_visible(name: str) -> bool:
    """Not hidden, and not what macOS leaves in archives."""
    return not name.startswith(".") and name != "__MACOSX"
