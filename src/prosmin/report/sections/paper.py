"""The runs in the three tables and the figure of the paper."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from prosmin.data.corruptions.parameters import parameters_of
from prosmin.evaluation.metrics.intervals import auroc_interval
from prosmin.evaluation.metrics.table import metric, number
from prosmin.report.blocks import Block, Cell, Figure, Row, Section, Table, figure
from prosmin.report.commands import not_measured, unlabelled
from prosmin.report.drawing.axes import round_axis, share_axis
from prosmin.report.drawing.charts import Point, scatter_chart
from prosmin.report.drawing.svg import Words
from prosmin.report.runs import Run, size_of_test
from prosmin.report.sections.ood import default_score, has, raw, sets
from prosmin.report.sections.results import transfer_column
from prosmin.report.tables import Column, cells, too_narrow

IGNORED = ("corruption_parameters", "baselines", "near")
"""Options that do not change the numbers of the figure.

The strength of severities is compared by the settings, because the option may be "auto". Baselines and the means over
near and far sets are separate numbers.
"""
LINEAR = {  # the paper's own protocol if the runs have it
    "linear-paper": "the paper's linear protocol",
    "linear": "the linear probe on frozen features",
}
SHARES = ("1pct", "10pct")
FEW_LABELS = {"semi": "semi-supervised", "lowshot": "low-shot"}
BACKBONE = "online.backbone."


def blocks(runs: Sequence[Run]) -> list[Block]:
    """Tables 1 to 3, one row per run, the figure for several runs, and the commands for what is missing."""
    found: list[Block | None] = [generalisation_table(runs), few_labels_table(runs), transfer_table(runs)]
    if not any(found):
        return []
    found.append(trade_off_figure(runs))
    for run in runs:
        names = [name for name in ("lowshot", "semi", "transfer") if name not in run.results]
        found += not_measured(run, *names) if not unlabelled(run) else []
    return [block for block in found if block is not None]


def lead(runs: Sequence[Run]) -> str:
    """How to read the tables."""
    return (
        "The columns of the paper's tables, for these runs and their images; the paper's own numbers are of ImageNet. "
        "A dash means not measured. Brackets are 95 % intervals, ± is the standard deviation over draws of the labels."
        + too_narrow(runs)
    )


class Measure(NamedTuple):
    """A column of a table: its heading, its metric, and where a run stores it."""

    heading: str
    key: str
    of: Callable[[Run], Column]


Facts = dict[str, Callable[[Run], str]]


def _result(protocol: str) -> Callable[[Run], Column]:
    return lambda run: Column(label=run.name, metrics=run.metrics(protocol), size=size_of_test(run, protocol))


def _table(
    runs: Sequence[Run],
    title: str,
    groups: dict[str, list[Measure]],
    note: str,
    facts: Facts,
) -> Table | None:
    """One row per run for each group of measures, the best of a group's column in bold; None without a number."""
    rows: list[Row] = []
    for group, measures in groups.items():
        columns = [cells([measure.of(run) for run in runs], measure.key) for measure in measures]
        for i, run in enumerate(runs):
            name = Cell(f"{run.name}, {group}" if group else run.name, head=True)
            rows.append([name, *(column[i] for column in columns), *(fact(run) for fact in facts.values())])
    if all(cell.text == "–" for row in rows for cell in row[1:] if isinstance(cell, Cell)):
        return None
    headings = [f"{m.heading}\u00a0{metric(m.key).arrow()}" for m in next(iter(groups.values()))]
    return Table(columns=[title, *headings, *facts], rows=rows, caption=title, note=note)


def generalisation_table(runs: Sequence[Run]) -> Table | None:
    """Table 1: a linear classifier and kNN on the test images."""
    linear = max(LINEAR, key=lambda name: sum(bool(run.metrics(name)) for run in runs))  # one protocol for all rows
    measures = [
        Measure("Top-1", "top1", _result(linear)),
        Measure("kNN", "top1", _result("knn")),
        Measure("NLL", "nll", _result(linear)),
        Measure("ECE", "ece", _result(linear)),
    ]
    note = f"Top-1, NLL and ECE are of {LINEAR[linear]}; kNN with k = 20."
    return _table(runs, "Table 1: linear evaluation", {"": measures}, note, {})


