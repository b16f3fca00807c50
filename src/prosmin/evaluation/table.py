"""The table a person reads after an evaluation: the trained encoder beside what it must beat."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from prosmin.evaluation.context import PIXELS, TRAINED, UNTRAINED, UNTRAINED_SET
from prosmin.evaluation.named_sets import UNLABELLED

Column = tuple[str, str, str, bool]
"""Heading, protocol, metric, whether it is shown as a percentage."""
COLUMNS: tuple[Column, ...] = (
    ("kNN top-1 %", "knn", "top1", True),
    ("kNN NLL", "knn", "nll", False),
    ("linear top-1 %", "linear", "top1", True),
    ("linear NLL", "linear", "nll", False),
    ("linear ECE", "linear", "ece", False),
    ("OOD AUROC %", "ood", "auroc", True),
    ("corrupted error %", "corruption", "mean_error", True),
    ("linear-paper top-1 %", "linear-paper", "top1", True),
    ("low-shot 1 %", "lowshot", "top1_1pct", True),
    ("low-shot 10 %", "lowshot", "top1_10pct", True),
    ("semi 1 %", "semi", "top1_1pct", True),
    ("semi 10 %", "semi", "top1_10pct", True),
)
UNCERTAINTY: tuple[Column, ...] = (
    ("R@1 %", "uncertainty", "recall_at_1", True),
    ("R-AUROC %", "uncertainty", "r_auroc", True),
    ("coverage of 90 % intervals %", "uncertainty", "coverage_90", True),
    ("energy skill", "uncertainty", "energy_skill", False),
    ("Spearman crop", "uncertainty", "spearman_crop", False),
    ("Spearman blur", "uncertainty", "spearman_blur", False),
    ("Spearman noise", "uncertainty", "spearman_noise", False),
)
"""Printed where nothing else is there to print, or nothing was judged by labels."""
WIDE = 7  # columns beside each other; the rest go into a second table


def print_table(results: dict[str, dict[str, Any]]) -> None:
    """One row a subject, one column a metric that was measured."""
    unlabelled = UNLABELLED in results.get("uncertainty", {}).get("settings", {})
    columns = _measured(results, COLUMNS + (UNCERTAINTY if unlabelled else ())) or _measured(results, UNCERTAINTY)
    for start in range(0, len(columns), WIDE):
        _print_columns(results, columns[start : start + WIDE])
    if results.get("transfer", {}).get("sets"):
        _print_transfer(results["transfer"])
    elif not columns and results:
        print(f"measured: {', '.join(results)}, of which a table has nothing to show; `prosmin report` does.")


def _measured(results: dict[str, dict[str, Any]], columns: tuple[Column, ...]) -> list[Column]:
    return [column for column in columns if column[2] in results.get(column[1], {}).get("metrics", {})]


def _print_columns(results: dict[str, dict[str, Any]], columns: list[Column]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for heading, *_ in columns:
        table.add_column(heading, justify="right")
    for subject in (PIXELS, UNTRAINED, UNTRAINED_SET, TRAINED):
        cells = [_cell(results[protocol], subject, metric, percent) for _, protocol, metric, percent in columns]
        if any(cell != "-" for cell in cells):
            table.add_row(subject, *cells)
    _print(table)


def _print_transfer(result: dict[str, Any]) -> None:
    """One row a set that was fine-tuned on: its numbers, and with which settings they came about."""
    table = Table(box=None, pad_edge=False)
    table.add_column("transfer to", overflow="fold")
    for heading in ("labels", "top-1 %", "NLL", "ECE", "ECE calibrated", "learning rate", "epochs"):
        table.add_column(heading, justify="right")
    sets = result["sets"]
    for spec, row in sets.items():
        settings = result["settings"][spec]
        last = (f"{settings['lr']:g}", str(settings["epochs"]))
        table.add_row(Text(spec), str(settings["labels"]), *_transfer_cells(row["fine-tuned"]), *last)
    if len(sets) > 1:
        table.add_row("mean", "", *_transfer_cells(result["metrics"]))
    _print(table)


def _transfer_cells(metrics: dict[str, float]) -> list[str]:
    return [f"{100 * metrics['top1']:.1f}", *(f"{metrics[name]:.3f}" for name in ("nll", "ece", "ece_calibrated"))]


def _print(table: Table) -> None:
    Console(width=120, soft_wrap=True).print(table)


def _cell(result: dict[str, Any], subject: str, metric: str, percent: bool) -> str:
    """A number, with its standard deviation over draws where there is one."""
    metrics = result["metrics"] if subject == TRAINED else result.get("baselines", {}).get(subject, {})
    value, spread = metrics.get(metric), metrics.get(f"{metric}_sd")
    if value is None:
        return "-"

    def text(number: float) -> str:
        return f"{100 * number:.1f}" if percent else f"{number:.3f}"

    return text(value) if spread is None else f"{text(value)} ± {text(spread)}"
