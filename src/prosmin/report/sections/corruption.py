"""Corrupted images: error, NLL and ECE by severity as curves, by corruption and severity as heat maps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from prosmin.data.corruptions.parameters import COMMON, PARAMETERS, parameters_of
from prosmin.evaluation.metrics.table import METRICS, number, percent
from prosmin.report.blocks import Block, Cell, Figure, Fold, Row, Section, figure
from prosmin.report.drawing.axes import Axis, finite, round_axis, share_axis
from prosmin.report.drawing.charts import Curve, heat_chart, line_chart
from prosmin.report.drawing.svg import Words
from prosmin.report.runs import Run, numbers

MEASURES = {"error": "Error", "nll": "Negative log-likelihood", "ece": "Calibration error (ECE)"}


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """The measures of one run: a number for the clean images, a table (corruptions, severities)."""

    run: Run
    names: list[str]
    severities: list[float]
    clean: dict[str, float]
    tables: dict[str, np.ndarray]


def blocks(runs: Sequence[Run]) -> list[Block]:
    """Curves over the severities for all runs, then the heat maps of each."""
    having = [matrix for run in runs if (matrix := read_matrix(run))]
    found: list[Block] = [drawn for what in MEASURES if (drawn := severity_figure(having, what))]
    for matrix in having:
        maps = [heat_figure(matrix, what) for what in MEASURES if what in matrix.tables]
        found += [Fold(title=f"Every corruption{matrix.run.suffix}", blocks=maps)] if matrix.run.several else maps
    return found


def read_matrix(run: Run) -> Matrix | None:
    """The numbers of a run; None if they are missing or do not fit each other."""
    found = run.part("corruption", "curves").get("corruption")
    if not isinstance(found, dict):
        return None
    names, severities, clean = found.get("names"), found.get("severities"), found.get("clean")
    if not isinstance(names, list) or not isinstance(severities, list) or not isinstance(clean, dict) or not names:
        return None
    tables = {}
    for what in MEASURES:
        rows = found.get(what)
        if isinstance(rows, list) and all(isinstance(row, list) and len(row) == len(severities) for row in rows):
            tables[what] = np.array(rows, dtype=float).reshape(len(rows), -1)  # null becomes NaN
    tables = {what: table for what, table in tables.items() if len(table) == len(names)}
    if not tables:
        return None
    return Matrix(
        run=run,
        names=[str(name) for name in names],
        severities=[float(s) for s in severities],
        clean=numbers({what: clean.get(what) for what in tables}),
        tables=tables,
    )


def severity_figure(having: Sequence[Matrix], what: str) -> Figure | None:
    """A measure by severity, the mean over the corruptions, one curve per run; severity 0 is the clean test set."""
    having = [matrix for matrix in having if what in matrix.tables]
    if not having:
        return None
    curves: list[Curve] = []
    rows: list[Row] = []
    write = percent if what == "error" else number
    severities = sorted({0.0, *(s for matrix in having for s in matrix.severities)})
    for matrix in having:
        run = matrix.run
        means = {0.0: matrix.clean[what]} if what in matrix.clean else {}
        means |= zip(matrix.severities, _means(matrix, what), strict=True)
        x = sorted(means)
        y = np.array([means[s] for s in x])
        curves.append(Curve(label=run.name, x=np.array(x), y=y, style=run.style, marks=True))
        rows.append([Cell(run.name, head=True), *(write(means[s]) if s in means else "–" for s in severities)])
    title = f"{MEASURES[what]} by severity"
    every = np.concatenate([curve.y for curve in curves])
    words = Words(
        id=f"severity-{what}",
        title=title,
        desc=" ".join(f"{c.label}: from {write(c.y[0])} to {write(c.y[-1])}." for c in curves),
        x="severity",
        y="",
    )
    x_axis = Axis(low=0.0, high=max(severities), ticks=severities)
    y_axis = share_axis(every, zero=True) if what == "error" else round_axis(every, zero=True)
    reading = "The mean over the corruptions without the extra ones; severity 0 is the clean images."
    if not _same_images(having):
        reading += " The runs were not tested on the same corruptions: compare with care."
    return figure(
        words,
        line_chart(words, curves, x=x_axis, y=y_axis),
        reading=reading,
        columns=[title, *("clean" if s == 0 else f"severity {number(s)}" for s in severities)],
        rows=rows,
        commands=[matrix.run.command("corruption") for matrix in having],
    )


def _mean(values: np.ndarray) -> float:
    return float(finite(values).mean()) if finite(values).size else np.nan


def _means(matrix: Matrix, what: str) -> list[float]:
    """The mean at each severity over the fifteen common corruptions, or over all if none of them was tested."""
    common = [name in COMMON for name in matrix.names]
    table = matrix.tables[what][common] if any(common) else matrix.tables[what]
    return [_mean(column) for column in table.T]


def _same_images(having: Sequence[Matrix]) -> bool:
    tested = {(tuple(matrix.names), tuple(matrix.severities)) for matrix in having}
    settings = [matrix.run.part("corruption", "settings") for matrix in having]
    made = {(str(each.get("source")), parameters_of(each)) for each in settings}
    return len(tested) == 1 and len(made) == 1


def heat_figure(matrix: Matrix, what: str) -> Figure:
    """A measure by corruption and severity."""
    table, clean, run = matrix.tables[what], matrix.clean.get(what), matrix.run
    write = METRICS["mean_error"].text if what == "error" else METRICS["nll"].text
    short = (lambda v: f"{100 * v:.0f} %") if what == "error" else (lambda v: f"{v:.2f}".replace("-", "−"))
    names = [name.replace("_", " ") for name in matrix.names]
    columns = [number(s) for s in matrix.severities]
    by_name = [_mean(row) for row in table]
    words = Words(
        id=f"corruption-{run.position}-{what}",
        title=f"{MEASURES[what]} by corruption{run.suffix}",
        desc=reading(run, names, by_name, write),
        x="severity",
        y="corruption",
    )
    rows: list[Row] = [
        [Cell(name, head=True), *(write(float(v)) for v in values), write(mean)]
        for name, values, mean in zip(names, table, by_name, strict=True)
    ]
    if clean is not None:
        rows.insert(0, [Cell("clean", head=True), *("" for _ in columns), write(clean)])
    whole = None if clean is None else ("clean", clean)
    return figure(
        words,
        heat_chart(words, names, columns, table, write=short, whole=whole),
        columns=["corruption", *(f"severity {column}" for column in columns), "mean"],
        rows=rows,
        commands=[run.command("corruption")],
    )


def reading(run: Run, names: Sequence[str], means: Sequence[float], write: Callable[[float], str]) -> str:
    """The worst corruption, the origin of the images, and what was left out."""
    parts = []
    if np.isfinite(means).any():
        worst = int(np.nanargmax(means))
        parts.append(f"Worst: {names[worst]}, {write(means[worst])} on average over the severities.")
    settings = run.part("corruption", "settings")
    if settings.get("source") == "generated":
        parameters = parameters_of(settings)
        strength = f" with the severities of {parameters}" if parameters in PARAMETERS else ""
        parts.append(f"Generated{strength}: do not compare with published corrupted sets.")
    left_out = settings.get("left_out")
    if isinstance(left_out, dict) and left_out:
        parts.append(f"Left out: {', '.join(str(name).replace('_', ' ') for name in left_out)}.")
    return " ".join(parts)


SECTION = Section(
    id="corruption",
    title="Corrupted images",
    lead="A linear probe, fitted on clean training images, classifies corrupted test images. With a robust encoder the "
    "error rises little; with a trustworthy one the confidence falls with the accuracy, so the calibration error stays "
    "low.",
    build=blocks,
    protocol="corruption",
)
