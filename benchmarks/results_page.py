"""Rebuild RESULTS.md and its figures from the files in benchmarks/results/ alone: `make results`.

    python benchmarks/results_page.py

The sentences of results_words.py hold whatever the numbers are; every number, rank and verdict is made from the files.
"""

from collections import Counter
from pathlib import Path

import evidence
import results_tuning
import results_words as words
from prosmin.files import write_text, writing
from results_collapse import collapse, collapse_word
from results_figures import Points, draw_axis, draw_lam, draw_twin
from results_forecasts import along, forecasts, in_short
from results_lam import higher, shared
from results_numbers import KNN, R_AUROC_FAIR
from results_recipe import recipe
from results_runs import BACKBONES, METHODS, TABLES, Runs, missing, planned, read_runs
from results_table import axis, files, hardware, methods, others, scores, variants
from results_verdicts import (
    COMPARED,
    against_methods,
    comparisons,
    final,
    foretelling,
    probabilistic,
    strangers,
    word_of,
    write_difference,
)

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"
PAGE, FIGURES = "RESULTS.md", "docs/figures"

AXES = {
    "samples": ("loss.samples", "Samples of the forecast"),
    "momentum": ("target.momentum", "Momentum of the target"),
    "dim": ("heads.dim", "Size of the embedding"),
}
"""Figures of the paper beside lam: short name -> field and title."""
SWITCHES = ("identification", "same-view", "rule", "norm", "batchnorm", "predictor")
REFERENCE = f"{evidence.RESNET}-samples-4"
"""The run that switches are held against: everything as the recipe has it."""

STAGES = {
    "first": "all methods, 100 epochs, recipes as they were before tuning",
    "table": "all methods, 100 epochs, with what tuning kept",
    "headline": "ResNet-18, 200 epochs",
    "lam": "ProSMIN along `loss.lam`, 25 epochs, ResNet-18",
    "axes": "ProSMIN along other fields, 25 epochs, ResNet-18",
}

LIGHTLY = (("FastSiam", 128, 90.6), ("BYOL", 512, 86.8), ("SimCLR", 512, 84.8), ("DINO", 128, 84.0))
"""Method, batch size, kNN %: lightly's published CIFAR-10 benchmark, ResNet-18 with a 3x3 stem, 200 epochs."""


class Page:
    """The text as it grows, and the figures it shows."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.figures: dict[str, bytes] = {}

    def add(self, *lines: str) -> None:
        """A paragraph, a list or a table."""
        self.lines += [*lines, ""]

    def show(self, name: str, caption: str, figure: bytes) -> None:
        """A figure in its place."""
        path = f"{FIGURES}/results-{name}.svg"
        self.figures[path] = figure
        self.add(f"![{caption}]({path})")

    @property
    def text(self) -> str:
        """The whole page; one empty line between parts."""
        kept = [line for i, line in enumerate(self.lines) if line or (i and self.lines[i - 1])]
        return "\n".join(kept).rstrip() + "\n"


def build(folder: Path = RESULTS) -> dict[str, bytes]:
    """Path from the repository's root -> content, for the page and every figure."""
    runs = read_runs(folder)
    page = Page()
    _beginning(page, runs, folder)
    for part in (_reading, _methods, _forecasts, _scores, _claims, _ablations, _others):
        part(page, runs)
    _tuning(page, folder)
    _files(page, runs)
    return {PAGE: page.text.encode(), **page.figures}


def write(built: dict[str, bytes], root: Path = ROOT) -> None:
    """All of it onto the disk; a figure that is shown no longer goes."""
    for path in (root / FIGURES).glob("results-*.svg"):
        if f"{FIGURES}/{path.name}" not in built:
            path.unlink()
    for name, content in built.items():
        if name == PAGE:
            write_text(root / name, content.decode())
        else:
            with writing(root / name) as part:
                part.write_bytes(content)


