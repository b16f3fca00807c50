"""On which pictures a number was measured, said where runs or protocols differ in it."""

from collections.abc import Sequence

from prosmin.report.glossary import protocol
from prosmin.report.runs import Run


def measured_on(run: Run, name: str) -> str:
    """The pictures of a result; empty where it does not say, or where it has sets of its own."""
    data = run.part(name, "data")
    if name == "transfer" or not {"train", "test"} <= data.keys():
        return ""
    return f"{data['test']}, train {data['train']}"


def differ(runs: Sequence[Run]) -> bool:
    """Whether not all the numbers of these runs are of the same pictures."""
    return len({said for run in runs for name in run.results if (said := measured_on(run, name))}) > 1


def heading(runs: Sequence[Run], name: str) -> str:
    """The title of a protocol's table, with its pictures where there are others on the page."""
    by_run = {run.name: on for run in runs if (on := measured_on(run, name))}
    if not by_run or not differ(runs):
        return protocol(name)
    alike = len(set(by_run.values())) == 1
    said = [next(iter(by_run.values()))] if alike else [f"{on} ({run})" for run, on in by_run.items()]
    return f"{protocol(name)} on {'; '.join(said)}"


def mixed(run: Run) -> str:
    """A warning where the protocols of one run were measured on different pictures; else empty."""
    found: dict[str, list[str]] = {}
    for name in run.results:
        if on := measured_on(run, name):
            found.setdefault(on, []).append(name)
    if len(found) < 2:
        return ""
    listed = "; ".join(f"{', '.join(names)} on {on}" for on, names in found.items())
    return (
        f"its protocols were measured on different pictures, so that their numbers do not belong together: {listed}. "
        "prosmin evaluate --out DIR keeps the results of each set apart."
    )
