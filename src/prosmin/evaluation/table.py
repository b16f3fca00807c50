"""The table a person reads after an evaluation: the trained encoder beside what it must beat."""

from typing import Any

from rich.console import Console
from rich.table import Table

from prosmin.evaluation.context import PIXELS, TRAINED, UNTRAINED, UNTRAINED_SET

# heading, protocol, metric, as a percentage
COLUMNS = (
    ("kNN top-1 %", "knn", "top1", True),
    ("kNN NLL", "knn", "nll", False),
    ("linear top-1 %", "linear", "top1", True),
    ("linear NLL", "linear", "nll", False),
    ("linear ECE", "linear", "ece", False),
    ("OOD AUROC %", "ood", "auroc", True),
)


def print_table(results: dict[str, dict[str, Any]]) -> None:
    """One row a subject, one column a metric that was measured."""
    columns = [column for column in COLUMNS if column[1] in results]
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for heading, *_ in columns:
        table.add_column(heading, justify="right")
    for subject in (PIXELS, UNTRAINED, UNTRAINED_SET, TRAINED):
        if not any(subject == TRAINED or subject in results[column[1]].get("baselines", {}) for column in columns):
            continue
        table.add_row(
            subject,
            *(_cell(results[protocol], subject, metric, percent) for _, protocol, metric, percent in columns),
        )
    Console(width=110, soft_wrap=True).print(table)


def _cell(result: dict[str, Any], subject: str, metric: str, percent: bool) -> str:
    metrics = result["metrics"] if subject == TRAINED else result.get("baselines", {}).get(subject, {})
    if metric not in metrics:
        return "-"
    return f"{100 * metrics[metric]:.1f}" if percent else f"{metrics[metric]:.3f}"
