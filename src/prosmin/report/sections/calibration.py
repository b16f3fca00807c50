"""Reliability diagrams: how often a classifier is right at each confidence."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from prosmin.evaluation.metrics.table import interval_of, number, percent
from prosmin.report.blocks import Block, Figure, Fold, Section, figure
from prosmin.report.drawing.charts import reliability_chart
from prosmin.report.drawing.svg import Words
from prosmin.report.runs import Arrays, Run, curve
from prosmin.report.sections.results import transfer_column
from prosmin.report.tables import protocol, too_narrow

VARIANTS = {
    "reliability": ("", "ece"),
    "reliability_calibrated": (", after temperature scaling", "ece_calibrated"),
}


class Diagram(NamedTuple):
    """The bins of one classifier, before or after temperature scaling."""

    protocol: str
    variant: str
    place: int  # of the classifier among those of the run
    bins: Arrays
    metrics: dict[str, float]
    elsewhere: str = ""  # the other set it was fine-tuned on


def blocks(runs: Sequence[Run]) -> list[Block]:
    """A diagram for every classifier that stored its bins; those of other sets are folded."""
    found: list[Block] = []
    for run in runs:
        figures = [(diagram, reliability_figure(run, diagram)) for diagram in diagrams(run)]
        found += [drawn for diagram, drawn in figures if not diagram.elsewhere]
        if elsewhere := [drawn for diagram, drawn in figures if diagram.elsewhere]:
            found.append(Fold(title=f"After fine-tuning on other sets{run.suffix}", blocks=elsewhere))
    return found


def lead(runs: Sequence[Run]) -> str:
    """How to read a diagram."""
    return (
        "Images are sorted into bins by the confidence of the prediction. In each bin the bar is the accuracy and the "
        "mark is the mean confidence; for a calibrated classifier both are on the diagonal. The ECE is the mean of "
        "the shaded gaps, weighted by the histogram below." + too_narrow(runs)
    )


def diagrams(run: Run) -> Iterator[Diagram]:
    """The classifiers of a run: one per protocol, and one per set the encoder was fine-tuned on."""
    found: list[tuple[str, Any, dict[str, float], str]] = [
        (name, run.part(name, "curves"), run.metrics(name), "") for name in run.results
    ]
    found += [
        ("transfer", curves, transfer_column(run, spec).metrics, spec)
        for spec, curves in run.part("transfer", "curves").items()
        if isinstance(curves, dict)
    ]
    for place, (name, curves, metrics, elsewhere) in enumerate(found):
        for variant in VARIANTS:
            bins = curve(curves.get(variant), "confidence", "accuracy", "count", edges="edges")
            if bins is not None:
                yield Diagram(name, variant, place, bins, metrics, elsewhere)


def reliability_figure(run: Run, diagram: Diagram) -> Figure:
    """One diagram with its histogram, its bins in the table."""
    suffix, key = VARIANTS[diagram.variant]
    words = Words(
        id=f"reliability-{run.position}-{diagram.place}-{diagram.variant}",
        title=f"{diagram.elsewhere or protocol(diagram.protocol)}{suffix}{run.suffix}",
        desc=reading(diagram.metrics, key),
        x="confidence",
        y="accuracy",
    )
    bins = diagram.bins
    ends = zip(bins["edges"][:-1], bins["edges"][1:], strict=True)
    return figure(
        words,
        reliability_chart(words, bins),
        columns=["confidence", "images", "mean confidence", "accuracy"],
        rows=[
            [f"{low:.2f} to {high:.2f}", number(count), percent(confidence), percent(accuracy)]
            for (low, high), count, confidence, accuracy in zip(
                ends, bins["count"], bins["confidence"], bins["accuracy"], strict=True
            )
        ],
        commands=[run.command(diagram.protocol)],
    )


def reading(metrics: dict[str, float], key: str) -> str:
    """The calibration error with its interval and its floor, as far as they are known."""
    if key not in metrics:
        return "The calibration error is not in the result."
    text = f"ECE {number(metrics[key])}"
    low, high = (metrics.get(end) for end in interval_of(key))
    if low is not None and high is not None:
        text += f", 95 % interval {number(low)} to {number(high)}"
    if "ece_floor" in metrics and key == "ece":
        text += f"; a perfectly calibrated model would score {number(metrics['ece_floor'])} on this many images"
    if "temperature" in metrics and key == "ece_calibrated":
        text += f"; temperature {number(metrics['temperature'])}"
    return text + "."


SECTION = Section(
    id="calibration",
    title="Calibration",
    lead=lead,
    build=blocks,
    protocol="linear",
    has=lambda run: any(not diagram.elsewhere for diagram in diagrams(run)),
)
