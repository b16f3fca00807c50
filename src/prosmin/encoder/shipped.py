"""Encoders inside the package, each a folder encoders/NAME: prosmin.load(NAME) needs no download.

A folder has encoder.safetensors and encoder.json like every encoder, and CARD.md, which says how it was trained, what
was measured and what it is not for. `benchmarks/ship.py` writes it.
"""

from pathlib import Path

from prosmin.encoder.file import CARD

ENCODERS = Path(__file__).parents[1] / "encoders"


def shipped_names() -> list[str]:
    """The names, sorted."""
    return sorted(card.parent.name for card in ENCODERS.glob(f"*/{CARD}"))


def shipped_folder(name: str) -> Path:
    """The folder of the encoder of this name."""
    return ENCODERS / name


def is_shipped(run: Path | str) -> bool:
    """Whether this names a shipped encoder; a path that exists takes precedence."""
    return str(run) in shipped_names() and not Path(run).expanduser().exists()
