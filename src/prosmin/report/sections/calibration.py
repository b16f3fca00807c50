"""Reliability diagrams: how often the classifier is right when it says it is this sure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prosmin.evaluation.metrics.table import interval_of, number, percent
from prosmin.report.blocks import Block, Figure, Fold, Missing, Section, Table
from prosmin.report.commands import evaluate_command, unlabelled
from prosmin.report.drawing.charts import reliability_chart
from prosmin.report.drawing.svg import Words
from prosmin.report.metrics import protocol
from prosmin.report.runs import Run
from prosmin.report.sections.results import transfer_metrics
from prosmin.report.tables import too_narrow

VARIANTS = {
    "reliability": ("", "ece"),
    "reliability_calibrated": (", after temperature scaling", "ece_calibrated"),
}
PARTS = ("edges", "confidence", "accuracy", "count")


@dataclass(frozen=True, kw_only=True)
class Diagrams:
    """What a classifier left: its curves by variant, its metrics, and the other set it answered for."""

    protocol: str
    curves: dict[str, Any]
    metrics: dict[str, float]
    where: str = ""


def calibration_section(runs: Sequence[Run]) -> Section:
    """A diagram for every classifier that carries its bins; those of other sets are folded."""
    blocks: list[Block] = []
    for i, run in enumerate(runs):
        here: list[Block] = []
        elsewhere: list[Block] = []
        for j, found in enumerate(diagrams(run)):
            for variant in VARIANTS:
                if bins(found.curves.get(variant)):
                    id = f"reliability-{i}-{j}-{variant}"
                    figure = reliability_figure(run, found, variant, id, named=len(runs) > 1)
                    (elsewhere if found.where else here).append(figure)
        blocks += here
        if elsewhere:
            where = f", {run.name}" if len(runs) > 1 else ""
            blocks.append(Fold(title=f"After fine-tuning on other sets{where}", blocks=elsewhere))
        if not here and not unlabelled(run):
            what = f"{run.name} has no reliability diagram" if len(runs) > 1 else "No reliability diagram yet"
            blocks.append(Missing(what=what, command=evaluate_command(run, "linear")))
    lead = (
        "Images are put into bins by the confidence of the answer. In each bin the bar is the share of "
        "right answers, the mark the mean confidence; a calibrated classifier has both on the diagonal. "
        "Shaded gaps, weighted by the histogram below, make the ECE." + too_narrow(runs)
    )
    return Section(id="calibration", title="Calibration", lead=lead, blocks=blocks)


def diagrams(run: Run) -> list[Diagrams]:
    """The classifiers of a run: one a protocol, and one a set the encoder was fine-tuned on."""
    found = [
        Diagrams(protocol=name, curves=run.part(name, "curves"), metrics=run.metrics(name)) for name in run.results
    ]
    return found + [
        Diagrams(protocol="transfer", curves=curves, metrics=transfer_metrics(run, spec), where=spec)
        for spec, curves in run.part("transfer", "curves").items()
        if isinstance(curves, dict)
    ]


def bins(curve: Any) -> dict[str, np.ndarray] | None:
    """The bins of a reliability curve as arrays, None where they are absent or do not fit each other."""
    if not isinstance(curve, dict) or not all(isinstance(curve.get(part), list) for part in PARTS):
        return None
    arrays = {part: np.array([np.nan if v is None else v for v in curve[part]], dtype=float) for part in PARTS}
    count = len(arrays["count"])
    fits = (
        count > 0
        and len(arrays["edges"]) == count + 1
        and len(arrays["accuracy"]) == len(arrays["confidence"]) == count
    )
    return arrays if fits else None


def reliability_figure(run: Run, found: Diagrams, variant: str, id: str, *, named: bool) -> Figure:
    """One diagram with its histogram, its bins in the table."""
    arrays = bins(found.curves.get(variant))
    assert arrays is not None  # the caller has looked
    suffix, key = VARIANTS[variant]
    title = f"{found.where or protocol(found.protocol)}{suffix}" + (f", {run.name}" if named else "")
    said = reading(found.metrics, key)
    words = Words(id=id, title=f"Reliability of {title}", desc=said, x="confidence", y="accuracy")
    chart = reliability_chart(
        words,
        arrays["edges"],
        confidence=arrays["confidence"],
        accuracy=arrays["accuracy"],
        count=arrays["count"],
    )
    rows = [
        [f"{low:.2f} to {high:.2f}", number(count), percent(confidence), percent(accuracy)]
        for low, high, count, confidence, accuracy in zip(
            arrays["edges"][:-1],
            arrays["edges"][1:],
            arrays["count"],
            arrays["confidence"],
            arrays["accuracy"],
            strict=True,
        )
    ]
    table = Table(columns=["confidence", "pictures", "mean confidence", "accuracy"], rows=rows, caption=title)
    commands = [run.command(found.protocol)]
    return Figure(id=f"figure-{id}", title=title, chart=chart, reading=said, table=table, commands=commands)


def reading(metrics: dict[str, float], key: str) -> str:
    """The calibration error with its interval and its floor, as far as they are known."""
    if key not in metrics:
        return "The calibration error is not in the result."
    said = f"ECE {number(metrics[key])}"
    low, high = (metrics.get(end) for end in interval_of(key))
    if low is not None and high is not None:
        said += f", 95 % interval {number(low)} to {number(high)}"
    if "ece_floor" in metrics and key == "ece":
        said += f"; a perfectly calibrated model would score {number(metrics['ece_floor'])} on this many images"
    if "temperature" in metrics and key == "ece_calibrated":
        said += f"; temperature {number(metrics['temperature'])}"
    return said + "."
