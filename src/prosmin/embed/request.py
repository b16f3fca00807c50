"""What `prosmin embed` is asked for, checked before anything is opened."""

from dataclasses import dataclass
from pathlib import Path

from prosmin.embed.parts import PART
from prosmin.encoder import PRECISIONS
from prosmin.errors import UsageError

NO_REFERENCE = "none"


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of the command."""

    data: str  # SPEC
    out: Path
    reference: str | None = None  # SPEC; None: the pictures the encoder was trained on
    false_alarms: float | None = None  # a share; None: 0.05, or the least that a small reference tells
    views: int = 2
    batch: int | None = None
    max_bad: float | None = None  # a share; None: what the encoder's run allowed
    precision: str = "32-true"

    def __post_init__(self) -> None:
        if self.out.suffix != ".parquet" or self.out.is_dir():
            raise UsageError(f"--out is {self.out}; allowed: a file named *.parquet.")
        if self.false_alarms is not None and not 0 < self.false_alarms < 1:
            raise UsageError(f"--false-alarms is {self.false_alarms:g}; allowed: a share above 0 and below 1.")
        if self.false_alarms is not None and self.reference == NO_REFERENCE:
            raise UsageError(
                f"--false-alarms is {self.false_alarms:g}, but --reference {NO_REFERENCE} leaves nothing to flag by; "
                "give one of them, or pictures that belong: --reference SPEC."
            )
        if self.views == 1 or self.views < 0:
            raise UsageError(f"--views is {self.views}; allowed: 2 or more to compare, or 0 for none.")
        if self.batch is not None and not 1 <= self.batch <= PART:
            raise UsageError(f"--batch is {self.batch}; allowed: 1 to {PART}, the pictures of a part.")
        if self.max_bad is not None and not 0 <= self.max_bad <= 1:
            raise UsageError(f"--max-bad is {self.max_bad:g}; allowed: a share from 0 to 1.")
        if self.precision not in PRECISIONS:
            raise UsageError(f"--precision is {self.precision!r}; allowed: {', '.join(PRECISIONS)}.")
