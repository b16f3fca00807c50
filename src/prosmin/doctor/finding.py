"""One line of the doctor: what was checked, the result, what to do."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """`problem`: something needed does not work; `note`: it works, but there is something to know."""

    status: Literal["ok", "note", "problem"]
    subject: str
    says: str
    do: str = ""  # what fixes it; empty if there is nothing to do

    def __str__(self) -> str:
        return f"  {self.status:<8} {self.subject:<22} {self.says}" + (f". {self.do}" if self.do else "")


def reason(error: BaseException) -> str:
    """Another package's exception in one line: its type and the first sentence of its message."""
    lines = str(error).strip().splitlines()
    first = lines[0].partition(". ")[0].rstrip(".") if lines else ""
    words = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return words if len(words) <= 160 else words[:157] + "..."
