"""The table of a grid: on the screen, as Markdown and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from prosmin.ablation.cells import TABLE
from prosmin.ablation.grid import ROW, Grid
from prosmin.ablation.outcome import KNN, SEED, Outcome, Quantity, Spread, measured, over_seeds
from prosmin.config.values import to_text
from prosmin.files import write_text

PROTOCOL = (
    "kNN: k 20, on a held-out tenth of the labelled training images; no test image was read. "
    "The other numbers are from the last logged step."
)


def print_table(grid: Grid, outcomes: Sequence[Outcome]) -> None:
    """One row per cell, then remarks."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    for head, rows in _tables(grid, outcomes):
        table = Table(box=None, pad_edge=False)
        for heading in head:
            is_text = heading in (*grid.swept, "verdict")
            table.add_column(Text(heading), justify="left" if is_text else "right", overflow="fold")
        for row in rows:
            table.add_row(*(Text(text) for text in row))
        console.print(table)
        console.print()
    for line in _remarks(outcomes):
        print(line)


def write_table(grid: Grid, outcomes: Sequence[Outcome], out: Path) -> None:
    """table.md and table.json in the folder `out`."""
    write_text(out / "table.md", _markdown(grid, outcomes))
    write_text(out / TABLE, json.dumps(_json(grid, outcomes, out), indent=1, ensure_ascii=False))


def _tables(grid: Grid, outcomes: Sequence[Outcome]) -> list[tuple[list[str], list[list[str]]]]:
    """Headings and rows: the cells, and their means if there are several seeds."""
    quantities = measured(outcomes)
    head = [*grid.swept, *(q.heading for q in quantities), "seconds", "verdict"]
    tables = [(head, [_cell_row(grid, outcome, quantities) for outcome in outcomes])]
    if len(grid.over.get(SEED, ())) > 1 and len(grid.swept) > 1:
        settings = [name for name in grid.swept if name != SEED]
        rows = [
            [*(to_text(summary.swept[name]) for name in settings), str(summary.seeds)]
            + [_spread_text(q, summary.metrics.get(q.name)) for q in quantities]
            for summary in over_seeds(outcomes)
        ]
        tables.append(([*settings, "seeds", *(f"{q.heading}, mean (range)" for q in quantities)], rows))
    return tables


def _cell_row(grid: Grid, outcome: Outcome, quantities: Sequence[Quantity]) -> list[str]:
    seconds = "-" if outcome.seconds is None else f"{outcome.seconds:.0f}"
    last = f"failed: {outcome.error}" if outcome.error else outcome.verdict or "not trained yet"
    return [
        *(to_text(outcome.cell.swept[name]) for name in grid.swept),
        *(q.text(outcome.metrics.get(q.name)) for q in quantities),
        seconds,
        last,
    ]


def _spread_text(quantity: Quantity, spread: Spread | None) -> str:
    if spread is None:
        return "-"
    return f"{quantity.text(spread.mean)} ({quantity.text(spread.low)} to {quantity.text(spread.high)})"


def _remarks(outcomes: Sequence[Outcome]) -> list[str]:
    """Why numbers are missing, each reason once, and the notes on rows."""
    reasons = dict.fromkeys(outcome.remark for outcome in outcomes if outcome.remark)
    notes = {o.cell.swept[ROW]: o.cell.note for o in outcomes if o.cell.note}
    return [_sentence(reason) for reason in reasons] + [f"{row}: {n}" for row, n in notes.items()]


def _sentence(reason: str) -> str:
    return f"{reason[0].upper()}{reason[1:]}{'' if reason.endswith('.') else '.'}"


def _markdown(grid: Grid, outcomes: Sequence[Outcome]) -> str:
    title = f"Grid {grid.name}, recipe {grid.recipe}" if grid.name else f"Grid over recipe {grid.recipe}"
    parts = [f"# {title}\n"]
    for head, rows in _tables(grid, outcomes):
        lines = [head, ["---"] * len(head), *rows]
        # A bar or a line break would break the table.
        parts.append("".join(f"| {' | '.join(_flat(text) for text in line)} |\n" for line in lines))
    if any(KNN.name in outcome.metrics for outcome in outcomes):
        parts.append(f"{PROTOCOL}\n")
    parts.extend(f"- {line}\n" for line in _remarks(outcomes))
    return "\n".join(parts)


def _flat(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _json(grid: Grid, outcomes: Sequence[Outcome], out: Path) -> dict[str, Any]:
    return {
        "grid": grid.name or None,
        "recipe": grid.recipe,
        "set": dict(grid.fixed),
        "swept": list(grid.swept),
        "protocol": PROTOCOL,
        "cells": [
            {
                "cell": outcome.cell.name,
                "state": outcome.state,
                "swept": dict(outcome.cell.swept),
                "metrics": dict(outcome.metrics),
                "verdict": outcome.verdict or None,
                "seconds": outcome.seconds,
                "remark": outcome.remark or None,
                "error": outcome.error or None,
                "note": outcome.cell.note or None,
                "command": outcome.cell.command(out / outcome.cell.name),
            }
            for outcome in outcomes
        ],
        "over_seeds": [asdict(summary) for summary in over_seeds(outcomes)],
    }
