"""The learning curves of metrics.jsonl."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from prosmin.evaluation.metrics.table import number
from prosmin.report.blocks import Block, Cell, Figure, Fold, Row, Section, figure
from prosmin.report.drawing.axes import round_axis, share_axis
from prosmin.report.drawing.charts import Curve, line_chart
from prosmin.report.drawing.svg import Words
from prosmin.report.runs import Run

ROWS = 40  # of the table below a curve; the file has them all


@dataclass(frozen=True)
class Quantity:
    """One logged number: its title, the label of its axis and what to look for."""

    name: str
    title: str
    unit: str
    reading: str = ""
    scaling: Literal["free", "zero", "log", "share"] = "free"
    low: str = ""
    high: str = ""


MAIN = [
    Quantity("loss", "Loss", "loss", "A falling loss alone proves nothing: a collapsed encoder has loss 0."),
    Quantity("knn_top1", "kNN accuracy during training", "top-1", "Accuracy of the features at that step.", "share"),
    Quantity("target_std", "Standard deviation of the targets", "deviation",
             "Falls to 0 if all outputs become the same point.", "zero"),
    Quantity("feature_rank", "Effective rank of the features", "directions",
             "About how many directions the features use.", "zero"),
    Quantity("target_rank", "Effective rank of the target network's outputs", "directions",
             "A rank near 1 leaves whitening little to restore.", "zero"),
    Quantity("skill", "Skill of the forecasts", "skill", "0: no better than the average image. 1: perfect."),
    Quantity("scale_mean", "Predicted scale", "scale", "The learned uncertainty: mean and range within the batch.",
             "log", "scale_min", "scale_max"),
    Quantity("grad_norm", "Norm of the gradient", "norm", "Spikes here come before trouble in the loss.", "log"),
]  # fmt: skip
REST = [
    Quantity("lr", "Learning rate", "rate", "", "zero"),
    Quantity("weight_decay", "Weight decay", "factor", "", "zero"),
    Quantity("momentum", "Momentum of the target", "factor"),
    Quantity("images_per_second", "Images per second", "images", "", "zero"),
    Quantity("memory_mib", "Memory in MiB", "MiB", "", "zero"),
]


def blocks(runs: Sequence[Run]) -> list[Block]:
    """The curves that show learning, then the others."""
    main = [found for quantity in MAIN if (found := curve_figure(runs, quantity))]
    rest = [found for quantity in REST if (found := curve_figure(runs, quantity))]
    return [*main, *([Fold(title="Schedules, speed and memory", blocks=rest)] if rest else [])]


def curve_figure(runs: Sequence[Run], quantity: Quantity) -> Figure | None:
    """One logged number over the run, one curve per run; None if no run logged anything but zeros."""
    having = [run for run in runs if np.any(run.column(quantity.name)[1] != 0)]
    if not having:
        return None
    along = "epoch" if all("epoch" in line for run in having for line in run.log) else "step"
    curves = [_curve(run, quantity, along, band=len(having) == 1) for run in having]
    every = np.concatenate([v for c in curves for v in (c.y, c.low, c.high) if v is not None])
    if quantity.scaling == "share":
        y = share_axis(every)
    else:
        y = round_axis(every, zero=quantity.scaling == "zero", log=quantity.scaling == "log")
    words = Words(
        id=quantity.name,
        title=quantity.title,
        desc=" ".join(f"{c.label}: from {number(c.y[0])} to {number(c.y[-1])}." for c in curves),
        x=along,
        y=f"{quantity.unit}, logarithmic" if y.log else quantity.unit,
    )
    several_losses = quantity.name == "loss" and len({run.setting("method", "name") for run in runs}) > 1
    columns, rows = _table(having, quantity, along)
    total = sum(len(run.column(quantity.name)[0]) for run in having)
    return figure(
        words,
        line_chart(words, curves, y=y),
        reading="Methods differ in their loss: compare only the shapes." if several_losses else quantity.reading,
        columns=columns,
        rows=rows,
        note=f"{len(rows)} of {total} logged steps; metrics.jsonl has all." if len(rows) < total else "",
        commands=[f"prosmin pretrain --config {run.quoted}/config.yaml --out {run.quoted}" for run in having],
    )


def _curve(run: Run, quantity: Quantity, along: str, *, band: bool) -> Curve:
    lines = [line for line in run.log if quantity.name in line]

    def pick(name: str) -> np.ndarray:
        return np.array([line.get(name, np.nan) for line in lines])

    band = band and any(quantity.low in line and quantity.high in line for line in lines)
    return Curve(
        label=run.name,
        x=pick(along),
        y=pick(quantity.name),
        style=run.style,
        low=pick(quantity.low) if band else None,
        high=pick(quantity.high) if band else None,
        marks=len(lines) <= 30,
    )


def _table(runs: Sequence[Run], quantity: Quantity, along: str) -> tuple[list[str], list[Row]]:
    """Columns and rows: some of the logged numbers at even distances, with the first and the last."""
    names = [name for name in (quantity.name, quantity.low, quantity.high) if name]
    places = ["step", "epoch"] if along == "epoch" else ["step"]
    rows: list[Row] = []
    for run in runs:
        lines = [line for line in run.log if quantity.name in line]
        count = min(len(lines), max(2, ROWS // len(runs)))
        for i in np.unique(np.linspace(0, len(lines) - 1, count).round().astype(int)):
            values = [number(lines[i][name]) if name in lines[i] else "–" for name in (*places, *names)]
            rows.append([*([Cell(run.name, head=True)] if len(runs) > 1 else []), *values])
    return [*(["run"] if len(runs) > 1 else []), *places, *names], rows


SECTION = Section(id="training", title="Training", build=blocks)
