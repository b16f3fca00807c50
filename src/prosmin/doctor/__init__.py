"""`prosmin doctor`: check that everything a run needs is installed and works on this machine."""

import os
import warnings
from collections.abc import Callable

from prosmin.doctor.finding import Finding, reason
from prosmin.doctor.machine import examine_devices, examine_machine, examine_processes, is_first
from prosmin.doctor.packages import examine_extras, examine_needed
from prosmin.doctor.selftest import examine_self
from prosmin.errors import ProsminError

# The checks import torch and other packages only when they run: the doctor must work when imports are broken.


def doctor() -> None:
    """Print all checks; raise an error if something needed does not work."""
    is_main = is_first(os.environ)
    found: list[Finding] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # packages warn about each other's versions on import
        for title, examine in SECTIONS.items():
            if is_main:
                print(title, flush=True)
            for finding in _guarded(title, examine, found):
                found.append(finding)
                if is_main or finding.status == "problem":
                    print(finding, flush=True)
    problems = [finding.subject for finding in found if finding.status == "problem"]
    if problems:
        raise ProsminError(
            f"Something that is needed does not work: {', '.join(problems)}. The lines above say what to do."
        )
    notes = sum(finding.status == "note" for finding in found)
    if is_main:
        print("Everything needed works." + (f" Notes: {notes}." if notes else ""))


def _guarded(title: str, examine: Callable[[list[Finding]], list[Finding]], found: list[Finding]) -> list[Finding]:
    """The findings of a section; its failure is a finding too, so that the other sections still run."""
    try:
        return examine(found)
    except Exception as error:
        return [Finding("problem", title.lower(), f"the check failed: {reason(error)}")]


def _broken(found: list[Finding]) -> set[str]:
    return {finding.subject for finding in found if finding.status != "ok"}


def _machine(found: list[Finding]) -> list[Finding]:
    if "torch" in _broken(found):
        return [*examine_machine(), Finding("note", "GPU", "not checked: torch has to work first")]
    return [*examine_machine(), *examine_devices()]


def _processes(found: list[Finding]) -> list[Finding]:
    if missing := _broken(found) & {"torch", "lightning-fabric", "pyyaml"}:
        return [Finding("note", "processes", f"not checked: {max(missing)} has to work first")]
    return examine_processes(os.environ)


SECTIONS: dict[str, Callable[[list[Finding]], list[Finding]]] = {
    "Packages": lambda found: examine_needed(),
    "Machine": _machine,
    "Processes": _processes,
    "Extras": lambda found: examine_extras(),
    "Self-test": lambda found: examine_self(_broken(found)),
}
"""The checks of each section, given the findings of the sections before it."""
