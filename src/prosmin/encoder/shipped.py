"""Encoders that come with the package, each a folder encoders/NAME: prosmin.load(NAME) needs no download.

A folder holds encoder.safetensors and encoder.json as every encoder does, and CARD.md, which tells what it was trained
on, what was measured and what it is not for. `benchmarks/ship.py` writes it.
"""

from pathlib import Path

from prosmin.encoder.file import CARD

ENCODERS = Path(__file__).parents[1] / "encoders"


def shipped_names() -> list[str]:
    """The names, in order."""
    return sorted(card.parent.name for card in ENCODERS.glob(f"*/{CARD}"))


def shipped_folder(name: str) -> Path:
    """Where the encoder of this name is."""
    return ENCODERS / name


def is_shipped(run: Path | str) -> bool:
    """Whether this names a shipped encoder; a path that exists is never taken for a name."""
    return str(run) in shipped_names() and not Path(run).expanduser().exists()
