"""The options of `prosmin embed`, checked before anything is opened, and the settings that a file was written with."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prosmin.data.sources import files_marks
from prosmin.data.unreadable import CheckedSource
from prosmin.embed.parts import PART, refuse_other
from prosmin.embed.patches import check_type
from prosmin.embed.reference import FALSE_ALARMS, SCORE
from prosmin.embed.rows import column_meanings, read_about
from prosmin.encoder import PRECISIONS, Encoder
from prosmin.encoder.known import UNCERTAINTY
from prosmin.errors import ProsminError, UsageError

NO_REFERENCE = "none"


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of the command."""

    data: str  # SPEC
    out: Path
    reference: str | None = None  # SPEC; None: the images the encoder was trained on
    false_alarms: float | None = None  # a share; None: 0.05, or the least that a small reference allows
    views: int = 2
    batch: int | None = None
    max_bad: float | None = None  # a share; None: that of the encoder's run
    precision: str = "32-true"
    patches: str | None = None  # the type of the column, see `patches.TYPES`; None: no column

    def __post_init__(self) -> None:
        if self.out.suffix != ".parquet":
            raise UsageError(f"--out is {self.out}; allowed: a file named *.parquet.")
        if self.out.is_dir():
            raise UsageError(f"--out {self.out} is a folder, and a file is to be written. Give another name.")
        if self.false_alarms is not None and not 0 < self.false_alarms < 1:
            raise UsageError(f"--false-alarms is {self.false_alarms:g}; allowed: a share above 0 and below 1.")
        if self.false_alarms is not None and self.reference == NO_REFERENCE:
            raise UsageError(
                f"--false-alarms is {self.false_alarms:g}, but with --reference {NO_REFERENCE} nothing is flagged. "
                "Leave one of the two out."
            )
        if self.views == 1 or self.views < 0:
            raise UsageError(f"--views is {self.views}; allowed: 2 or more, or 0 for none.")
        if self.batch is not None and not 1 <= self.batch <= PART:
            raise UsageError(f"--batch is {self.batch}; allowed: 1 to {PART}.")
        if self.max_bad is not None and not 0 <= self.max_bad <= 1:
            raise UsageError(f"--max-bad is {self.max_bad:g}; allowed: a share from 0 to 1.")
        if self.precision not in PRECISIONS:
            raise UsageError(f"--precision is {self.precision!r}; allowed: {', '.join(PRECISIONS)}.")
        check_type(self.patches)


def settings_of(
    encoder: Encoder, source: CheckedSource, belonging: CheckedSource | None, request: Request
) -> dict[str, Any]:
    """Everything that determines the rows."""
    return {
        "encoder": encoder.card["hash"],
        "data": source.spec,
        "pictures": len(source),
        "names": names_digest(source),
        "reference": None if belonging is None else belonging.spec,
        "reference_names": None if belonging is None else names_digest(belonging),
        "false_alarms": None if belonging is None else request.false_alarms or FALSE_ALARMS,
        "score": None if belonging is None else SCORE,
        "uncertainty": encoder.known.definition if belonging is None else UNCERTAINTY,
        "threshold_from": None if belonging is None else "each reference image against the others",
        "views": request.views,
        "precision": request.precision,
        "patches": request.patches,
        "columns": list(column_meanings(patches=request.patches is not None)),
    }


def names_digest(source: CheckedSource) -> str:
    """A hash of the images' names in order."""
    digest = hashlib.blake2b(digest_size=8)
    for i in range(len(source)):
        digest.update(source.key(i).encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def is_finished(out: Path, settings: dict[str, Any]) -> bool:
    """Whether the file is there; an error if it has other settings."""
    about = read_about(out)
    if about is None:
        return False
    refuse_other(about["settings"], settings, what=str(out))
    return True


def refuse_changed(out: Path, specs: list[str], *, times: bool) -> None:
    """An error if the images' files have other sizes or times than when the finished file was written."""
    about = read_about(out) or {}
    timed = times and "files_and_times" in about  # an earlier prosmin wrote only the sizes
    then = about.get("files_and_times" if timed else "files", {})
    now = files_marks(specs, times=timed)
    changed = [spec for spec, mark in now.items() if then.get(spec, mark) != mark]
    if changed:
        raise ProsminError(
            f"{out} was written from other files: sizes or times of modification in {', '.join(changed)} have changed "
            "since. Remove it, or give another file with --out."
        )
