"""One line of the doctor's: what was looked at, how it is, what to do."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """`problem`: something needed does not work; `note`: it works, but somebody should know."""

    status: Literal["ok", "note", "problem"]
    subject: str
    says: str
    do: str = ""  # what mends it; empty where there is nothing to do

    def __str__(self) -> str:
        return f"  {self.status:<8} {self.subject:<22} {self.says}" + (f". {self.do}" if self.do else "")


def reason(error: BaseException) -> str:
    """An exception of somebody else's in one line: its kind and the first sentence it says."""
    lines = str(error).strip().splitlines()
    first = lines[0].partition(". ")[0].rstrip(".") if lines else ""
    words = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return words if len(words) <= 160 else words[:157] + "..."
