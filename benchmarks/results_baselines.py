"""What needs no training, beside the methods: raw pixels and the same network untrained."""

import dataclasses
from collections.abc import Iterable

from results_cells import cell, row, seed_list
from results_numbers import BASELINED, Column
from results_runs import Finished, Runs


def baseline_rows(title: str, columns: dict[str, Column], found: Runs) -> list[str]:
    """Rows without ranks, in the tables that the files' baselines have numbers for."""
    if title not in BASELINED:
        return []
    return [
        row(kind, seed_list(seeds), *(cell(column(seeds), seeds) for column in columns.values()))
        for kind, seeds in found.items()
    ]


def baselines(names: Iterable[str], runs: Runs) -> Runs:
    """What needs no training, as runs: of the first of the named that has it.

    All of a seed have the same, but MoCo v3's ViT, whose own start is not shown.
    """
    for name in names:
        kinds = list(dict.fromkeys(kind for run in runs.get(name, []) for kind in _kinds(run)))
        if kinds:
            return {kind: [_untrained(kind, run) for run in runs[name] if kind in _kinds(run)] for kind in kinds}
    return {}


def _kinds(run: Finished) -> list[str]:
    found = [kind for result in run.document["results"].values() for kind in result.get("baselines", {})]
    return list(dict.fromkeys(found))


def _untrained(kind: str, run: Finished) -> Finished:
    results = {
        name: {"metrics": result["baselines"][kind], "settings": result.get("settings", {})}
        for name, result in run.document["results"].items()
        if kind in result.get("baselines", {})
    }
    return dataclasses.replace(run, document={"seed": run.seed, "results": results})
