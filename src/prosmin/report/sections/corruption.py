"""Corrupted images: error, NLL and ECE by corruption and severity, as shades and by severity as curves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prosmin.data.corruptions.parameters import COMMON, PARAMETERS, parameters_of
from prosmin.evaluation.metrics.table import METRICS, number, percent
from prosmin.report.blocks import Block, Cell, Figure, Fold, Missing, Row, Section, Table
from prosmin.report.commands import evaluate_command, unlabelled
from prosmin.report.drawing.axes import Axis, finite, round_axis, share_axis
from prosmin.report.drawing.charts import Curve, heat_chart, line_chart
from prosmin.report.drawing.svg import Words, series
from prosmin.report.runs import Run

MEASURES = {
    "error": "Error",
    "nll": "Negative log-likelihood",
    "ece": "Calibration error (ECE)",
}


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """The measures of one run: clean a number each, tables (corruptions, severities)."""

    names: list[str]
    severities: list[float]
    clean: dict[str, float]
    tables: dict[str, np.ndarray]


def corruption_section(runs: Sequence[Run]) -> Section:
    """Curves over the severities for all runs, then the shades of each."""
    having = [(i, run, matrix) for i, run in enumerate(runs) if (matrix := read_matrix(run))]
    blocks: list[Block] = [figure for what in MEASURES if (figure := severity_figure(having, what))]
    for i, run, matrix in having:
        shades: list[Block] = [
            heat_figure(run, i, matrix, what, named=len(runs) > 1) for what in MEASURES if what in matrix.tables
        ]
        if len(runs) == 1:
            blocks += shades
        else:
            blocks.append(Fold(title=f"Every corruption, {run.name}", blocks=shades))
    for run in runs:
        if "corruption" not in run.results and not unlabelled(run):
            what = f"{run.name} has not seen corrupted images" if len(runs) > 1 else "No corrupted images yet"
            blocks.append(Missing(what=what, command=evaluate_command(run, "corruption")))
    lead = (
        "A linear probe, fitted on clean training images, answers for corrupted test images. A robust encoder "
        "errs little more; a trustworthy one is less sure where it errs, so its calibration error stays low."
    )
    return Section(id="corruption", title="Corrupted images", lead=lead, blocks=blocks)


def read_matrix(run: Run) -> Matrix | None:
    """The numbers of a run; None where they are absent or do not fit each other."""
    found = run.part("corruption", "curves").get("corruption")
    if not isinstance(found, dict):
        return None
    names, severities, clean = found.get("names"), found.get("severities"), found.get("clean")
    if not isinstance(names, list) or not isinstance(severities, list) or not isinstance(clean, dict):
        return None
    tables = {what: table for what in MEASURES if (table := _table(found.get(what), len(names), len(severities)))}
    arrays = {what: np.array(table, dtype=float) for what, table in tables.items()}  # null becomes not a number
    if not names or not arrays:
        return None
    known = {what: float(clean[what]) for what in arrays if isinstance(clean.get(what), int | float)}
    return Matrix(
        names=[str(name) for name in names], severities=[float(s) for s in severities], clean=known, tables=arrays
    )


def _table(rows: Any, height: int, width: int) -> list[list[float]] | None:
    fits = (
        isinstance(rows, list)
        and len(rows) == height
        and all(isinstance(row, list) and len(row) == width for row in rows)
    )
    return rows if fits else None


def severity_figure(having: Sequence[tuple[int, Run, Matrix]], what: str) -> Figure | None:
    """A measure by severity, the mean over the corruptions, a curve a run; severity 0 is the clean test set."""
    having = [(i, run, matrix) for i, run, matrix in having if what in matrix.tables]
    if not having:
        return None
    curves: list[Curve] = []
    rows: list[Row] = []
    write = percent if what == "error" else number
    severities = sorted({0.0, *(s for _, _, matrix in having for s in matrix.severities)})
    for i, run, matrix in having:
        means = dict(zip(matrix.severities, _means(matrix, what), strict=True))
        means |= {0.0: matrix.clean[what]} if what in matrix.clean else {}
        x = sorted(means)
        curves.append(
            Curve(label=run.name, x=np.array(x), y=np.array([means[s] for s in x]), style=series(i), marks=True)
        )
        rows.append([Cell(run.name, head=True), *(write(means[s]) if s in means else "–" for s in severities)])
    every = np.concatenate([curve.y for curve in curves])
    title = f"{MEASURES[what]} by severity"
    said = " ".join(f"{c.label}: from {write(c.y[0])} to {write(c.y[-1])}." for c in curves)
    words = Words(id=f"severity-{what}", title=title, desc=said, x="severity", y="")
    x_axis = Axis(low=0.0, high=max(severities), ticks=severities)
    reading = "The mean over the corruptions, extra ones apart; severity 0 are the clean images."
    if not _alike(having):
        reading += " The runs did not see the same corruptions: compare with care."
    columns = [title, *("clean" if s == 0 else f"severity {number(s)}" for s in severities)]
    return Figure(
        id=f"figure-severity-{what}",
        title=title,
        chart=line_chart(
            words, curves, x=x_axis, y=share_axis(every, zero=True) if what == "error" else round_axis(every, zero=True)
        ),
        reading=reading,
        table=Table(columns=columns, rows=rows, caption=title),
        commands=[run.command("corruption") for _, run, _ in having],
    )


def _means(matrix: Matrix, what: str) -> list[float]:
    """The mean at each severity over the fifteen, as in the results; over all where none of them was seen."""
    common = [name in COMMON for name in matrix.names]
    table = matrix.tables[what][common] if any(common) else matrix.tables[what]
    return [float(finite(column).mean()) if finite(column).size else np.nan for column in table.T]


def _alike(having: Sequence[tuple[int, Run, Matrix]]) -> bool:
    seen = {(tuple(matrix.names), tuple(matrix.severities)) for _, _, matrix in having}
    settings = [run.part("corruption", "settings") for _, run, _ in having]
    made = {(str(each.get("source")), parameters_of(each)) for each in settings}
    return len(seen) == 1 and len(made) == 1


def heat_figure(run: Run, i: int, matrix: Matrix, what: str, *, named: bool) -> Figure:
    """A measure by corruption and severity."""
    table, clean = matrix.tables[what], matrix.clean.get(what)
    write = METRICS["mean_error"].text if what == "error" else METRICS["nll"].text
    short = (lambda v: f"{100 * v:.0f} %") if what == "error" else (lambda v: f"{v:.2f}".replace("-", "−"))
    title = f"{MEASURES[what]} by corruption" + (f", {run.name}" if named else "")
    names = [name.replace("_", " ") for name in matrix.names]
    columns = [number(s) for s in matrix.severities]
    by_name = [float(finite(row).mean()) if finite(row).size else np.nan for row in table]
    said = reading(run, names, by_name, write)
    words = Words(id=f"corruption-{i}-{what}", title=title, desc=said, x="severity", y="corruption")
    rows: list[Row] = [
        [Cell(name, head=True), *(write(float(v)) for v in values), write(mean)]
        for name, values, mean in zip(names, table, by_name, strict=True)
    ]
    if clean is not None:
        rows.insert(0, [Cell("clean", head=True), *("" for _ in columns), write(clean)])
    return Figure(
        id=f"figure-corruption-{i}-{what}",
        title=title,
        chart=heat_chart(words, names, columns, table, write=short, whole=None if clean is None else ("clean", clean)),
        reading=said,
        table=Table(
            columns=["corruption", *(f"severity {column}" for column in columns), "mean"], rows=rows, caption=title
        ),
        commands=[run.command("corruption")],
    )


def reading(run: Run, names: Sequence[str], means: Sequence[float], write: Any) -> str:
    """The worst corruption, where the images come from, and what was left out."""
    worst = int(np.nanargmax(means)) if np.isfinite(means).any() else None
    said = [f"Worst: {names[worst]}, {write(means[worst])} over the severities."] if worst is not None else []
    settings = run.part("corruption", "settings")
    if settings.get("source") == "generated":
        parameters = parameters_of(settings)
        whose = f" with the severities of {parameters}" if parameters in PARAMETERS else ""
        said.append(f"Generated{whose}: not to be held against figures of published corrupted sets.")
    left_out = settings.get("left_out")
    if isinstance(left_out, dict) and left_out:
        said.append(f"Left out: {', '.join(str(name).replace('_', ' ') for name in left_out)}.")
    return " ".join(said)
