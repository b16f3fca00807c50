"""The learning curves of metrics.jsonl, under a verdict on the health of the run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from prosmin.evaluation.metrics.table import number, percent
from prosmin.report.blocks import Block, Cell, Figure, Finding, Fold, Missing, Row, Section, Status, Table, Verdict
from prosmin.report.drawing.axes import round_axis, share_axis
from prosmin.report.drawing.charts import Curve, line_chart
from prosmin.report.drawing.svg import Words, series
from prosmin.report.runs import Run
from prosmin.training.health import COLLAPSED_RANK, COLLAPSED_STD, is_diverged

TITLES: dict[Status, str] = {
    "good": "Healthy",
    "watch": "Worth a look",
    "bad": "Not healthy",
    "unknown": "Nothing to judge",
}
WORST: Sequence[Status] = ("bad", "watch", "good", "unknown")

# A constant output has loss 0, so the loss alone cannot tell learning from collapse. The spread of the
# targets and the rank of the features can; they are compared with the most the run itself has reached.
COLLAPSED, FALLEN = 0.1, 0.3  # shares of it
WIDE_SCALE, NARROW_SCALE = 10.0, 0.001  # of the targets' own spread


def judge(run: Run) -> Verdict:
    """The findings on one run; the worst gives the verdict its title."""
    found = [check(run) for check in (_loss, _spread, _rank, _scale, _accuracy, _length)]
    findings = [finding for finding in found if finding]
    status = next(s for s in WORST if s == "unknown" or any(f.status == s for f in findings))
    return Verdict(run=run.name, status=status, title=TITLES[status], findings=findings)


def _ends(run: Run, name: str) -> tuple[float, float, float] | None:
    """A value at the start and at the end of the log (medians over a tenth), and its largest."""
    _, values = run.column(name)
    values = values[np.isfinite(values)]
    if not values.size:
        return None
    tenth = max(1, len(values) // 10)
    return float(np.median(values[:tenth])), float(np.median(values[-tenth:])), float(values.max())


def _loss(run: Run) -> Finding | None:
    steps, values = run.column("loss")
    if not np.isfinite(values).all():
        first = steps[~np.isfinite(values)][0]
        return Finding(status="bad", text=f"The loss stopped being finite at step {number(first)}.")
    ends = _ends(run, "loss")
    if not ends:
        return None
    start, end, _ = ends
    if len(values) == 1 and not is_diverged([{"loss": end}]):
        return None  # of one line there is no telling
    if is_diverged([{"loss": start}, {"loss": end}]):
        text = f"The loss rose from {number(start)} to {number(end)}: it diverged. A lower optimizer.lr helps."
        return Finding(status="bad", text=text)
    if end <= start:
        return Finding(status="good", text=f"The loss fell from {number(start)} to {number(end)}.")
    text = f"The loss rose from {number(start)} to {number(end)}, as it can while the targets spread out."
    return Finding(status="good", text=text)


def _spread(run: Run) -> Finding | None:
    ends = _ends(run, "target_std")
    if not ends:
        return None
    _, end, most = ends
    said = f"their spread ended at {number(end)}, after {number(most)} at its largest."
    if end <= COLLAPSED * most or end < COLLAPSED_STD:
        return Finding(status="bad", text=f"The targets collapsed: {said}")
    if end <= FALLEN * most:
        return Finding(status="watch", text=f"The targets are drawing together: {said}")
    return Finding(status="good", text=f"No collapse: the targets keep a spread of {number(end)}.")


def _rank(run: Run) -> Finding | None:
    ends = _ends(run, "feature_rank")
    if not ends:
        return None
    _, end, most = ends
    if end < COLLAPSED_RANK:
        return Finding(status="bad", text=f"The features use about {number(end)} direction: they have collapsed.")
    if end <= FALLEN * most:
        text = f"The features use about {end:.0f} directions, after {most:.0f} at their richest."
        return Finding(status="watch", text=text)
    return Finding(status="good", text=f"The features use about {end:.0f} directions (effective rank).")


def _scale(run: Run) -> Finding | None:
    scale, spread = _ends(run, "scale_mean"), _ends(run, "target_std")
    if not scale or not spread or spread[1] <= 0:
        return None
    ratio = scale[1] / spread[1]
    said = f"the forecast's scale is {number(scale[1])}, {ratio:.2g} times the targets' own spread"
    if ratio > WIDE_SCALE:
        text = f"The uncertainty ran away: {said}. A weight loss.lam below 1/2 does this."
        return Finding(status="bad", text=text)
    if ratio < NARROW_SCALE:
        return Finding(status="watch", text=f"The uncertainty all but vanished: {said}.")
    low, high = _ends(run, "scale_min"), _ends(run, "scale_max")
    within = f", from {number(low[1])} to {number(high[1])} within a batch" if low and high else ""
    return Finding(status="good", text=f"{said[0].upper()}{said[1:]}{within}.")


def _accuracy(run: Run) -> Finding | None:
    steps, values = run.column("knn_top1")
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    first, last, top = float(values[0]), float(values[-1]), float(values.max())
    if last >= top - 0.02:
        return Finding(
            status="good", text=f"kNN accuracy during training went from {percent(first)} to {percent(last)}."
        )
    at = number(steps[int(values.argmax())])
    text = f"kNN accuracy during training ended at {percent(last)}, below its best, {percent(top)} at step {at}."
    return Finding(status="watch", text=text)


def _length(run: Run) -> Finding | None:
    epochs, most = run.setting("training", "epochs"), run.setting("training", "max_steps")
    done = run.log[-1].get("epoch") if run.log else None
    if done is None or not epochs or most is not None or done >= 0.97 * epochs:
        return None
    text = f"The log ends at epoch {number(done)} of {epochs}: not finished; the same command continues it."
    return Finding(status="watch", text=text)


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
    Quantity("images_per_second", "Images a second", "pictures", "", "zero"),
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
