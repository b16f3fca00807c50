"""Other sets the encoder was fine-tuned on: a result holds the numbers of each."""

from collections.abc import Sequence

from prosmin.report.blocks import Cell, Row, Table
from prosmin.report.columns import Column
from prosmin.report.glossary import protocol
from prosmin.report.intervals import counted
from prosmin.report.runs import Run, numbers
from prosmin.report.tables import metrics_table


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
    """The test pictures of that set."""
    curves = run.part("transfer", "curves").get(spec)
    return counted(curves.get("reliability")) or None if isinstance(curves, dict) else None
