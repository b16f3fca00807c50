"""What pictures are known by: what was made of them counts only while their files are the same.

A file is the same while it has its size and its time of modification. Other pixels of the same size, as in BMP files or
in pictures that were mended in place, show in the time alone. Processes of a launcher, which may be on machines with
copies of the files, go by the sizes.
"""

import hashlib
import os

from torch import Tensor

from prosmin.data.folder import FolderSource
from prosmin.data.noting import Noting
from prosmin.data.sources import file_state, files_mark


class PartMarks:
    """By the files of a part's own pictures, whose names the settings hold; elsewhere by those of the whole source."""

    def __init__(self, source: Noting, *, times: bool) -> None:
        opened = source.source
        self._folder, self._times = opened if isinstance(opened, FolderSource) else None, times
        self._whole = "" if self._folder else files_mark(source.spec, times=times) or ""

    def __call__(self, numbers: Tensor) -> str:
        """A few letters that are others when a file of these pictures is another; empty for a published set."""
        if self._folder is None:
            return self._whole
        paths = (os.path.join(self._folder.root, self._folder.names[i]) for i in numbers.tolist())
        states = " ".join(_state(path, times=self._times) for path in paths)
        return hashlib.blake2b(states.encode(), digest_size=8).hexdigest()


def _state(path: str, *, times: bool) -> str:
    try:
        return file_state(path, times=times)
    except OSError:
        return "none"
