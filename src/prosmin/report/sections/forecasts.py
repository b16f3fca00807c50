"""Whether the forecasts hold what they promise: coverage, PIT, what moves the uncertainty, and its rivals."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from prosmin.evaluation.metrics.table import metric, number, percent
from prosmin.evaluation.metrics.table import score as score_name
from prosmin.report.blocks import Block, Cell, Figure, Row, Table
from prosmin.report.drawing.axes import Axis, round_axis, unit_axis
from prosmin.report.drawing.charts import Curve, Heights, histogram_chart, line_chart
from prosmin.report.drawing.svg import Words, series
from prosmin.report.metrics import apart, best
from prosmin.report.runs import Run, numbers

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)  # nominal levels that the table reads
KINDS = {
    "crop": ("smaller crops", "Severity 1 to 5 keeps 80, 60, 40, 20, 10 % of the image."),
    "blur": ("blur", ""),
    "noise": ("noise", ""),
}


def forecast_blocks(runs: Sequence[Run]) -> list[Block]:
    """Whatever of this the runs have measured, figures first."""
    figures = [coverage_figure(runs)]
    figures += [pit_figure(run, i, named=len(runs) > 1) for i, run in enumerate(runs)]
    figures += [severity_figure(runs, kind) for kind in KINDS]
    tables = [rivals_table(run, named=len(runs) > 1) for run in runs]
    return [block for block in [*figures, *tables] if block is not None]


def arrays_of(found: Any, *parts: str) -> dict[str, np.ndarray] | None:
    """Parts of a curve as arrays of one length; None where one is missing."""
    if not isinstance(found, dict) or not all(isinstance(found.get(part), list) for part in parts):
        return None
    arrays = {part: np.array(found[part], dtype=float) for part in parts}
    return arrays if len({len(v) for v in arrays.values()}) == 1 and len(arrays[parts[0]]) > 1 else None


def coverage_figure(runs: Sequence[Run]) -> Figure | None:
    """How much of what is observed lies within the forecast's intervals, against what they promise."""
    having = [(i, run, c) for i, run in enumerate(runs) if (c := arrays_of(_coverage(run), "nominal", "coordinates"))]
    if not having:
        return None
    curves = [Curve(label="as promised", x=np.array([0.0, 1.0]), y=np.array([0.0, 1.0]), style="quiet dashed")]
    rows: list[Row] = []
    for i, run, curve in having:
        name = run.name if len(runs) > 1 else "coordinates"
        curves.append(Curve(label=name, x=curve["nominal"], y=curve["coordinates"], style=series(i)))
        rows.append([Cell(name, head=True), *_read(curve["nominal"], curve["coordinates"])])
    joint = arrays_of(_coverage(having[0][1]), "nominal", "joint")
    if len(runs) == 1 and joint:
        curves.append(Curve(label="all together", x=joint["nominal"], y=joint["joint"], style="s1"))
        rows.append([Cell("all together", head=True), *_read(joint["nominal"], joint["joint"])])
    title = "Coverage of the forecast"
    said = " ".join(
        f"{run.name + ': ' if len(runs) > 1 else ''}{percent(float(np.interp(0.9, c['nominal'], c['coordinates'])))} "
        "of the coordinates lie within intervals meant for 90 %."
        for _, run, c in having
    )
    could = having[0][1].metrics("uncertainty").get("joint_coverage_90_reachable")
    if len(runs) == 1 and joint and could is not None:
        held = percent(float(np.interp(0.9, joint["nominal"], joint["joint"])))
        said += f" All together, {held} of the embeddings do; as their errors go together, {percent(could)} could."
    words = Words(id="coverage", title=title, desc=said, x="promised", y="observed")
    return Figure(
        id="figure-coverage",
        title=title,
        chart=line_chart(words, curves, x=unit_axis(), y=unit_axis()),
        reading=f"{said} The observation is the target network's embedding of another view. Above the diagonal the "
        "forecast is too wide, below it too narrow.",
        table=Table(columns=["observed where promised", *map(percent, LEVELS)], rows=rows, caption=title),
        commands=[run.command("uncertainty") for _, run, _ in having],
    )


def _coverage(run: Run) -> Any:
    return run.part("uncertainty", "curves").get("coverage")


def _read(nominal: np.ndarray, observed: np.ndarray) -> list[str]:
    return [percent(float(np.interp(level, nominal, observed))) for level in LEVELS]


