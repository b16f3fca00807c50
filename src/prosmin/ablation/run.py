"""`prosmin ablate`: train the cells of a grid one after another, judge each, leave a table and a plot."""

import gc
import sys
import warnings
from pathlib import Path

import torch
from lightning_fabric.utilities.rank_zero import rank_zero_only

from prosmin.ablation.cells import TABLE, Cell, check_folders, make_cells, other_runs
from prosmin.ablation.grid import Grid
from prosmin.ablation.outcome import Judge, Outcome, measured
from prosmin.ablation.plot import write_plot
from prosmin.ablation.table import print_table, write_table
from prosmin.errors import ProsminError, Stopped
from prosmin.messages import some
from prosmin.scoring.objective import ProprietyWarning
from prosmin.training.pretrain import pretrain

PLOT = "plot.svg"


def ablate(grid: Grid, out: Path) -> list[Outcome]:
    """Every cell trained and judged; finished ones are not repeated, a failed one does not stop the others."""
    cells = make_cells(grid)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProprietyWarning)  # make_cells has said it, once
        check_folders(cells, out)
        outcomes = _run_all(grid, cells, out)
    if _is_first():
        print_table(grid, outcomes)
        plot = f"; plot: {out / PLOT}" if measured(outcomes) else ""
        print(f"table: {out / 'table.md'}, {out / TABLE}{plot}")
        _tell_others(other_runs(cells, out), out)
    failed = sum(1 for outcome in outcomes if outcome.error)
    if failed:
        raise ProsminError(
            f"{failed} of {len(cells)} cells failed; the table says why. The same command tries them again."
        )
    return outcomes


def _tell_others(runs: list[str], out: Path) -> None:
    """Name the runs of another grid in the folder: its table was replaced."""
    if runs:
        print(
            f"{out} also holds runs that this table leaves out: {some(runs)}. To have them in it, name their values "
            "in --over beside these, or give other grids other folders with --out.",
            file=sys.stderr,
        )


def _run_all(grid: Grid, cells: list[Cell], out: Path) -> list[Outcome]:
    outcomes = [Outcome(cell=cell) for cell in cells]
    judge = Judge()
    for number, cell in enumerate(cells):
        _say(f"[{number + 1}/{len(cells)}] {cell.name}")
        outcomes[number] = _run(cell, out / cell.name, judge)
        if _is_first():  # after every cell: a person may look before the last has finished
            write_table(grid, outcomes, out)
            write_plot(grid, outcomes, out / PLOT)
    return outcomes


def _run(cell: Cell, folder: Path, judge: Judge) -> Outcome:
    try:
        pretrain(cell.config, folder)
        return judge(cell, folder) if _is_first() else Outcome(cell=cell)
    except Stopped as stopped:
        raise type(stopped)(f"{cell.name}: {stopped}") from stopped
    except ProsminError as error:
        outcome = Outcome(cell=cell, error=str(error))
    except Exception as error:
        where = f"`{cell.command(folder)} --debug` shows the place."
        outcome = Outcome(cell=cell, error=f"unexpected {type(error).__name__}: {error}. {where}")
    finally:
        gc.collect()  # the networks hold each other; without this two cells may meet in a GPU's memory
        if cell.config.compute.compile != "none":
            torch.compiler.reset()  # after eight networks torch would stop compiling the same lines again
    _say(f"failed: {outcome.error}")
    return outcome


def _is_first() -> bool:
    """Whether this process is the one that judges and writes, when several train."""
    return getattr(rank_zero_only, "rank", 0) == 0


def _say(sentence: str) -> None:
    if _is_first():
        print(sentence, flush=True)
