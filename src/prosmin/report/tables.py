"""A table of metrics: each number with what it is sure of."""

from collections.abc import Sequence

from prosmin.report.blocks import Cell, Row, Table
from prosmin.report.columns import Column
from prosmin.report.glossary import ACCURACIES, Metric, best, interval_of, metric, spread_of
from prosmin.report.intervals import wilson


def metrics_table(of: Sequence[Column], keys: Sequence[str], title: str) -> Table:
    """Metrics as rows, runs and baselines as columns, the best of a row in bold."""
    rows: list[Row] = []
    for key in keys:
        how = metric(key)
        values = [column.metrics.get(key) for column in of]
        cells = [
            Cell("–" if v is None else how.text(v), best=b, detail=uncertainty(column, key, how))
            for column, v, b in zip(of, values, best(values, how), strict=True)
        ]
        rows.append([Cell(how.heading(), head=True), *cells])
    return Table(columns=[title, *(column.label for column in of)], rows=rows, caption=title)


def uncertainty(column: Column, key: str, how: Metric) -> str:
    """What stands behind a number: its spread over draws, or its interval over the test pictures."""
    spread = column.metrics.get(spread_of(key))
    if spread is not None:
        return f"± {100 * spread:.1f}" if how.percent else f"± {how.text(spread)}"
    low, high = (column.metrics.get(end) for end in interval_of(key))
    if (low is None or high is None) and key in ACCURACIES and key in column.metrics and column.size:
        low, high = wilson(column.metrics[key], column.size)
    if low is None or high is None:
        return ""
    return f"[{100 * low:.1f}, {100 * high:.1f}]" if how.percent else f"[{how.text(low)}, {how.text(high)}]"
