"""The command that makes what a page lacks, as it works for this run: on the images it was evaluated with."""

import shlex
from collections.abc import Sequence

from prosmin.data.sources import KINDS
from prosmin.evaluation.protocols import PROTOCOLS
from prosmin.evaluation.sets import UNLABELLED, data_arguments
from prosmin.report.blocks import Missing
from prosmin.report.runs import Run

LABELLED_SOURCES = {name for name, kind in KINDS.items() if kind.labelled}


def unlabelled(run: Run) -> bool:
    """Whether this run was evaluated, and nowhere with labels."""
    return any(_blind(run, name) for name in run.results) and not any(needs_labels(name) for name in run.results)


def needs_labels(name: str) -> bool:
    """Whether a protocol needs labels of the test images."""
    protocol = PROTOCOLS.get(name)
    return protocol is None or (protocol.labels == "needed" and not protocol.own_images)


def evaluate_command(run: Run, *names: str) -> str:
    """What measures these protocols; a folder in capitals has to be named by the reader."""
    data = _data(run, labelled=any(map(needs_labels, names)))
    words = ["prosmin evaluate", run.quoted]
    if data or _source(run) in LABELLED_SOURCES or not any(map(needs_labels, names)):
        words += ["--protocols", ",".join(names)]  # else the quick ones: whether there are labels shows by looking
    words += ["--transfer SPEC,..."] if "transfer" in names else []
    words += map(shlex.quote, data_arguments(data)) if data else []
    outside = [spec for name, spec in data.items() if name not in ("train", "test")]
    if outside:
        words += ["--ood", shlex.quote(",".join(outside))]
    elif "ood" in names and _source(run, data) != "photos":
        words += ["--ood folder:STRANGE"]
    return " ".join(words)


def labels_missing(runs: Sequence[Run]) -> list[Missing]:
    """For each run without labels one list of all that they would show, in the place of its empty sections."""
    found = []
    needing = [protocol.labels_show for protocol in PROTOCOLS.values() if protocol.labels_show]
    for run in runs:
        if unlabelled(run):
            where = f" ({run.name})" if len(runs) > 1 else ""
            what = (
                f"Needs labels{where}: {', '.join(needing)}. LABELLED is a folder with train and test in it, "
                "each with one folder a class"
            )
            found.append(Missing(what=what, command=f"prosmin evaluate {run.quoted} --data folder:LABELLED"))
    return found


def _blind(run: Run, name: str) -> bool:
    return UNLABELLED in run.part(name, "settings")


def _data(run: Run, *, labelled: bool) -> dict[str, str]:
    """The images of one of its results, by name; empty where none tells, or none with labels where they count."""
    for name in run.results:
        data = {str(part): spec for part, spec in run.part(name, "data").items() if isinstance(spec, str)}
        if {"train", "test"} <= data.keys() and not (labelled and _blind(run, name)):
            return data
    return {}


def _source(run: Run, data: dict[str, str] | None = None) -> str:
    """The kind of source that the images come from, those of the training unless others are given."""
    spec = (data or {}).get("train") or str(run.setting("data", "spec") or "photos")
    return spec.partition(":")[0].partition("@")[0]
