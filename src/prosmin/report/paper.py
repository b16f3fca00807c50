"""The runs as the paper presents its own: its three tables and its figure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from safetensors import SafetensorError, safe_open

from prosmin.report.blocks import Block, Cell, Missing, Row, Section, Table
from prosmin.report.columns import Column
from prosmin.report.commands import evaluate_command, unlabelled
from prosmin.report.glossary import best, metric, protocol
from prosmin.report.intervals import size_of_test
from prosmin.report.measured_on import too_narrow
from prosmin.report.runs import Run
from prosmin.report.tables import uncertainty
from prosmin.report.trade_off import trade_off_figure
from prosmin.report.transfer import transfer_metrics, transfer_size

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
        "The same columns as the paper's tables, for these runs on their own pictures: its numbers are of ImageNet. "
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
    """Table 1: a linear classifier and kNN on the test pictures."""
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
