"""`prosmin doctor`: is everything here that a run needs, and does it work? Looks only at this machine."""

import os
import warnings
from collections.abc import Callable

from prosmin.doctor.finding import Finding, reason
from prosmin.doctor.machine import examine_devices, examine_machine, examine_processes, is_first
from prosmin.doctor.packages import examine_extras, examine_needed
from prosmin.doctor.selftest import examine_self
from prosmin.errors import ProsminError

# These import torch and the rest only when they run: a doctor is called when imports are broken.


def doctor() -> None:
    """Print what was found; an error of one sentence if something needed is broken."""
    speaks = is_first(os.environ)
    found: list[Finding] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # packages that warn of each other's versions on import
        for title, examine in SECTIONS.items():
            if speaks:
                print(title, flush=True)
            for finding in _guarded(title, examine, found):
                found.append(finding)
                if speaks or finding.status == "problem":
                    print(finding, flush=True)
    problems = [finding.subject for finding in found if finding.status == "problem"]
    if problems:
        raise ProsminError(
            f"Not everything that is needed works: {', '.join(problems)}. Each line above says what to do."
        )
    notes = sum(finding.status == "note" for finding in found)
    if speaks:
        print("Everything needed works." + (f" Notes: {notes}." if notes else ""))


def _guarded(title: str, examine: Callable[[list[Finding]], list[Finding]], found: list[Finding]) -> list[Finding]:
    """A section that fails is a finding too: the rest still has to be told."""
    try:
        return examine(found)
    except Exception as error:
        return [Finding("problem", title.lower(), f"could not be examined: {reason(error)}")]


def _broken(found: list[Finding]) -> set[str]:
    return {finding.subject for finding in found if finding.status != "ok"}


def _machine(found: list[Finding]) -> list[Finding]:
    if "torch" in _broken(found):
        return [*examine_machine(), Finding("note", "GPU", "not tried: torch has to work first")]
    return [*examine_machine(), *examine_devices()]


def _processes(found: list[Finding]) -> list[Finding]:
    if missing := _broken(found) & {"torch", "lightning-fabric", "pyyaml"}:
        return [Finding("note", "processes", f"not told: {max(missing)} has to work first")]
    return examine_processes(os.environ)


SECTIONS: dict[str, Callable[[list[Finding]], list[Finding]]] = {
    "Packages": lambda found: examine_needed(),
    "Machine": _machine,
    "Processes": _processes,
    "Extras": lambda found: examine_extras(),
    "Self-test": lambda found: examine_self(_broken(found)),
}
"""Each section, given what was found before it."""
