"""Other sets the encoder was fine-tuned on: a result holds the numbers of each."""

from collections.abc import Sequence

from prosmin.evaluation.metrics.table import interval_of, metric, parse, spread_of
from prosmin.evaluation.protocols import PROTOCOLS
from prosmin.report.blocks import Block, Cell, Fold, Missing, Row, Section, Table
from prosmin.report.commands import evaluate_command, labels_missing, needs_labels, unlabelled
from prosmin.report.metrics import protocol
from prosmin.report.runs import Run, counted, numbers
from prosmin.report.tables import Column, columns, heading, metrics_table, mixed, too_narrow


def transfer_table(runs: Sequence[Run]) -> Table:
    """Accuracy, NLL and ECE on every set the encoder was fine-tuned on, sets as rows, runs as columns."""
    rows: list[Row] = []
    for spec in dict.fromkeys(spec for run in runs for spec in run.part("transfer", "sets")):
        of = [
            Column(
                label=run.name if len(runs) > 1 else "trained",
                metrics=transfer_metrics(run, spec),
                style="",
                trained=True,
                size=transfer_size(run, spec),
            )
            for run in runs
        ]
        for row in metrics_table(of, ("top1", "nll", "ece"), spec).rows:
            head, *cells = row
            assert isinstance(head, Cell)
            rows.append([Cell(f"{spec}: {head.text}", head=True), *cells])
    labels = [run.name for run in runs] if len(runs) > 1 else ["trained"]
    return Table(columns=[protocol("transfer"), *labels], rows=rows, caption=protocol("transfer"))


def transfer_metrics(run: Run, spec: str) -> dict[str, float]:
    """The numbers on one set the encoder was fine-tuned on."""
    found = run.part("transfer", "sets").get(spec)
    row = next(iter(found.values()), None) if isinstance(found, dict) else None
    return numbers(row) if isinstance(row, dict) else {}


def transfer_size(run: Run, spec: str) -> int | None:
    """The test images of that set."""
    curves = run.part("transfer", "curves").get(spec)
    return counted(curves.get("reliability")) or None if isinstance(curves, dict) else None


LONG = 16  # rows of a table above which the lesser numbers are folded


def results_section(runs: Sequence[Run]) -> Section:
    """Every number of every protocol, ours or not yet known to this page."""
    measured = [name for run in runs for name in run.results if section_of(name) == "results"]
    blocks: list[Block] = []
    for name in sorted(dict.fromkeys(measured), key=_place):
        if any(run.metrics(name) for run in runs):
            blocks += [transfer_table(runs)] if name == "transfer" else protocol_tables(runs, name)
            blocks.append(Fold(title="Command and settings", blocks=[_settings(runs, name)]))
    blocks += missing(runs)
    lead = (
        "The best of each row is bold; arrows say which direction is better. Brackets hold 95 % intervals over the "
        f"test images: binomial for accuracies, bootstrap for calibration errors.{too_narrow(runs)} "
        "± is the standard deviation over random draws of the labels."
    )
    warnings = [f"{run.name}: {said}" for run in runs for said in mixed(run)]
    return Section(id="results", title="Results", lead=lead, warnings=warnings, blocks=blocks)


def section_of(name: str) -> str:
    """The section that shows a protocol's metrics."""
    return PROTOCOLS[name].section if name in PROTOCOLS else "results"


def _place(name: str) -> int:
    known = list(PROTOCOLS)
    return known.index(name) if name in known else len(known)


def protocol_tables(runs: Sequence[Run], name: str) -> list[Block]:
    """The metrics of a protocol as rows, runs and baselines as columns; of a long list the lesser half is folded."""
    of = columns(runs, name)
    keys = list(dict.fromkeys(key for column in of for key in column.metrics))
    hidden = {other for key in keys for other in (*interval_of(key), spread_of(key))}  # these stand behind their number
    if all(len(run.part(name, "sets")) <= 1 for run in runs):  # then their own table says the same
        hidden |= {key for key in keys if key.startswith("auroc_")}
    keys = [key for key in keys if key not in hidden]
    main = [key for key in keys if is_main(key)]
    if len(keys) <= LONG or not main:
        return [metrics_table(of, keys, heading(runs, name))]
    rest = [key for key in keys if key not in main]
    all_others = Fold(title="The other numbers", blocks=[metrics_table(of, rest, f"{heading(runs, name)}, the others")])
    return [metrics_table(of, main, heading(runs, name)), all_others]


def is_main(key: str) -> bool:
    """Whether a number stays in sight where there are many: by severity and temperature-scaled ones do not."""
    parts = parse(key)
    return metric(parts.plain).main and not parts.calibrated and not parts.where


def _settings(runs: Sequence[Run], name: str) -> Table:
    """Commands, settings, data and checkpoint of a protocol, a column a run."""
    flat = [_said(run, name) for run in runs]
    rows: list[Row] = [
        [Cell(key, head=True), *(said.get(key, "–") for said in flat)]
        for key in dict.fromkeys(key for said in flat for key in said)
    ]
    return Table(
        columns=["", *(run.name for run in runs)],
        rows=rows,
        text=True,
        caption=f"Settings of {protocol(name)}",
    )


def _said(run: Run, name: str) -> dict[str, str]:
    if name not in run.results:
        return {}
    said = {"command": run.command(name)}
    for part in ("settings", "data", "checkpoint"):
        said |= {f"{part}: {key}": str(value) for key, value in run.part(name, part).items()}
    result = run.results[name]
    return said | {key: str(result[key]) for key in ("seed", "seconds") if key in result}


def missing(runs: Sequence[Run]) -> list[Block]:
    """The protocols of the page that a run has not been through, one command a run; then what only labels can show."""
    found: list[Block] = []
    for run in runs:
        names = [name for name, record in PROTOCOLS.items() if record.expected and name not in run.results]
        names = [name for name in names if not (needs_labels(name) and unlabelled(run))]
        if names:
            what = ", ".join(protocol(name) for name in names)
            where = f" of {run.name}" if len(runs) > 1 else ""
            found.append(Missing(what=f"Not measured yet{where}: {what}", command=evaluate_command(run, *names)))
    return [*found, *labels_missing(runs)]
