"""Every number of every protocol, with its command and settings."""

from collections.abc import Sequence

from prosmin.evaluation.metrics.table import interval_of, metric, parse, spread_of
from prosmin.evaluation.protocols import PROTOCOLS
from prosmin.report.blocks import Block, Cell, Fold, Note, Row, Section, Table
from prosmin.report.commands import labels_missing, not_measured
from prosmin.report.runs import Run, counted, numbers
from prosmin.report.tables import (
    Column,
    cells,
    columns,
    heading,
    metrics_table,
    mixed,
    protocol,
    side_by_side,
    too_narrow,
)

LONG = 16  # rows of a table above which the less important numbers are folded


def blocks(runs: Sequence[Run]) -> list[Block]:
    """A table per protocol, known to this page or not, then what is missing."""
    found: list[Block] = [Note(text=f"{run.name}: {warning}") for run in runs for warning in mixed(run)]
    unknown = sorted({name for run in runs for name in run.results} - PROTOCOLS.keys())
    shown = [*(name for name, record in PROTOCOLS.items() if record.section == "results"), *unknown]
    for name in (name for name in shown if any(run.metrics(name) for run in runs)):
        found += [transfer_table(runs)] if name == "transfer" else protocol_tables(runs, name)
        settings = [_settings(run, name) for run in runs]
        table = side_by_side(runs, settings, "", f"Settings of {protocol(name)}")
        found.append(Fold(title="Command and settings", blocks=[table]))
    return [*found, *missing(runs)]


def missing(runs: Sequence[Run]) -> list[Block]:
    """The usual protocols that a run lacks, with one command per run; then what needs labels."""
    expected = [name for name, record in PROTOCOLS.items() if record.expected]
    lacking = [(run, [name for name in expected if name not in run.results]) for run in runs]
    return [*(block for run, names in lacking for block in not_measured(run, *names)), *labels_missing(runs)]


def lead(runs: Sequence[Run]) -> str:
    """How to read the tables."""
    return (
        "The best of each row is bold; arrows show which direction is better. Brackets are 95 % confidence intervals "
        f"over the test images: binomial for accuracies, bootstrap for calibration errors.{too_narrow(runs)} "
        "± is the standard deviation over random draws of the labels."
    )


def protocol_tables(runs: Sequence[Run], name: str) -> list[Block]:
    """Metrics as rows, runs and baselines as columns; the less important half of a long table is folded."""
    of = columns(runs, name)
    keys = list(dict.fromkeys(key for column in of for key in column.metrics))
    hidden = {other for key in keys for other in (*interval_of(key), spread_of(key))}  # shown behind their number
    if all(len(run.part(name, "sets")) <= 1 for run in runs):  # then the table of the scores says the same
        hidden |= {key for key in keys if key.startswith("auroc_")}
    keys = [key for key in keys if key not in hidden]
    main = [key for key in keys if is_main(key)]
    title = heading(runs, name)
    if len(keys) <= LONG or not main:
        return [metrics_table(of, keys, title)]
    rest = metrics_table(of, [key for key in keys if key not in main], f"{title}, other numbers")
    return [metrics_table(of, main, title), Fold(title="Other numbers", blocks=[rest])]


def is_main(key: str) -> bool:
    """Whether a number of a long table is not folded; numbers by severity and after temperature scaling are."""
    parts = parse(key)
    return metric(parts.plain).main and not parts.calibrated and not parts.where


def transfer_table(runs: Sequence[Run]) -> Table:
    """Accuracy, NLL and ECE on every set the encoder was fine-tuned on, one column per run."""
    rows: list[Row] = []
    for spec in dict.fromkeys(spec for run in runs for spec in run.part("transfer", "sets")):
        of = [transfer_column(run, spec) for run in runs]
        rows += [
            [Cell(f"{spec}: {metric(key).heading()}", head=True), *cells(of, key)] for key in ("top1", "nll", "ece")
        ]
    labels = [run.name if run.several else "trained" for run in runs]
    return Table(columns=[protocol("transfer"), *labels], rows=rows, caption=protocol("transfer"))


def transfer_column(run: Run, spec: str) -> Column:
    """The numbers on one set the encoder was fine-tuned on."""
    found, curves = run.part("transfer", "sets").get(spec), run.part("transfer", "curves").get(spec)
    row = next(iter(found.values()), None) if isinstance(found, dict) else None
    size = counted(curves.get("reliability")) if isinstance(curves, dict) else 0
    return Column(label=run.name, metrics=numbers(row) if isinstance(row, dict) else {}, size=size or None)


def _settings(run: Run, name: str) -> dict[str, str]:
    """Command, settings, data and checkpoint of a protocol."""
    if name not in run.results:
        return {}
    values = {"command": run.command(name)}
    for part in ("settings", "data", "checkpoint"):
        values |= {f"{part}: {key}": str(value) for key, value in run.part(name, part).items()}
    result = run.results[name]
    return values | {key: str(result[key]) for key in ("seed", "seconds") if key in result}


SECTION = Section(id="results", title="Results", lead=lead, build=blocks)
