"""What the uncertainty is worth: risk against coverage, and its histogram for right and wrong neighbours."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from prosmin.evaluation.metrics.ranking import auroc
from prosmin.evaluation.metrics.table import number, percent
from prosmin.report.blocks import Block, Cell, Figure, Missing, Row, Section, Table
from prosmin.report.commands import evaluate_command
from prosmin.report.drawing.axes import share_axis, unit_axis
from prosmin.report.drawing.charts import Curve, line_chart, two_groups
from prosmin.report.drawing.svg import Words, series
from prosmin.report.metrics import apart
from prosmin.report.runs import Run
from prosmin.report.sections.forecasts import KINDS, forecast_blocks

COVERAGES = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
RISK = (
    "Keep the images the encoder is surest of and leave out the rest: if the uncertainty means something, fewer kept "
    "images means fewer errors."
)
WITHOUT_RISK = "Whether the forecast holds what it promises, and whether the uncertainty rises as images get worse."
WRONG = -0.3  # a rank correlation below it is no accident of a few hundred images
REFERENCES = {"optimal": "best possible order", "random": "random order"}


def uncertainty_section(runs: Sequence[Run]) -> Section:
    """The risk-coverage curve of all runs, then a histogram a run."""
    risk = risk_figure(runs)
    blocks: list[Block] = [risk] if risk else []
    for i, run in enumerate(runs):
        if "uncertainty" not in run.results and "uncertainty" not in run.arrays:
            what = (
                f"{run.name} has no measured uncertainty"
                if len(runs) > 1
                else "The uncertainty has not been measured yet"
            )
            blocks.append(Missing(what=what, command=evaluate_command(run, "uncertainty")))
        elif figure := split_figure(run, i, named=len(runs) > 1):
            blocks.append(figure)
    blocks += forecast_blocks(runs)
    warnings = [wrong_way(run, named=len(runs) > 1) for run in runs]
    lead = " ".join(filter(None, [RISK if risk else WITHOUT_RISK, *warnings]))
    return Section(id="uncertainty", title="Uncertainty", lead=lead, blocks=blocks)


def wrong_way(run: Run, *, named: bool) -> str:
    """A sentence where the uncertainty clearly falls as images get worse; empty elsewhere."""
    found = run.metrics("uncertainty")
    kinds = [title for kind, (title, _) in KINDS.items() if found.get(f"spearman_{kind}", 0.0) < WRONG]
    if not kinds:
        return ""
    return (
        f"{f'{run.name}: it' if named else 'It'} points the wrong way for {' and '.join(kinds)}: the worse the "
        "image, the surer the encoder. Do not sort by it where such images may come; the out-of-distribution score "
        "is for them."
    )


def risk_curve(run: Run) -> dict[str, np.ndarray]:
    """Coverage, risk, optimal and random risk, each (n,); empty where there is none or lengths differ."""
    found: Any = run.part("uncertainty", "curves").get("risk_coverage")
    if not isinstance(found, dict):
        return {}
    arrays = {str(k): np.asarray(v, dtype=float) for k, v in found.items() if isinstance(v, list) and v}
    size = arrays.get("coverage", np.empty(0)).shape
    fits = {name: values for name, values in arrays.items() if values.shape == size}
    return {**references(fits), **fits} if {"coverage", "risk"} <= fits.keys() else {}


def references(curve: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Risk at coverage c when wrong answers come last, max(0, c - right) / c, and in random order."""
    if not {"coverage", "risk"} <= curve.keys():
        return {}
    coverage = np.maximum(curve["coverage"], 1e-12)
    error = at(curve, 1.0)
    return {
        "optimal": np.maximum(0.0, coverage - (1 - error)) / coverage,
        "random": np.full_like(coverage, error),
    }


def risk_figure(runs: Sequence[Run]) -> Figure | None:
    """Error among the kept images against the share kept. One run is drawn between its two references."""
    having = [(i, run, risk_curve(run)) for i, run in enumerate(runs) if risk_curve(run)]
    if not having:
        return None
    curves = [
        Curve(label=run.name if len(runs) > 1 else "this encoder", x=c["coverage"], y=c["risk"], style=series(i))
        for i, run, c in having
    ]
    if len(runs) == 1:
        _, _, found = having[0]
        styles = {"optimal": "quiet dashed", "random": "quiet"}
        curves += [
            Curve(label=label, x=found["coverage"], y=found[name], style=styles[name])
            for name, label in REFERENCES.items()
        ]
    said = " ".join(
        (f"{run.name}: error" if len(runs) > 1 else "Error")
        + f" {percent(at(c, 0.5))} among the surest half, {percent(at(c, 1.0))} among all"
        + ("." if at(c, 0.5) < at(c, 1.0) else ": the uncertainty does not help here.")
        for _, run, c in having
    )
    words = Words(id="risk", title="Risk against coverage", desc=said, x="share of images kept", y="error among them")
    y = share_axis(np.concatenate([curve.y for curve in curves]), zero=True)
    return Figure(
        id="figure-risk",
        title="Risk against coverage",
        chart=line_chart(words, curves, x=unit_axis(), y=y),
        reading=said if len(runs) == 1 else "Error among the kept images, the surest kept first.",
        table=_risk_table(having),
        commands=[run.command("uncertainty") for _, run, _ in having],
    )


def at(curve: dict[str, np.ndarray], coverage: float, name: str = "risk") -> float:
    """The risk at a coverage, between the stored points by straight lines."""
    order = np.argsort(curve["coverage"])
    return float(np.interp(coverage, curve["coverage"][order], curve[name][order]))


def _risk_table(having: Sequence[tuple[int, Run, dict[str, np.ndarray]]]) -> Table:
    rows: list[Row] = []
    for _, run, curve in having:
        for name, label in {"risk": "this encoder", **REFERENCES}.items():
            head = Cell(f"{run.name}: {label}" if len(having) > 1 else label, head=True)
            rows.append([head, *(percent(at(curve, coverage, name)) for coverage in COVERAGES)])
    columns = ["error at coverage", *(f"{100 * coverage:.0f} %" for coverage in COVERAGES)]
    return Table(columns=columns, rows=rows, caption="Risk against coverage")


def split_figure(run: Run, i: int, *, named: bool) -> Figure | None:
    """The uncertainty of images with a right and with a wrong nearest neighbour."""
    arrays = run.arrays.get("uncertainty", {})
    if not {"uncertainty", "correct"} <= arrays.keys():
        return None
    values, right = np.asarray(arrays["uncertainty"], dtype=float), np.asarray(arrays["correct"]).astype(bool)
    if values.shape != right.shape or not (right.any() and (~right).any()):
        return None
    title = "Uncertainty by outcome" + (f", {run.name}" if named else "")
    told = auroc(torch.from_numpy(values[right]), torch.from_numpy(values[~right]))
    middle = apart([float(np.median(values[right])), float(np.median(values[~right]))])
    said = (
        f"AUROC {number(told)}: median {middle[0]} where the nearest training image has the right label, {middle[1]} "
        "where it has not. R-AUROC asks the same of the nearest test image."
    )
    words = Words(id=f"split-{i}", title=title, desc=said, x="uncertainty", y="share of images")
    chart, table = two_groups(
        words, [("right neighbour", values[right], "s0"), ("wrong neighbour", values[~right], "s1")]
    )
    return Figure(
        id=f"figure-split-{i}",
        title=title,
        chart=chart,
        reading=said[0].upper() + said[1:],
        table=table,
        commands=[run.command("uncertainty")],
    )
