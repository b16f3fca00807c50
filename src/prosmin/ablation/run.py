"""`prosmin ablate`: train the cells of a grid one after another, measure each, write a table and a plot."""

import gc
import sys
import warnings
from pathlib import Path

import torch
from lightning_fabric.utilities.rank_zero import rank_zero_only

from prosmin.ablation.cells import TABLE, Cell, check_folders, make_cells, other_runs
from prosmin.ablation.grid import Grid
from prosmin.ablation.outcome import Measure, Outcome, measured
from prosmin.ablation.plot import write_plot
from prosmin.ablation.table import print_table, write_table
from prosmin.errors import ProsminError, Stopped
from prosmin.messages import some
from prosmin.scoring.objective import ProprietyWarning
from prosmin.training.pretrain import pretrain

PLOT = "plot.svg"


def ablate(grid: Grid, out: Path) -> list[Outcome]:
    """Train and measure all cells; finished cells are not repeated, a failed cell does not stop the others."""
    cells = make_cells(grid)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProprietyWarning)  # make_cells has shown it once
        check_folders(cells, out)
        outcomes = _run_all(grid, cells, out)
    if _is_first():
        print_table(grid, outcomes)
        plot = f"; plot: {out / PLOT}" if measured(outcomes) else ""
        print(f"table: {out / 'table.md'}, {out / TABLE}{plot}")
        _report_others(other_runs(cells, out), out)
    failed = sum(1 for outcome in outcomes if outcome.error)
    if failed:
        raise ProsminError(
            f"{failed} of {len(cells)} cells failed; the table says why. The same command trains them again."
        )
    return outcomes


def _report_others(runs: list[str], out: Path) -> None:
    """Name the runs of another grid in the folder, whose table was replaced."""
    if runs:
        print(
            f"{out} also contains runs that are not in this table: {some(runs)}. To include them, add their values to "
            "--over; otherwise use a separate folder for each grid.",
            file=sys.stderr,
        )


def _run_all(grid: Grid, cells: list[Cell], out: Path) -> list[Outcome]:
    outcomes = [Outcome(cell=cell) for cell in cells]
    measure = Measure()
    for number, cell in enumerate(cells):
        _print(f"[{number + 1}/{len(cells)}] {cell.name}")
        outcomes[number] = _run(cell, out / cell.name, measure)
        if _is_first():  # after every cell, so that partial results can be read
            write_table(grid, outcomes, out)
            write_plot(grid, outcomes, out / PLOT)
    return outcomes


def _run(cell: Cell, folder: Path, measure: Measure) -> Outcome:
    try:
        pretrain(cell.config, folder)
        return measure(cell, folder) if _is_first() else Outcome(cell=cell)
    except Stopped as stopped:
        raise type(stopped)(f"{cell.name}: {stopped}") from stopped
    except ProsminError as error:
        outcome = Outcome(cell=cell, error=str(error))
    except Exception as error:
        hint = f"`{cell.command(folder)} --debug` shows the traceback."
        outcome = Outcome(cell=cell, error=f"unexpected {type(error).__name__}: {error}. {hint}")
    finally:
        gc.collect()  # networks are in reference cycles; without this two cells could be in GPU memory at once
        if cell.config.compute.compile != "none":
            torch.compiler.reset()  # otherwise torch stops compiling after eight networks
    _print(f"failed: {outcome.error}")
    return outcome


def _is_first() -> bool:
    """Whether this process measures and writes, when several train."""
    return getattr(rank_zero_only, "rank", 0) == 0


def _print(line: str) -> None:
    if _is_first():
        print(line, flush=True)
