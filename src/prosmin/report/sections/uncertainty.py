"""What the uncertainty is worth: risk against coverage, right and wrong neighbours, coverage of the predictions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from prosmin.evaluation.metrics.ranking import auroc
from prosmin.evaluation.metrics.table import number, percent
from prosmin.evaluation.metrics.table import score as score_name
from prosmin.report.blocks import Block, Cell, Figure, Row, Section, Table, figure
from prosmin.report.drawing.axes import Axis, round_axis, share_axis, unit_axis
from prosmin.report.drawing.charts import Curve, histogram_chart, line_chart, two_histograms
from prosmin.report.drawing.svg import Words
from prosmin.report.runs import Arrays, Run, curve, numbers
from prosmin.report.tables import apart, scores_table

COVERAGES = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)  # nominal levels of the table of coverage
REFERENCES = {"optimal": "best possible order", "random": "random order"}
KINDS = {
    "crop": ("smaller crops", "Severity 1 to 5 keeps 80, 60, 40, 20, 10 % of the image."),
    "blur": ("blur", ""),
    "noise": ("noise", ""),
}


def blocks(runs: Sequence[Run]) -> list[Block]:
    """Everything about the uncertainty that the runs have measured, figures first."""
    found: list[Block | None] = [risk_figure(runs), *map(split_figure, runs), coverage_figure(runs)]
    found += [*map(pit_figure, runs), *(severity_figure(runs, kind) for kind in KINDS), *map(rivals_table, runs)]
    return [block for block in found if block is not None]


def lead(runs: Sequence[Run]) -> str:
    """What the figures ask."""
    if any(map(risk_curve, runs)):
        return (
            "Keep the images with the lowest uncertainty and leave out the rest: if the uncertainty is useful, the "
            "fewer images are kept, the fewer errors remain."
        )
    return "Are the predicted intervals as wide as they should be, and does the uncertainty rise as images get worse?"


def _curves(run: Run, name: str) -> Any:
    return run.part("uncertainty", "curves").get(name)


def risk_curve(run: Run) -> Arrays | None:
    """Coverage, risk, optimal and random risk, each (n,); None if there is none or lengths differ."""
    stored = _curves(run, "risk_coverage")
    found = curve(stored, "coverage", "risk")
    return found and {**references(found), **(curve(stored, "coverage", "risk", *REFERENCES) or found)}


def references(found: Arrays) -> Arrays:
    """Risk at coverage c if wrong answers come last, max(0, c - right) / c, and in random order."""
    coverage = np.maximum(found["coverage"], 1e-12)
    error = at(found, 1.0)
    return {
        "optimal": np.maximum(0.0, coverage - (1 - error)) / coverage,
        "random": np.full_like(coverage, error),
    }


def at(found: Arrays, coverage: float, name: str = "risk") -> float:
    """The risk at a coverage, interpolated between the stored points."""
    order = np.argsort(found["coverage"])
    return float(np.interp(coverage, found["coverage"][order], found[name][order]))


def risk_figure(runs: Sequence[Run]) -> Figure | None:
    """Error among the kept images against the share kept; for one run with the best and a random order."""
    having = [(run, found) for run in runs if (found := risk_curve(run))]
    if not having:
        return None
    curves = [
        Curve(label=run.name if run.several else "this encoder", x=c["coverage"], y=c["risk"], style=run.style)
        for run, c in having
    ]
    if len(runs) == 1:
        found = having[0][1]
        styles = {"optimal": "quiet dashed", "random": "quiet"}
        for name, label in REFERENCES.items():
            curves.append(Curve(label=label, x=found["coverage"], y=found[name], style=styles[name]))
    rows: list[Row] = [
        [Cell(f"{run.prefix}{label}", head=True), *(percent(at(found, coverage, name)) for coverage in COVERAGES)]
        for run, found in having
        for name, label in {"risk": "this encoder", **REFERENCES}.items()
    ]
    text = " ".join(
        f"{run.prefix}Error {percent(at(c, 0.5))} in the half with the lowest uncertainty, {percent(at(c, 1.0))} in all"
        + ("." if at(c, 0.5) < at(c, 1.0) else ": the uncertainty does not help here.")
        for run, c in having
    )
    words = Words(id="risk", title="Risk against coverage", desc=text, x="share of images kept", y="error among them")
    y = share_axis(np.concatenate([curve.y for curve in curves]), zero=True)
    return figure(
        words,
        line_chart(words, curves, x=unit_axis(), y=y),
        reading=text if len(runs) == 1 else "Error among the kept images; the lowest uncertainty is kept first.",
        columns=["error at coverage", *(f"{100 * coverage:.0f} %" for coverage in COVERAGES)],
        rows=rows,
        commands=[run.command("uncertainty") for run, _ in having],
    )


def split_figure(run: Run) -> Figure | None:
    """The uncertainty of images with a right and with a wrong nearest neighbour."""
    arrays = run.arrays.get("uncertainty", {})
    if not {"uncertainty", "correct"} <= arrays.keys():
        return None
    values, right = np.asarray(arrays["uncertainty"], dtype=float), np.asarray(arrays["correct"]).astype(bool)
    if values.shape != right.shape or not (right.any() and (~right).any()):
        return None
    separation = auroc(torch.from_numpy(values[right]), torch.from_numpy(values[~right]))
    medians = apart([float(np.median(values[right])), float(np.median(values[~right]))])
    words = Words(
        id=f"split-{run.position}",
        title=f"Uncertainty by outcome{run.suffix}",
        desc=f"AUROC {number(separation)}: median {medians[0]} if the nearest training image has the right label, "
        f"{medians[1]} if not. R-AUROC asks the same of the nearest test image.",
        x="uncertainty",
        y="share of images",
    )
    groups = [("right neighbour", values[right], "s0"), ("wrong neighbour", values[~right], "s1")]
    return two_histograms(words, groups, run.command("uncertainty"))


def coverage_figure(runs: Sequence[Run]) -> Figure | None:
    """The share of observations within the predicted intervals against the nominal share."""
    having = [(run, c) for run in runs if (c := curve(_curves(run, "coverage"), "nominal", "coordinates"))]
    if not having:
        return None
    lines = [(run.name if run.several else "coordinates", c, "coordinates", run.style) for run, c in having]
    text = " ".join(
        f"{run.prefix}{percent(float(np.interp(0.9, c['nominal'], c['coordinates'])))} of the coordinates are within "
        "their 90 % intervals."
        for run, c in having
    )
    joint = curve(_curves(runs[0], "coverage"), "nominal", "joint") if len(runs) == 1 else None
    if joint:
        lines.append(("whole embeddings", joint, "joint", "s1"))
        could = runs[0].metrics("uncertainty").get("joint_coverage_90_reachable")
        if could is not None:
            inside = percent(float(np.interp(0.9, joint["nominal"], joint["joint"])))
            text += (
                f" {inside} of the whole embeddings are within their 90 % ellipsoids; at most {percent(could)} could "
                "be, because errors of coordinates are correlated."
            )
    ideal = Curve(label="nominal", x=np.array([0.0, 1.0]), y=np.array([0.0, 1.0]), style="quiet dashed")
    curves = [ideal, *(Curve(label=label, x=c["nominal"], y=c[key], style=style) for label, c, key, style in lines)]
    words = Words(id="coverage", title="Coverage of the predictions", desc=text, x="nominal", y="observed")
    return figure(
        words,
        line_chart(words, curves, x=unit_axis(), y=unit_axis()),
        reading=f"{text} The observation is the target network's embedding of another view. Above the diagonal the "
        "predicted intervals are too wide, below it too narrow.",
        columns=["observed at nominal", *map(percent, LEVELS)],
        rows=[
            [Cell(label, head=True), *(percent(float(np.interp(level, c["nominal"], c[key]))) for level in LEVELS)]
            for label, c, key, _ in lines
        ],
        commands=[run.command("uncertainty") for run, _ in having],
    )


def pit_figure(run: Run) -> Figure | None:
    """Where in its predicted distribution an observation lies: flat if the predictions are right."""
    found = curve(_curves(run, "pit"), "share", edges="edges")
    if found is None:
        return None
    distance = run.metrics("uncertainty").get("pit_distance")
    size = f"Largest distance from the uniform distribution {number(distance)}. " if distance is not None else ""
    words = Words(
        id=f"pit-{run.position}",
        title=f"PIT of the predictions{run.suffix}",
        desc=f"{size}Flat is right; high ends mean that predictions are too narrow, a hill that they are too wide.",
        x="predicted probability below the observation",
        y="share",
    )
    share, edges = found["share"], found["edges"]
    flat = np.full(len(share), 1 / len(share))
    return figure(
        words,
        histogram_chart(words, edges, [("uniform", flat, "quiet"), ("observed", share, "s0")]),
        columns=["probability", "share of observations"],
        rows=[
            [f"{low:.2f} to {high:.2f}", percent(float(value))]
            for low, high, value in zip(edges[:-1], edges[1:], share, strict=True)
        ],
        commands=[run.command("uncertainty")],
    )


def severity_figure(runs: Sequence[Run], kind: str) -> Figure | None:
    """The uncertainty as images get worse: its mean, and for one run the middle half of the images."""
    found = [(run, _curves(run, "severity")) for run in runs]
    kinds = [(run, curve(c.get(kind), "severity", "mean", "low", "high")) for run, c in found if isinstance(c, dict)]
    having = [(run, c) for run, c in kinds if c]
    if not having:
        return None
    title, detail = KINDS[kind]
    band = len(runs) == 1
    curves = [
        Curve(
            label=run.name,
            x=c["severity"],
            y=c["mean"],
            style=run.style,
            low=c["low"] if band else None,
            high=c["high"] if band else None,
            marks=True,
        )
        for run, c in having
    ]
    text = " ".join(
        f"{run.prefix}{' to '.join(apart([float(c['mean'][0]), float(c['mean'][-1])]))}, rank correlation "
        f"{number(run.metrics('uncertainty').get(f'spearman_{kind}', np.nan))}."
        for run, c in having
    )
    strengths = {run.name: _parameters(run) for run, _ in having}
    if kind != "crop" and len(set(strengths.values())) > 1:
        text += f" The severities differ in strength: {', '.join(f'{name} {s}' for name, s in strengths.items())}."
    words = Words(id=f"worse-{kind}", title=f"Uncertainty under {title}", desc=text, x="severity", y="uncertainty")
    ticks = sorted({float(s) for _, c in having for s in c["severity"]})
    every = np.concatenate([v for c in curves for v in (c.y, c.low, c.high) if v is not None])
    return figure(
        words,
        line_chart(words, curves, x=Axis(low=ticks[0], high=ticks[-1], ticks=ticks), y=round_axis(every)),
        reading=" ".join(filter(None, [text, detail, "It should rise."])),
        columns=["severity", *map(number, ticks)],
        rows=[
            [Cell(f"{run.name}, {part}", head=True), *apart(c[part].tolist())]
            for run, c in having
            for part in ("mean", "low", "high")
        ],
        note="Low and high are the quartiles.",
        commands=[run.command("uncertainty") for run, _ in having],
    )


def _parameters(run: Run) -> str:
    """Whose severities blur and noise have; results of earlier versions have ImageNet-C's."""
    severity = run.part("uncertainty", "settings").get("severity")
    return str(severity.get("parameters", "imagenet-c")) if isinstance(severity, dict) else "imagenet-c"


def rivals_table(run: Run) -> Table | None:
    """The uncertainty beside simpler scores that could replace it."""
    found = run.part("uncertainty", "sets").get("test")
    scores = {score_name(str(name)): numbers(row) for name, row in found.items()} if isinstance(found, dict) else {}
    keys = [key for key in ("r_auroc", "aurc") if any(key in row for row in scores.values())]
    if len(scores) < 2 or not keys:
        return None
    return scores_table(scores, f"The uncertainty and simpler scores{run.suffix}", keys=keys)


SECTION = Section(
    id="uncertainty",
    title="Uncertainty",
    lead=lead,
    build=blocks,
    protocol="uncertainty",
    has=lambda run: "uncertainty" in run.results or "uncertainty" in run.arrays,
)
