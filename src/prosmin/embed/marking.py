"""What pictures are known by: what was made of them counts only while their files are the same.

A file is the same while it has its size and its time of modification. Other pixels of the same size, as in BMP files or
in pictures that were mended in place, show in the time alone. Processes of a launcher, which may be on machines with
copies of the files, go by the sizes.
"""

import hashlib
import os
from collections.abc import Iterable

from torch import Tensor

from prosmin.data.folder import FolderSource
from prosmin.data.noting import Noting
from prosmin.data.sources import FILES, files_mark, parse
from prosmin.errors import ProsminError


class PartMarks:
    """By the files of a part's own pictures, whose names the settings hold; elsewhere by those of the whole source."""

    def __init__(self, source: Noting, *, times: bool) -> None:
        opened = source.source
        self._folder, self._times = opened if isinstance(opened, FolderSource) else None, times
        mark = timed_mark if times else files_mark
        self._whole = "" if self._folder else mark(source.spec) or ""

    def __call__(self, numbers: Tensor) -> str:
        """A few letters that are others when a file of these pictures is another; empty for a published set."""
        if self._folder is None:
            return self._whole
        paths = (os.path.join(self._folder.root, self._folder.names[i]) for i in numbers.tolist())
        states = " ".join(_state(path, times=self._times) for path in paths)
        return hashlib.blake2b(states.encode(), digest_size=8).hexdigest()


def timed_mark(spec: str) -> str | None:
    """`files_mark` with the files' times: a hash of names, sizes and times of modification.

    None where a SPEC stands for a published set, or where its files are not there.
    """
    scheme, rest = parse(spec)
    if scheme not in FILES:
        return None
    digest = hashlib.blake2b(digest_size=8)
    try:
        for path in FILES[scheme](rest):
            digest.update(os.fsencode(f"{path} {_state(path, times=True)}\n"))
    except ProsminError:
        return None
    return digest.hexdigest()


def timed_marks(specs: Iterable[str]) -> dict[str, str]:
    """`timed_mark` of each SPEC that has one."""
    marks = {spec: timed_mark(spec) for spec in dict.fromkeys(specs)}
    return {spec: mark for spec, mark in marks.items() if mark is not None}


def _state(path: str, *, times: bool) -> str:
    try:
        found = os.stat(path)
    except OSError:
        return "none"
    return f"{found.st_size} {found.st_mtime_ns}" if times else str(found.st_size)
