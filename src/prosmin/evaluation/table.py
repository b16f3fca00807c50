"""The table of results that a command prints."""

from typing import Any

from rich.console import Console
from rich.table import Table

from prosmin.evaluation.context import PIXELS, TRAINED, UNTRAINED, UNTRAINED_SET
from prosmin.evaluation.metrics.table import metric, short_heading, spread_of
from prosmin.evaluation.protocols import PROTOCOLS
from prosmin.evaluation.sets import UNLABELLED

WIDE = 7  # columns of one table; more go into a second one

Column = tuple[str, str]
"""Protocol and metric."""


def print_table(results: dict[str, dict[str, Any]]) -> None:
    """One row per subject, one column per metric that was measured, then the tables of single protocols."""
    columns = _columns(results)
    for start in range(0, len(columns), WIDE):
        _print(_table(results, columns[start : start + WIDE]))
    tables = [make(row) for name, row in results.items() if (make := PROTOCOLS[name].table) and row.get("sets")]
    for table in tables:
        _print(table)
    if results and not columns and not tables:
        print(f"measured: {', '.join(results)}. `prosmin report` shows them; there are no numbers for a table.")


def _columns(results: dict[str, dict[str, Any]]) -> list[Column]:
    always = [(name, key) for name, protocol in PROTOCOLS.items() for key in protocol.columns]
    unlabelled = [(name, key) for name, protocol in PROTOCOLS.items() for key in protocol.columns_without_labels]
    without_labels = any(UNLABELLED in row.get("settings", {}) for row in results.values())
    measured = {(name, key) for name, row in results.items() for key in row.get("metrics", {})}
    columns = [column for column in always + (unlabelled if without_labels else []) if column in measured]
    return columns or [column for column in unlabelled if column in measured]


def _table(results: dict[str, dict[str, Any]], columns: list[Column]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name, key in columns:
        table.add_column(f"{PROTOCOLS[name].short} {short_heading(key)}".strip(), justify="right")
    for subject in (PIXELS, UNTRAINED, UNTRAINED_SET, TRAINED):
        cells = [_cell(results[name], subject, key) for name, key in columns]
        if any(cell != "-" for cell in cells):
            table.add_row(subject, *cells)
    return table


def _cell(row: dict[str, Any], subject: str, key: str) -> str:
    """A number, with its standard deviation over draws where there is one."""
    metrics = row["metrics"] if subject == TRAINED else row.get("baselines", {}).get(subject, {})
    value, spread, how = metrics.get(key), metrics.get(spread_of(key)), metric(key)
    if value is None:
        return "-"
    return how.short_text(value) if spread is None else f"{how.short_text(value)} ± {how.short_text(spread)}"


def _print(table: Table) -> None:
    Console(width=120, soft_wrap=True).print(table)
