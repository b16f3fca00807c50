"""What a form of the exported encoder says of itself."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prosmin.encoder import Encoder


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form writes either one file with this suffix and a card beside it, or, without a suffix, a folder."""

    write: Callable[[Encoder, Path], list[str]]  # where to -> sentences that say what was written
    write_half: Callable[[Encoder, Path], list[str]] | None = None  # the same with weights in float16
    suffix: str = ""
    entry: str  # of its card, and of no other form's: by it a card is known for this form's
    names: tuple[str, ...] = ()  # the files in the folder; endings of further files beside the one file
    packages: tuple[str, ...] = ()  # beyond what prosmin always needs

    def folder(self, out: Path) -> Path:
        """The folder that the files go to."""
        return out.parent if self.suffix else out

    def files(self, out: Path) -> list[Path]:
        """What is written for `out`."""
        if not self.suffix:
            return [out / name for name in self.names]
        return [out, card_of(out), *(out.with_name(out.name + name) for name in self.names)]

    def card(self, out: Path) -> Path:
        """The card among them."""
        return next(file for file in self.files(out) if file.suffix == ".json")

    def beside(self, card: Path) -> Path:
        """The file that a card of this form describes."""
        return card.with_suffix(self.suffix) if self.suffix else card.parent / self.names[0]


def card_of(file: Path) -> Path:
    """The card beside a file."""
    return file.with_suffix(".json")
