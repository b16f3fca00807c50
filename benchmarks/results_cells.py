"""The cells and rows that tables of RESULTS.md are made of."""

from collections.abc import Iterable

from results_numbers import Metric, measure, write
from results_runs import Seeds

NOT_RUN = "not run"
NOT_MEASURED = "not measured"


def cell(metric: Metric, seeds: Seeds) -> str:
    """A number without a rank, or why there is none."""
    if not seeds:
        return NOT_RUN
    number = measure(metric, seeds)
    return NOT_MEASURED if number is None else write(metric, number, seeds)


def seed_list(seeds: Seeds | None) -> str:
    """0, 1, 2."""
    return ", ".join(str(run.seed) for run in seeds) if seeds else NOT_RUN


def code(names: Iterable[str]) -> str:
    """Names as code."""
    return ", ".join(f"`{name}`" for name in names)


def head(*cells: str) -> list[str]:
    """A table's first two lines."""
    return [row(*cells), "|---" * len(cells) + "|"]


def row(*cells: str) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"
