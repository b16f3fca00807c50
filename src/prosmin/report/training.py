"""The learning curves of metrics.jsonl, under a verdict in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from prosmin.report.axes import round_axis, share_axis
from prosmin.report.blocks import Block, Cell, Figure, Finding, Fold, Missing, Row, Section, Table, Verdict
from prosmin.report.charts import Curve, line_chart
from prosmin.report.drawing import Words, series
from prosmin.report.glossary import number
from prosmin.report.health import judge
from prosmin.report.runs import Run

ROWS = 40  # rows of a table beneath a curve; the file holds them all


@dataclass(frozen=True)
class Quantity:
    """One logged number: its title, what its axis counts and what a reader should look for."""

    name: str
    title: str
    unit: str
    reading: str = ""
    scaling: Literal["free", "zero", "log", "share"] = "free"
    low: str = ""
    high: str = ""


MAIN = [
    Quantity("loss", "Loss", "loss", "A falling loss alone proves nothing: a collapsed encoder has loss 0."),
    Quantity("knn_top1", "kNN accuracy while training", "top-1", "Accuracy of the features at that moment.", "share"),
    Quantity("target_std", "Spread of the targets", "deviation", "Falls to 0 when all outputs are one point.", "zero"),
    Quantity("feature_rank", "Effective rank of the features", "directions", "About how many they use.", "zero"),
    Quantity("scale_mean", "Scale of the forecast", "scale", "The learned uncertainty: mean and range in the batch.",
             "log", "scale_min", "scale_max"),
    Quantity("grad_norm", "Norm of the gradient", "norm", "Spikes here come before trouble in the loss.", "log"),
]  # fmt: skip
REST = [
    Quantity("lr", "Learning rate", "rate", "", "zero"),
    Quantity("weight_decay", "Weight decay", "factor", "", "zero"),
    Quantity("momentum", "Momentum of the target", "factor"),
    Quantity("images_per_second", "Pictures a second", "pictures", "", "zero"),
    Quantity("memory_mib", "Memory in MiB", "MiB", "", "zero"),
]


def training_section(runs: Sequence[Run]) -> Section:
    """Verdicts first, then the curves that support them."""
    blocks: list[Block] = []
    for run in runs:
        if run.log:
            blocks.append(judge(run))
        elif run.card:
            said = Finding(status="unknown", text=f"Its weights came from elsewhere: {run.card.get('weights')}")
            blocks.append(Verdict(run=run.name, status="unknown", title="Not trained here", findings=[said]))
        else:
            blocks.append(
                Missing(what=f"{run.name} has no metrics.jsonl", command=f"prosmin pretrain --out {run.quoted}")
            )
    blocks += [figure for q in MAIN if (figure := curve_figure(runs, q))]
    rest = [figure for q in REST if (figure := curve_figure(runs, q))]
    if rest:
        blocks.append(Fold(title="Schedules, speed and memory", blocks=rest))
    return Section(id="training", title="Training", blocks=blocks)


def curve_figure(runs: Sequence[Run], quantity: Quantity) -> Figure | None:
    """One logged number over the run, a curve a run; None where no run logged anything but zeros."""
    having = [(i, run) for i, run in enumerate(runs) if np.any(run.column(quantity.name)[1] != 0)]
    if not having:
        return None
    along = "epoch" if all("epoch" in line for _, run in having for line in run.log) else "step"
    curves = [_curve(run, quantity, along, series(i), band=len(having) == 1) for i, run in having]
    every = np.concatenate([v for c in curves for v in (c.y, c.low, c.high) if v is not None])
    share = quantity.scaling == "share"
    y = (
        share_axis(every)
        if share
        else round_axis(every, zero=quantity.scaling == "zero", log=quantity.scaling == "log")
    )
    words = Words(
        id=f"curve-{quantity.name}",
        title=quantity.title,
        desc=" ".join(f"{c.label}: from {number(c.y[0])} to {number(c.y[-1])}." for c in curves),
        x=along,
        y=f"{quantity.unit}, logarithmic" if y.log else quantity.unit,
    )
    return Figure(
        id=f"figure-{quantity.name}",
        title=quantity.title,
        chart=line_chart(words, curves, y=y),
        reading=quantity.reading
        if not _several_losses(runs, quantity)
        else "Methods differ in their loss: compare the shapes only.",
        table=_table([run for _, run in having], quantity, along),
        commands=[f"prosmin pretrain --config {run.quoted}/config.yaml --out {run.quoted}" for _, run in having],
    )


def _several_losses(runs: Sequence[Run], quantity: Quantity) -> bool:
    return quantity.name == "loss" and len({run.setting("method", "name") for run in runs}) > 1


def _curve(run: Run, quantity: Quantity, along: str, style: str, *, band: bool) -> Curve:
    lines = [line for line in run.log if quantity.name in line]

    def pick(name: str) -> np.ndarray:
        return np.array([line.get(name, np.nan) for line in lines])

    band = band and any(quantity.low in line and quantity.high in line for line in lines)
    return Curve(
        label=run.name,
        x=pick(along),
        y=pick(quantity.name),
        style=style,
        low=pick(quantity.low) if band else None,
        high=pick(quantity.high) if band else None,
        marks=len(lines) <= 30,
    )


def _table(runs: Sequence[Run], quantity: Quantity, along: str) -> Table:
    """Some of the logged numbers, evenly chosen, first and last among them."""
    names = [n for n in (quantity.name, quantity.low, quantity.high) if n]
    rows: list[Row] = []
    total = 0
    for run in runs:
        lines = [line for line in run.log if quantity.name in line]
        total += len(lines)
        chosen = np.unique(
            np.linspace(0, len(lines) - 1, min(len(lines), max(2, ROWS // len(runs)))).round().astype(int)
        )
        for line in (lines[i] for i in chosen):
            values = [number(line[name]) if name in line else "–" for name in names]
            head = [Cell(run.name, head=True)] if len(runs) > 1 else []
            rows.append([*head, number(line["step"]), *([number(line["epoch"])] if along == "epoch" else []), *values])
    columns = [*(["run"] if len(runs) > 1 else []), "step", *(["epoch"] if along == "epoch" else []), *names]
    note = f"{len(rows)} of {total} logged steps; metrics.jsonl holds all." if len(rows) < total else ""
    return Table(columns=columns, rows=rows, note=note, caption=quantity.title)
