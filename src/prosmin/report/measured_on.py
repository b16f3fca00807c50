"""On which pictures and by which encoder a number was measured, said where runs or protocols differ in it."""

from collections.abc import Callable, Sequence

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


def mixed(run: Run) -> list[str]:
    """A warning each where the protocols of one run were measured on different pictures or by different encoders."""
    apart = "so that their numbers do not belong together"
    said = []
    if pictures := _listed(run, measured_on, "on"):
        said.append(
            f"its protocols were measured on different pictures, {apart}: {pictures}. "
            "prosmin evaluate --out DIR keeps the results of each set apart."
        )
    if encoders := _listed(run, measured_by, "by"):
        said.append(
            f"its protocols were measured by different encoders, {apart}: {encoders}. "
            "Give the commands of the older ones again: what is not of the present encoder is measured anew."
        )
    return said


def measured_by(run: Run, name: str) -> str:
    """The encoder of a result: the hash of its weights, and its step; empty where it does not say."""
    checkpoint = run.part(name, "checkpoint")
    if not isinstance(checkpoint.get("hash"), str):
        return ""
    return f"the encoder {checkpoint['hash']}" + (f" of step {checkpoint['step']}" if "step" in checkpoint else "")


def _listed(run: Run, of: Callable[[Run, str], str], word: str) -> str:
    """The protocols by what they were measured on, or by; empty where that is the same for all that say."""
    found: dict[str, list[str]] = {}
    for name in run.results:
        if what := of(run, name):
            found.setdefault(what, []).append(name)
    return "; ".join(f"{', '.join(names)} {word} {what}" for what, names in found.items()) if len(found) > 1 else ""


def too_narrow(runs: Sequence[Run]) -> str:
    """A sentence to follow one about intervals, where some are of the embedded photographs; else empty."""
    tested = [run.part(name, "data").get("test") for run in runs for name in run.results if name != "transfer"]
    tested += [spec for run in runs for spec in run.part("transfer", "sets")]
    if not any(str(spec).partition("@")[0] == "photos" for spec in tested):
        return ""
    return (
        " The patches of the embedded photographs overlap, but are counted as independent test pictures: "
        "their intervals are too narrow, often by a factor of 2 or more."
    )