def few_labels_table(runs: Sequence[Run]) -> Table | None:
    """Table 2: fine-tuning and logistic regression with 1 % and 10 % of the labels."""
    groups = {
        title: [Measure(f"{share.removesuffix('pct')} % labels", f"top1_{share}", _result(name)) for share in SHARES]
        for name, title in FEW_LABELS.items()
    }
    facts: Facts = {"architecture": lambda run: str(run.setting("backbone", "name") or "–"), "parameters": _millions}
    note = "Semi-supervised is fine-tuned, low-shot is on frozen features."
    return _table(runs, "Table 2: few labels", groups, note, facts)


def transfer_table(runs: Sequence[Run]) -> Table | None:
    """Table 3: top-1 accuracy after fine-tuning on other sets, one column per set."""

    def of(spec: str) -> Callable[[Run], Column]:
        return lambda run: transfer_column(run, spec)

    specs = dict.fromkeys(spec for run in runs for spec in run.part("transfer", "sets"))
    measures = [Measure(spec, "top1", of(spec)) for spec in specs]
    note = "Top-1 accuracy after fine-tuning the whole network."
    return _table(runs, "Table 3: transfer", {"": measures}, note, {})


def parameters(run: Run) -> int | None:
    """The number of parameters and buffers of the backbone, from the encoder's file; None without one."""
    try:
        with safe_open(run.home / "encoder.safetensors", framework="numpy") as file:
            shapes = [file.get_slice(name).get_shape() for name in file.keys() if name.startswith(BACKBONE)]  # noqa: SIM118
    except (OSError, SafetensorError):
        return None
    return sum(math.prod(shape) for shape in shapes) or None


def _millions(run: Run) -> str:
    count = parameters(run)
    return "–" if count is None else f"{count / 1e6:.3g} M"


def trade_off_figure(runs: Sequence[Run]) -> Figure | None:
    """AUROC against the error on corrupted images, one point per run; None for fewer than two."""
    key = "mce" if all("mce" in run.metrics("corruption") for run in runs) else "mean_error"
    having = [
        run
        for run in runs
        if key in run.metrics("corruption") and math.isfinite(run.metrics("ood").get("auroc", math.nan))
    ]
    if len(having) < 2:
        return None
    points = [
        Point(
            label=run.name,
            x=run.metrics("corruption")[key],
            y=run.metrics("ood")["auroc"],
            style=run.style,
            interval=_auroc_interval(run),
        )
        for run in having
    ]
    how, auroc = metric(key), metric("auroc")
    words = Words(
        id="trade-off",
        title="Out-of-distribution AUROC against corruption",
        desc=" ".join(f"{p.label}: AUROC {number(p.y)}, {how.title} {how.text(p.x)}." for p in points),
        x="error on corrupted images",
        y="AUROC",
    )
    ends = [end for p in points for end in (p.interval or (p.y, p.y))]
    details = ["" if p.interval is None else f"[{p.interval[0]:.3f}, {p.interval[1]:.3f}]" for p in points]
    return figure(
        words,
        scatter_chart(words, points, x=share_axis([p.x for p in points]), y=round_axis(ends)),
        reading="Top left is best: out-of-distribution images are detected and corrupted images still recognised. "
        "Lines are 95 % intervals of the AUROC." + _differences(having),
        columns=["run", how.heading(), auroc.heading()],
        rows=[
            [Cell(p.label, head=True), how.text(p.x), Cell(auroc.text(p.y), detail=detail)]
            for p, detail in zip(points, details, strict=True)
        ],
        commands=[run.command(name) for run in having for name in ("ood", "corruption")],
    )


def _auroc_interval(run: Run) -> tuple[float, float] | None:
    """The interval of the mean over the sets, if all their scores were stored."""
    score = default_score(run)
    if not sets(run) or not all(has(run, name, score) for name in sets(run)):
        return None
    both = [raw(run, name, score) for name in sets(run)]
    inside = both[0][0]
    if not len(inside) or any(not len(out) or not np.array_equal(other, inside) for other, out in both):
        return None  # the interval holds only for sets compared with the same test images
    return auroc_interval(inside, [outside for _, outside in both])


def _differences(runs: Sequence[Run]) -> str:
    """A warning if the runs were not measured in the same way."""
    for name in ("ood", "corruption"):
        how = [
            (
                {k: v for k, v in run.part(name, "options").items() if k not in IGNORED},
                run.part(name, "data"),
                parameters_of(run.part(name, "settings")),
            )
            for run in runs
        ]
        if any(other != how[0] for other in how):
            return " The runs were measured on different images: compare with care."
    return ""


SECTION = Section(id="paper", title="As in the paper", lead=lead, build=blocks)
