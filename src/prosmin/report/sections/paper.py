"""The runs as the paper presents its own: its three tables and its figure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from safetensors import SafetensorError, safe_open

from prosmin.data.corruptions.parameters import parameters_of
from prosmin.evaluation.metrics.intervals import auroc_interval
from prosmin.evaluation.metrics.table import metric, number
from prosmin.report.blocks import Block, Cell, Figure, Missing, Row, Section, Table
from prosmin.report.commands import evaluate_command, unlabelled
from prosmin.report.drawing.axes import round_axis, share_axis
from prosmin.report.drawing.charts import Point, scatter_chart
from prosmin.report.drawing.svg import Words, series
from prosmin.report.metrics import best, protocol
from prosmin.report.runs import Run, size_of_test
from prosmin.report.sections.ood import default_score, has, raw, sets
from prosmin.report.sections.results import transfer_metrics, transfer_size
from prosmin.report.tables import Column, too_narrow, uncertainty

ALIKE = ("corruption_parameters", "baselines", "near")
"""Options that may differ where the numbers of the figure were measured alike.

How strong severities are is resolved in the settings, by what the encoder sees: "auto" may mean the same. Baselines
and the means over near and far sets stand beside the AUROC, which is over all sets.
"""


def trade_off_figure(runs: Sequence[Run]) -> Figure | None:
    """AUROC against the error under corruption, a point a run; None for fewer than two."""
    key = "mce" if all("mce" in run.metrics("corruption") for run in runs) else "mean_error"
    having = [
        (i, run)
        for i, run in enumerate(runs)
        if key in run.metrics("corruption") and math.isfinite(run.metrics("ood").get("auroc", math.nan))
    ]
    if len(having) < 2:
        return None
    points = [
        Point(
            label=run.name,
            x=run.metrics("corruption")[key],
            y=run.metrics("ood")["auroc"],
            style=series(i),
            interval=_auroc_interval(run),
        )
        for i, run in having
    ]
    how = metric(key)
    title = "Out-of-distribution AUROC against corruption"
    said = " ".join(f"{p.label}: AUROC {number(p.y)}, {how.title} {how.text(p.x)}." for p in points)
    words = Words(id="trade-off", title=title, desc=said, x="error under corruption", y="AUROC")
    ends = [end for p in points for end in (p.interval or (p.y, p.y))]
    return Figure(
        id="figure-trade-off",
        title=title,
        chart=scatter_chart(words, points, x=share_axis([p.x for p in points]), y=round_axis(ends)),
        reading="Top left is best: strange images are told apart, corrupted ones still recognised. "
        "Lines are 95 % intervals of the AUROC." + _unlike([run for _, run in having]),
        table=Table(
            columns=["run", how.heading(), metric("auroc").heading()],
            rows=[
                [
                    Cell(p.label, head=True),
                    how.text(p.x),
                    Cell(
                        metric("auroc").text(p.y),
                        detail="" if p.interval is None else f"[{p.interval[0]:.3f}, {p.interval[1]:.3f}]",
                    ),
                ]
                for p in points
            ],
            caption=title,
        ),
        commands=[run.command(name) for _, run in having for name in ("ood", "corruption")],
    )


def _auroc_interval(run: Run) -> tuple[float, float] | None:
    """Of the mean over the sets, where all their scores were kept."""
    score = default_score(run)
    if not sets(run) or not all(has(run, name, score) for name in sets(run)):
        return None
    both = [raw(run, name, score) for name in sets(run)]
    familiar = both[0][0]
    if any(not len(outside) or not np.array_equal(inside, familiar) for inside, outside in both) or not len(familiar):
        return None  # sets held against other familiar images each share no luck that could be averaged
    return auroc_interval(familiar, [outside for _, outside in both])


def _unlike(runs: Sequence[Run]) -> str:
    """A warning where the runs were not measured alike."""
    for name in ("ood", "corruption"):
        how = [
            (
                {k: v for k, v in run.part(name, "options").items() if k not in ALIKE},
                run.part(name, "data"),
                parameters_of(run.part(name, "settings")),
            )
            for run in runs
        ]
        if any(other != how[0] for other in how):
            return " The runs were measured on different images: compare with care."
    return ""


LINEAR = ("linear-paper", "linear")  # the paper's own protocol where the runs have it
SHARES = ("1pct", "10pct")
FEW_LABELS = {"semi": "semi-supervised", "lowshot": "low-shot"}
BACKBONE = "online.backbone."


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A column of a table: its heading, the metric it shows, and where a run keeps it."""

    heading: str
    key: str
    of: Callable[[Run], Column]


def paper_section(runs: Sequence[Run]) -> Section:
    """Tables 1 to 3 with what these runs have, a row a run, and the figure for several runs."""
    tables = [generalisation_table(runs), few_labels_table(runs), transfer_table(runs)]
    blocks: list[Block] = [table for table in tables if table is not None]
    if blocks:
        figure = trade_off_figure(runs)
        blocks += [figure] if figure else []
        blocks += _missing(runs)
    lead = (
        "The same columns as the paper's tables, for these runs on their own images: its numbers are of ImageNet. "
        "A dash was not measured. Brackets are 95 % intervals, ± the standard deviation over draws of the labels."
        + too_narrow(runs)
    )
    return Section(id="paper", title="As in the paper", lead=lead, blocks=blocks)


