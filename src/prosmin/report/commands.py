"""The commands that measure what a page lacks, on the images that the run was evaluated with."""

import shlex
from collections.abc import Sequence

from prosmin.data.sources import KINDS
from prosmin.evaluation.protocols import PROTOCOLS
from prosmin.evaluation.sets import UNLABELLED, data_arguments
from prosmin.report.blocks import Missing
from prosmin.report.runs import Run
from prosmin.report.tables import protocol

LABELLED_SOURCES = {name for name, kind in KINDS.items() if kind.labelled}


def unlabelled(run: Run) -> bool:
    """Whether all results of this run are of images without labels."""
    return any(_blind(run, name) for name in run.results) and not any(needs_labels(name) for name in run.results)


def needs_labels(name: str) -> bool:
    """Whether a protocol needs labels of the test images."""
    record = PROTOCOLS.get(name)
    return record is None or (record.labels == "needed" and not record.own_images)


def not_measured(run: Run, *names: str) -> list[Missing]:
    """A line with the command that measures these protocols, without those that need labels the run lacks."""
    names = tuple(name for name in names if not (needs_labels(name) and unlabelled(run)))
    if not names:
        return []
    what = ", ".join(map(protocol, names))
    where = f" ({run.name})" if run.several else ""
    return [Missing(what=f"Not measured yet{where}: {what}", command=evaluate_command(run, *names))]


def evaluate_command(run: Run, *names: str) -> str:
    """The command that measures these protocols; a folder in capitals is for the reader to fill in."""
    data = _data(run, labelled=any(map(needs_labels, names)))
    words = ["prosmin evaluate", run.quoted]
    if data or _source(run) in LABELLED_SOURCES or not any(map(needs_labels, names)):
        words += ["--protocols", ",".join(names)]  # else the default ones: evaluate looks whether there are labels
    words += ["--transfer SPEC,..."] if "transfer" in names else []
    words += map(shlex.quote, data_arguments(data)) if data else []
    outside = [spec for name, spec in data.items() if name not in ("train", "test")]
    if outside:
        words += ["--ood", shlex.quote(",".join(outside))]
    elif "ood" in names and _source(run, data) != "photos":
        words += ["--ood folder:STRANGE"]
    return " ".join(words)


def labels_missing(runs: Sequence[Run]) -> list[Missing]:
    """For each run without labels, one list of everything that labels would add."""
    needing = ", ".join(record.labels_show for record in PROTOCOLS.values() if record.labels_show)
    return [
        Missing(
            what=f"Needs labels{f' ({run.name})' if run.several else ''}: {needing}. "
            "LABELLED is a folder with train and test in it, each with one folder per class",
            command=f"prosmin evaluate {run.quoted} --data folder:LABELLED",
        )
        for run in runs
        if unlabelled(run)
    ]


def _blind(run: Run, name: str) -> bool:
    return UNLABELLED in run.part(name, "settings")


def _data(run: Run, *, labelled: bool) -> dict[str, str]:
    """The images of one of its results, by name; empty if no result says, or none with labels if they are needed."""
    for name in run.results:
        data = {str(part): spec for part, spec in run.part(name, "data").items() if isinstance(spec, str)}
        if {"train", "test"} <= data.keys() and not (labelled and _blind(run, name)):
            return data
    return {}


def _source(run: Run, data: dict[str, str] | None = None) -> str:
    """The kind of source of the images, those of the training by default."""
    spec = (data or {}).get("train") or str(run.setting("data", "spec") or "photos")
    return spec.partition(":")[0].partition("@")[0]
