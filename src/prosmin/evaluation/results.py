"""What a protocol returns, where results are written, and the table a person reads."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from prosmin.encoder.file import CARD, WEIGHTS
from prosmin.encoder.foreign import is_foreign, parse_name
from prosmin.encoder.shipped import is_shipped
from prosmin.errors import UsageError
from prosmin.evaluation.context import PIXELS, TRAINED, UNTRAINED, UNTRAINED_SET
from prosmin.evaluation.sets import UNLABELLED
from prosmin.files import write_text


@dataclass(frozen=True, kw_only=True)
class Result:
    """Metrics of the trained encoder, the same of its baselines, the settings that made them, what figures need."""

    metrics: dict[str, float]
    settings: dict[str, Any]
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    sets: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    curves: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


def has_no_folder(run: Path | str) -> bool:
    """Whether an encoder is named that has no folder for its results: one of timm, or one inside the package."""
    return is_foreign(run) or is_shipped(run)


def results_folder(run: Path | str, out: Path | str | None = None) -> Path:
    """Where results go: to `out`; else to a run folder itself, or to runs/timm-NAME[-FILE] or runs/shipped-NAME."""
    if out is None and not has_no_folder(run):
        return Path(run)
    folder = Path("runs") / _default_name(str(run)) if out is None else Path(out).expanduser()
    if not has_no_folder(run) and folder.resolve() == Path(run).resolve():
        return folder
    if (folder / "config.yaml").exists():
        raise UsageError(f"{folder} is the folder of a run of prosmin. Choose another for {run}: --out DIR.")
    if (folder / WEIGHTS).exists():  # whose card would be lost
        raise UsageError(f"{folder} is the folder of an encoder. Choose another for {run}: --out DIR.")
    kept = _card(folder)
    if has_no_folder(run):
        is_own = "run" not in kept and _same_encoder(str(kept.get("encoder")), str(run))
    else:  # the same run, or one that was moved and has the same weights
        is_own = kept.get("run") == str(Path(run).resolve()) or kept.get("hash", "") == _card(Path(run)).get("hash")
    if kept and not is_own:
        raise UsageError(
            f"{folder} keeps the results of {kept.get('run', kept.get('encoder'))}. "
            f"Choose another for {run}: --out DIR."
        )
    return folder


def _same_encoder(first: str, second: str) -> bool:
    """Whether two names mean one encoder, however the path of its file is written."""
    if not (is_foreign(first) and is_foreign(second)):
        return first == second
    (model, file), (other, path) = parse_name(first), parse_name(second)
    return model == other and (file and file.resolve()) == (path and path.resolve())


def measured_run(folder: Path) -> Path | None:
    """The run elsewhere whose results a folder keeps, as `--out` leaves them; None where it keeps no such results."""
    found = _card(folder).get("run")
    return Path(found) if isinstance(found, str) else None


def keep_card(card: dict[str, Any], folder: Path, *, run: Path | None = None) -> None:
    """Leave the card of an encoder that lies elsewhere beside its results; `run` is the folder it has, if any."""
    if run is not None and folder.resolve() != run.resolve():
        weights = f"those of the run {run.resolve()}, step {card['step']}."
        write_text(folder / CARD, json.dumps(card | {"run": str(run.resolve()), "weights": weights}, indent=1))
    elif run is None and "encoder" in card:
        write_text(folder / CARD, json.dumps(card, indent=1))


def _default_name(run: str) -> str:
    if not is_foreign(run):
        return f"shipped-{run}"
    model, file = parse_name(run)
    return f"timm-{model}" + (f"-{file.name.partition('.')[0]}" if file is not None else "")


def _card(folder: Path) -> dict[str, Any]:
    """The card in a folder; empty where there is none that can be read."""
    try:
        card = json.loads((folder / CARD).read_text())
    except (OSError, ValueError):
        return {}
    return card if isinstance(card, dict) else {}


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