def _beginning(page: Page, runs: Runs, folder: Path) -> None:
    trained = [run for seeds in runs.values() for run in seeds if not run.is_copy]
    page.add("# Results")
    page.add(words.INTRODUCTION)
    _in_short(page, runs)
    page.add("## What was run")
    page.add(words.PROTOCOL)
    page.add(*recipe(runs, folder))
    page.add(words.CHOICES)
    page.add(
        "| stage | runs | with a file | seeds | lacking |", "|---|---|---|---|---|", *(_stage(s, runs) for s in STAGES)
    )
    reasons = [f"`{name}` will not be run: {why}." for name, why in words.NEVER.items() if name not in runs]
    reasons += [_waiting(stage, runs) for stage in words.WAITING if _waits(stage, runs)]
    if reasons:
        page.add(*reasons)
    devices = sorted(Counter(map(hardware, trained)).items())
    told = "; ".join(f"{name} ({count})" for name, count in devices) or "none yet"
    page.add(f"{len(trained)} trainings. Hardware: {told}.")


def _in_short(page: Page, runs: Runs) -> None:
    """The claims in a word each; their sections say the rest."""
    found = comparisons(runs)
    by_knn, by_errors = (
        "; ".join(f"{each.title}: {word_of(each, metric)}" for each in found) or "not run"
        for metric in (KNN, R_AUROC_FAIR)
    )
    holds = [f"  - {title}: {in_short(seeds)}." for title, seeds in final(runs) if seeds[0].has_forecast]
    page.add("## In short")
    if any(run.configuration.get("loss.identification") for _, seeds in final(runs) for run in seeds):
        page.add(words.OURS)
    page.add(*against_methods(runs))
    page.add(
        f"- Does the probabilistic part make better features (kNN)? {by_knn}.",
        f"- Does it foretell errors better (R-AUROC of the scale against its twin's best order)? {by_errors}.",
        f"- Does its forecast hold what it promises?{'' if holds else ' not run.'}",
        *holds,
        f'- "It cannot collapse": {collapse_word(runs)}.',
    )


def _stage(stage: str, runs: Runs) -> str:
    names = planned(stage)
    lacking = missing(names, runs)
    seeds = sorted({run.seed for name in names for run in runs.get(name, [])})
    lack = ", ".join(f"`{name}`" for name in lacking) or "none"
    lack = "all" if len(lacking) == len(names) else lack
    cells = (STAGES[stage], str(len(names)), str(len(names) - len(lacking)), ", ".join(map(str, seeds)) or "none", lack)
    return f"| {' | '.join(cells)} |"


def _waits(stage: str, runs: Runs) -> list[str]:
    """The runs of a stage that were not made and are not given up."""
    return [name for name in missing(planned(stage), runs) if name not in words.NEVER]


def _waiting(stage: str, runs: Runs) -> str:
    """Why they lack, and what they would cost by the seconds of the same method's run of 100 epochs."""
    plan = {run.name: run for run in evidence.STAGES[stage]}
    minutes = 0.0
    for name in _waits(stage, runs):
        method = next((each for each in METHODS if f"-{each}-" in name), "prosmin")
        made = runs.get(f"{plan[name].recipe}-{method}-100", [])
        seconds = [run.document["training_seconds"] for run in made if run.document["training_seconds"]]
        if not seconds:
            return words.WAITING[stage].format(cost="")
        minutes += seconds[0] * int(plan[name].fields["training.epochs"]) / 100 / 60
    cost = f", some {minutes:.0f} minutes of training by the seconds of the runs of 100 epochs"
    return words.WAITING[stage].format(cost=cost)


def _reading(page: Page, runs: Runs) -> None:
    page.add("## How to read a number")
    page.add(words.READING)


def _methods(page: Page, runs: Runs) -> None:
    for table in sorted(TABLES, key=lambda table: not any(name in runs for name in planned(table.stage))):
        page.add(f"## {table.title}")
        older = any(run.is_earlier_code for name in planned(table.stage) for run in runs.get(name, []))
        if table.stage == "first" and older:
            page.add(words.FIRST)
        for backbone, title in BACKBONES.items():
            if not table.runs(backbone):
                continue
            page.add(f"### {title}, {table.epochs} epochs" + (" (before tuning)" if table.suffix else ""))
            page.add(*methods(table, backbone, runs))
        if table.stage == "headline":
            page.add(words.LIGHTLY)
            rows = (f"| {name} | {batch} | {value:.1f} |" for name, batch, value in LIGHTLY)
            page.add("| published (lightly) | batch | kNN top-1 % |", "|---|---|---|", *rows)


