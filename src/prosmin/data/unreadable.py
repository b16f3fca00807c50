"""A source whose unreadable images are noted by number, with a blank in their place, for whoever needs every row."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from prosmin.data.decode import PictureError
from prosmin.data.image_sets import read_picture
from prosmin.data.sources import Source


@dataclass(frozen=True)
class Noting:
    """Images decoded where they are read. Safe from several threads: a number is noted by whoever reads it."""

    source: Source
    unreadable: dict[int, str] = field(default_factory=dict)  # number -> reason

    @property
    def spec(self) -> str:
        """The SPEC that opens it."""
        return self.source.spec

    @property
    def labels(self) -> Tensor | None:
        """(N,) int64, or None."""
        return self.source.labels

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the labels; empty without labels."""
        return self.source.classes

    def __len__(self) -> int:
        return len(self.source)

    def key(self, i: int) -> str:
        """Path or name of image i."""
        return self.source.key(i)

    def read(self, i: int) -> Tensor:
        """Image i, uint8 (3, H, W); a single black pixel where it cannot be read."""
        try:
            return read_picture(self.source, i)
        except PictureError as reason:
            self.unreadable[i] = str(reason)
            return torch.zeros(3, 1, 1, dtype=torch.uint8)

    def lines(self) -> list[str]:
        """ "key: reason" of each image found unreadable so far, in the order of the source."""
        return [f"{self.key(i)}: {reason}" for i, reason in sorted(self.unreadable.copy().items())]

    def readable(self, numbers: Tensor) -> Tensor:
        """Which of these images, already read, are no blanks: (n,) -> (n,) bool."""
        return torch.tensor([i not in self.unreadable for i in numbers.tolist()], dtype=torch.bool)
