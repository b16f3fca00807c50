"""What the pictures of a part are known by: a part of a killed command counts only while its files are the same."""

import hashlib
import os

from torch import Tensor

from prosmin.data.folder import FolderSource
from prosmin.data.noting import Noting
from prosmin.data.sources import files_mark


class PartMarks:
    """By the sizes of a part's own files, whose names the settings hold; elsewhere by those of the whole source."""

    def __init__(self, source: Noting) -> None:
        opened = source.source
        self._folder = opened if isinstance(opened, FolderSource) else None
        self._whole = "" if self._folder else files_mark(source.spec) or ""

    def __call__(self, numbers: Tensor) -> str:
        """A few letters that are others when a file of these pictures is another."""
        if self._folder is None:
            return self._whole
        sizes = " ".join(_size(os.path.join(self._folder.root, self._folder.names[i])) for i in numbers.tolist())
        return hashlib.blake2b(sizes.encode(), digest_size=8).hexdigest()


def _size(path: str) -> str:
    try:
        return str(os.stat(path).st_size)
    except OSError:
        return "none"