def _forecasts(page: Page, runs: Runs) -> None:
    page.add("## Does the forecast hold?")
    page.add(words.FORECASTS)
    tabled = [name for table in TABLES for name in planned(table.stage)]
    page.add(*forecasts([*tabled, *_unplanned(runs)], runs))


def _scores(page: Page, runs: Runs) -> None:
    page.add("## Out of distribution: every label-free score")
    page.add(words.SCORES)
    page.add(*scores(runs))
    page.add(*strangers(runs))
    page.add(words.SSD)


def _claims(page: Page, runs: Runs) -> None:
    found = comparisons(runs)
    page.add("## Claim: the probabilistic part helps")
    page.add(words.TWIN)
    page.add(*probabilistic(found))
    if found:
        caption = "Differences between ProSMIN and its deterministic twin with their intervals"
        page.show("twin", caption, draw_twin(found))
        titles = " | ".join(comparison.title for comparison in found)
        rows = []
        for metric in COMPARED:
            cells = []
            for comparison in found:
                each = comparison.differences[metric.title]
                cells.append("not measured" if each is None else f"{write_difference(metric, each)} {each.word}")
            rows.append(f"| {metric.title} | {' | '.join(cells)} |")
        page.add(f"| difference in | {titles} |", "|---" * (len(found) + 1) + "|", *rows)
    if orders := foretelling(runs):
        page.add(
            "Which order foretells a wrong neighbour best within ProSMIN's runs, R-AUROC in per cent:", "", *orders
        )
    page.add("## Claim: it cannot collapse")
    page.add(words.COLLAPSE)
    page.add(*collapse(runs, planned("lam")))


def _ablations(page: Page, runs: Runs) -> None:
    page.add("## Ablations")
    page.add(words.ABLATIONS)
    _lam(page, runs)
    for short, (field, title) in AXES.items():
        page.add(f"### {title}")
        values = _values(short, planned("axes"))
        points = _points(values, runs)
        if len(points) > 1:
            page.show(short, f"kNN and linear top-1 against {field}", draw_axis(points, field=field))
        _axis(page, values, runs, field=field)
    page.add("### Single fields")
    names = [name for short in SWITCHES for name in _values(short, planned("axes")).values()]
    if len(missing(names, runs)) == len(names):
        page.add(f"Not run yet: {', '.join(f'`{name}`' for name in names)}.")
    else:
        page.add(*variants(names, REFERENCE, runs))


def _lam(page: Page, runs: Runs) -> None:
    page.add("### lam")
    values = _values("lam", planned("lam"))
    points = _points(values, runs)
    page.add(shared(values.values(), runs))
    if len(points) > 1:
        caption = "kNN, spread of the target and learned scale against lam, with the theoretical threshold"
        page.show("lam", caption, draw_lam(points))
        page.add(words.LAM)
    _axis(page, values, runs, field="loss.lam")
    page.add(higher(points))


def _axis(page: Page, values: dict[str, str], runs: Runs, *, field: str) -> None:
    lacking = missing(list(values.values()), runs)
    if len(lacking) == len(values):
        page.add(f"Not run yet: {', '.join(f'`{name}`' for name in lacking)}.")
    else:
        page.add(*axis(values, runs, title=f"`{field}`"))
        page.add(*along(values, runs, title=f"`{field}`"))


def _values(short: str, names: list[str]) -> dict[str, str]:
    """The values of a field and the names of their runs."""
    start = f"{evidence.RESNET}-{short}-"
    return {name.removeprefix(start): name for name in names if name.startswith(start)}


def _points(values: dict[str, str], runs: Runs) -> Points:
    return {float(value): runs[name] for value, name in values.items() if name in runs}


def _unplanned(runs: Runs) -> list[str]:
    known = {name for stage in STAGES for name in planned(stage)}
    return [name for name in runs if name not in known]


def _others(page: Page, runs: Runs) -> None:
    names = _unplanned(runs)
    if names:
        page.add("## Other runs")
        page.add("Files of runs that no table above plans.")
        page.add(*others(names, runs))


def _tuning(page: Page, folder: Path) -> None:
    page.add("## What was tuned")
    page.add(words.TUNING)
    page.add(*results_tuning.table(folder))


def _files(page: Page, runs: Runs) -> None:
    page.add("## Where every number comes from")
    page.add(words.FILES)
    page.add(*(files(runs) if runs else ["No files yet."]))


if __name__ == "__main__":
    write(build())