def pit_figure(run: Run, i: int, *, named: bool) -> Figure | None:
    """Where in its forecast an observation falls: flat where the forecasts are right."""
    found: Any = run.part("uncertainty", "curves").get("pit")
    edges, share = (found.get("edges"), found.get("share")) if isinstance(found, dict) else (None, None)
    if not isinstance(edges, list) or not isinstance(share, list) or not share or len(edges) != len(share) + 1:
        return None
    title = "PIT of the forecast" + (f", {run.name}" if named else "")
    distance = run.metrics("uncertainty").get("pit_distance")
    said = f"Largest distance from the uniform distribution {number(distance)}. " if distance is not None else ""
    said += "Flat is right; high ends mean too narrow a forecast, a hill too wide a one."
    words = Words(id=f"pit-{i}", title=title, desc=said, x="forecast's probability below the observation", y="share")
    heights = np.array(share, dtype=float)
    flat = Heights(label="uniform", heights=np.full(len(share), 1 / len(share)), style="quiet")
    groups = [flat, Heights(label="observed", heights=heights, style="s0")]
    rows: list[Row] = [
        [f"{low:.2f} to {high:.2f}", percent(float(value))]
        for low, high, value in zip(edges[:-1], edges[1:], heights, strict=True)
    ]
    return Figure(
        id=f"figure-pit-{i}",
        title=title,
        chart=histogram_chart(words, np.array(edges, dtype=float), groups),
        reading=said,
        table=Table(columns=["probability", "share of observations"], rows=rows, caption=title),
        commands=[run.command("uncertainty")],
    )


def severity_figure(runs: Sequence[Run], kind: str) -> Figure | None:
    """The uncertainty as images get worse: mean, and for one run the middle half of the images."""
    having = [(i, run, c) for i, run in enumerate(runs) if (c := _severity(run, kind))]
    if not having:
        return None
    words_of, detail = KINDS[kind]
    title = f"Uncertainty under {words_of}"
    alone = len(runs) == 1
    curves = [
        Curve(
            label=run.name,
            x=c["severity"],
            y=c["mean"],
            style=series(i),
            low=c["low"] if alone else None,
            high=c["high"] if alone else None,
            marks=True,
        )
        for i, run, c in having
    ]
    said = " ".join(
        f"{'' if alone else run.name + ': '}{' to '.join(apart([float(c['mean'][0]), float(c['mean'][-1])]))}, rank "
        f"correlation {number(run.metrics('uncertainty').get(f'spearman_{kind}', np.nan))}."
        for _, run, c in having
    )
    if kind != "crop" and len({_parameters(run) for _, run, _ in having}) > 1:
        said += " Their severities differ in strength: " + ", ".join(f"{r.name} {_parameters(r)}" for _, r, _ in having)
        said += "."
    ticks = sorted({float(s) for _, _, c in having for s in c["severity"]})
    words = Words(id=f"worse-{kind}", title=title, desc=said, x="severity", y="uncertainty")
    every = np.concatenate([v for c in curves for v in (c.y, c.low, c.high) if v is not None])
    rows: list[Row] = [
        [Cell(f"{run.name}, {part}", head=True), *apart(c[part].tolist())]
        for _, run, c in having
        for part in ("mean", "low", "high")
    ]
    return Figure(
        id=f"figure-worse-{kind}",
        title=title,
        chart=line_chart(words, curves, x=Axis(low=ticks[0], high=ticks[-1], ticks=ticks), y=round_axis(every)),
        reading=" ".join(filter(None, [said, detail, "It should rise."])),
        table=Table(
            columns=["severity", *map(number, ticks)], rows=rows, caption=title, note="Low and high are the quartiles."
        ),
        commands=[run.command("uncertainty") for _, run, _ in having],
    )


def _parameters(run: Run) -> str:
    """Whose severities blur and noise have; once there were only ImageNet-C's."""
    severity = run.part("uncertainty", "settings").get("severity")
    return str(severity.get("parameters", "imagenet-c")) if isinstance(severity, dict) else "imagenet-c"


def _severity(run: Run, kind: str) -> dict[str, np.ndarray] | None:
    kinds: Any = run.part("uncertainty", "curves").get("severity")
    return arrays_of(kinds.get(kind), "severity", "mean", "low", "high") if isinstance(kinds, dict) else None


def rivals_table(run: Run, *, named: bool) -> Table | None:
    """The uncertainty beside cheaper things that could stand in for it."""
    found = run.part("uncertainty", "sets").get("test")
    rivals = {str(name): numbers(row) for name, row in found.items()} if isinstance(found, dict) else {}
    keys = [key for key in ("r_auroc", "aurc") if any(key in row for row in rivals.values())]
    if len(rivals) < 2 or not keys:
        return None
    bold = {key: best([row.get(key) for row in rivals.values()], metric(key)) for key in keys}
    rows: list[Row] = [
        [
            Cell(score_name(name), head=True),
            *(Cell(metric(key).text(row[key]) if key in row else "–", best=bold[key][i]) for key in keys),
        ]
        for i, (name, row) in enumerate(rivals.items())
    ]
    title = "Uncertainty and its rivals" + (f", {run.name}" if named else "")
    return Table(columns=[title, *(metric(key).heading() for key in keys)], rows=rows, caption=title)