def _missing(runs: Sequence[Run]) -> list[Block]:
    """The tasks of tables 2 and 3 that a run has not been through, one command a run."""
    found: list[Block] = []
    for run in runs:
        names = [name for name in ("lowshot", "semi", "transfer") if name not in run.results]
        if names and not unlabelled(run):
            what = ", ".join(protocol(name).partition(":")[0].lower() for name in names)
            where = f" of {run.name}" if len(runs) > 1 else ""
            found.append(Missing(what=f"Not measured yet{where}: {what}", command=evaluate_command(run, *names)))
    return found


def generalisation_table(runs: Sequence[Run]) -> Table | None:
    """Table 1: a linear classifier and kNN on the test images."""
    linear = max(LINEAR, key=lambda name: sum(bool(run.metrics(name)) for run in runs))  # one protocol for all rows
    measures = [
        Measure(heading="Top-1", key="top1", of=_result(linear)),
        Measure(heading="kNN", key="top1", of=_result("knn")),
        Measure(heading="NLL", key="nll", of=_result(linear)),
        Measure(heading="ECE", key="ece", of=_result(linear)),
    ]
    how = {"linear-paper": "the paper's linear protocol", "linear": "the linear probe on frozen features"}[linear]
    note = f"Top-1, NLL and ECE are of {how}; kNN with k = 20."
    return _table(runs, "Table 1: linear evaluation", [("", measures)], note)


def few_labels_table(runs: Sequence[Run]) -> Table | None:
    """Table 2: fine-tuning and logistic regression with 1 % and 10 % of the labels."""
    groups = [
        (
            title,
            [
                Measure(heading=f"{share.removesuffix('pct')} % labels", key=f"top1_{share}", of=_result(name))
                for share in SHARES
            ],
        )
        for name, title in FEW_LABELS.items()
    ]
    table = _table(runs, "Table 2: few labels", groups, "Semi-supervised is fine-tuned, low-shot on frozen features.")
    if table is None:
        return None
    rows = [[*row, *architecture(run)] for row, run in zip(table.rows, list(runs) * len(groups), strict=True)]
    return replace(table, columns=[*table.columns, "architecture", "parameters"], rows=rows)


def architecture(run: Run) -> tuple[str, str]:
    """The backbone and its number of parameters, as far as the run says."""
    count = parameters(run)
    return str(run.setting("backbone", "name") or "–"), "–" if count is None else f"{count / 1e6:.3g} M"


def parameters(run: Run) -> int | None:
    """The parameters and buffers of the backbone, from the header of the encoder's file; None where there is none."""
    try:
        with safe_open(run.home / "encoder.safetensors", framework="numpy") as file:
            shapes = [file.get_slice(name).get_shape() for name in file.keys() if name.startswith(BACKBONE)]  # noqa: SIM118
    except (OSError, SafetensorError):
        return None
    return sum(math.prod(shape) for shape in shapes) or None


def transfer_table(runs: Sequence[Run]) -> Table | None:
    """Table 3: top-1 accuracy after fine-tuning on other sets, a column a set."""
    names = dict.fromkeys(spec for run in runs for spec in run.part("transfer", "sets"))

    def of(spec: str) -> Callable[[Run], Column]:
        return lambda run: _column(run, transfer_metrics(run, spec), transfer_size(run, spec))

    measures = [Measure(heading=spec, key="top1", of=of(spec)) for spec in names]
    return _table(runs, "Table 3: transfer", [("", measures)], "Top-1 accuracy after fine-tuning the whole network.")


def _result(protocol: str) -> Callable[[Run], Column]:
    return lambda run: _column(run, run.metrics(protocol), size_of_test(run, protocol))


def _column(run: Run, metrics: dict[str, float], size: int | None) -> Column:
    return Column(label=run.name, metrics=metrics, style="", trained=True, size=size)


def _table(runs: Sequence[Run], title: str, groups: Sequence[tuple[str, Sequence[Measure]]], note: str) -> Table | None:
    """A row a run for each group of measures, the best of a group's column in bold; None without a number."""
    rows: list[Row] = []
    for group, measures in groups:
        texts = []
        for measure in measures:
            how, of = metric(measure.key), [measure.of(run) for run in runs]
            values = [column.metrics.get(measure.key) for column in of]
            texts.append(
                [
                    Cell("–" if v is None else how.text(v), best=b, detail=uncertainty(column, measure.key, how))
                    for column, v, b in zip(of, values, best(values, how), strict=True)
                ]
            )
        for i, run in enumerate(runs):
            name = f"{run.name}, {group}" if group else run.name
            rows.append([Cell(name, head=True), *(column[i] for column in texts)])
    if all(cell.text == "–" for row in rows for cell in row[1:] if isinstance(cell, Cell)):
        return None
    headings = [f"{m.heading}\u00a0{metric(m.key).arrow()}" for m in groups[0][1]]
    return Table(columns=[title, *headings], rows=rows, caption=title, note=note)
