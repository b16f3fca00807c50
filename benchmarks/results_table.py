"""The tables of RESULTS.md: methods with ranks, scores, one axis at a time, files."""

import dataclasses
from collections import Counter
from collections.abc import Iterable

import results_words as words
from prosmin.data.corruptions.parameters import parameters_of
from results_baselines import baseline_rows, baselines
from results_cells import NOT_MEASURED, NOT_RUN, cell, code, head, row, seed_list
from results_collapse import has_collapsed
from results_numbers import (
    BLOCKS,
    ECE,
    FORETELLING,
    KNN,
    LINEAR,
    NLL,
    RANK,
    SCALE,
    SCORE,
    TARGET,
    TARGET_STD,
    Column,
    Metric,
    Number,
    measure,
    name_seeds,
    ood_metric,
    score_names,
    write,
)
from results_runs import BACKBONES, METHODS, TABLES, Finished, Runs, Seeds, Table, differing, missing

OTHER_SEVERITIES = "other severities"
SEVERITIES = {"cifar-10-c": "CIFAR-10-C's", "imagenet-c": "ImageNet-C's"}
"""The parameters of generated corruptions, those first that are preferred where as many runs have the others."""
SCALE_SCORES = ("mean_log_scale", "total_variance", "cross_view_energy", "distance_and_scale")
"""Scores that a method without a scale does not have."""


def methods(table: Table, recipe: str, runs: Runs) -> list[str]:
    """A backbone's tables, one a kind of measure, and where ProSMIN stands in them."""
    names = table.runs(recipe)
    if len(missing(list(names.values()), runs)) == len(names):
        return [f"Not run yet: {code(names.values())}."]
    lines: list[str] = []
    places: dict[str, int] = {}
    alike = comparable(names.values(), runs)
    for title, columns in BLOCKS.items():
        if title == TARGET and not any(_numbers(column, names, alike) for column in columns.values()):
            continue
        lines += [f"**{title}**", "", *head("method", "seed numbers", *columns)]
        cells = {heading: _column(column, names, runs, alike) for heading, column in columns.items()}
        for method, name in names.items():
            age = ", earlier code" if any(run.is_earlier_code for run in runs.get(name, [])) else ""
            told = (cells[heading][method] for heading in cells)
            lines.append(row(METHODS[method] + age, seed_list(runs.get(name)), *told))
        lines += [*baseline_rows(title, columns, baselines(names.values(), runs)), ""]
        for heading, column in columns.items():
            ranks = rank(_numbers(column, names, alike))
            if len(ranks) > 1 and "prosmin" in ranks:
                places[heading] = ranks["prosmin"]
    fallen = [METHODS[method] for method, name in names.items() if any(map(has_collapsed, runs.get(name, [])))]
    note = [words.FALLEN.format(" and ".join(fallen)), ""] if fallen else []
    return [*note, *lines, *_severities(names.values(), runs), *_standing(places), *_unplanned(names)]


def comparable(names: Iterable[str], runs: Runs) -> Runs:
    """The named runs, without the corruption results of those whose severities most of them do not share."""
    named = {name: runs[name] for name in names if name in runs}
    shared = _shared_severities(named)
    return {name: [_only(shared, run) for run in seeds] for name, seeds in named.items()}


def corruption_parameters(run: Finished) -> str | None:
    """Whose severities its corruptions had; None where it saw none."""
    found = run.document["results"].get("corruption")
    if found is None:
        return None
    return parameters_of(found.get("settings", {})) or "stored"


def _shared_severities(named: Runs) -> str | None:
    """What most files have; of as many each, the first of SEVERITIES."""
    counts = Counter(found for seeds in named.values() for run in seeds if (found := corruption_parameters(run)))
    order = [*SEVERITIES, *sorted(set(counts) - set(SEVERITIES))]
    return max(counts, key=lambda name: (counts[name], -order.index(name)), default=None)


def _only(shared: str | None, run: Finished) -> Finished:
    if corruption_parameters(run) in (shared, None):
        return run
    results = {name: result for name, result in run.document["results"].items() if name != "corruption"}
    return dataclasses.replace(run, document=run.document | {"results": results})


def _severities(names: Iterable[str], runs: Runs) -> list[str]:
    """A note on the corruption columns."""
    named = {name: runs[name] for name in names if name in runs}
    shared = _shared_severities(named)
    if shared is None:
        return []
    made = f"generated with {SEVERITIES[shared]} severities" if shared in SEVERITIES else "read from stored sets"
    note = f"Corruptions are {made}."
    if any(corruption_parameters(run) not in (shared, None) for seeds in named.values() for run in seeds):
        note += f" Runs with others are neither shown nor ranked in these columns ({OTHER_SEVERITIES})."
    return [note, ""]


def rank(numbers: dict[str, tuple[Metric, Number]]) -> dict[str, int]:
    """1 for the best mean, equal ranks for equal means; empty where neither way is better."""
    # Rounded: the mean of three equal numbers differs from the number in its last bit.
    means = {method: round(metric.better * number.mean, 12) for method, (metric, number) in numbers.items()}
    ranked = {method: mean for method, mean in means.items() if numbers[method][0].better}
    return {method: 1 + sum(other > value for other in ranked.values()) for method, value in ranked.items()}


def scores(runs: Runs) -> list[str]:
    """Every label-free score of every method that ran, near / far."""
    rows = [
        (table, recipe, method, runs[name])
        for table in TABLES
        for recipe in BACKBONES
        for method, name in table.runs(recipe).items()
        if name in runs
    ]
    names = list(dict.fromkeys(name for *_, seeds in rows for name in score_names(seeds)))
    if not names:
        return ["Not run yet."]
    lines = head("run", "method", "seed numbers", *(f"`{name}`" for name in names))
    for table, recipe, method, seeds in rows:
        cells = [_both(seeds, name) for name in names]
        run = f"{BACKBONES[recipe].split(' (')[0]}, {table.title.split(':')[0].lower()}"
        lines.append(row(run, METHODS[method], seed_list(seeds), *cells))
    return lines


def axis(values: dict[str, str], runs: Runs, *, title: str) -> list[str]:
    """One field's values: value -> name of its run."""
    columns = (KNN, LINEAR, NLL, TARGET_STD, SCALE, RANK)
    lines = head(title, "seed numbers", *(metric.title for metric in columns), "health")
    for value, name in values.items():
        seeds = runs.get(name, [])
        cells = [cell(metric, seeds) for metric in columns]
        lines.append(row(value, seed_list(seeds), *cells, health(seeds) if seeds else NOT_RUN))
    return lines


def variants(names: Iterable[str], reference: str, runs: Runs) -> list[str]:
    """Runs that differ from the reference in a field or two, which the files themselves name."""
    columns = (KNN, LINEAR, NLL, ECE, TARGET_STD, RANK)
    lines = head("run", "differs in", "seed numbers", *(metric.title for metric in columns), "health")
    for name in (reference, *names):
        seeds = runs.get(name, [])
        cells = [cell(metric, seeds) for metric in columns]
        apart = _apart(seeds, runs.get(reference, []), is_reference=name == reference)
        lines.append(row(f"`{name}`", apart, seed_list(seeds), *cells, health(seeds) if seeds else NOT_RUN))
    return lines


def health(seeds: Seeds) -> str:
    """The verdict in a word; by seed where seeds differ."""
    by_verdict: dict[str, list[int]] = {}
    for run in seeds:
        by_verdict.setdefault(run.verdict, []).append(run.seed)
    if len(by_verdict) == 1:
        return next(iter(by_verdict))
    return ", ".join(f"{verdict} ({name_seeds(tuple(found))})" for verdict, found in by_verdict.items())


def others(names: list[str], runs: Runs) -> list[str]:
    """Runs that no table above plans."""
    columns = (KNN, LINEAR, NLL, ECE)
    lines = head("run", "seed numbers", *(metric.title for metric in columns), "health")
    for name in names:
        cells = [cell(metric, runs[name]) for metric in columns]
        lines.append(row(f"`{name}`", seed_list(runs[name]), *cells, health(runs[name])))
    lines += ["", "**What foretells a wrong neighbour, R-AUROC %**", ""]
    lines += head("run", "seed numbers", *(metric.title for metric in FORETELLING))
    for name in names:
        lines.append(row(f"`{name}`", seed_list(runs[name]), *(cell(metric, runs[name]) for metric in FORETELLING)))
    return lines


def files(runs: Runs) -> list[str]:
    """Where every number comes from."""
    lines = head("file", "configuration", "epochs", "seed", "hardware", "command")
    for run in (run for seeds in runs.values() for run in seeds):
        document = run.document
        cells = (f"`{document['fingerprint']}`", str(document["epochs"]), str(run.seed), hardware(run))
        command = f"`{document['command'].replace('|', chr(92) + '|')}`"
        other = document.get("same_training_as")
        lines.append(row(f"`{run.file}`", *cells, f"the same training as `{other}`" if other else command))
    return lines


def hardware(run: Finished) -> str:
    """The device and what ran on it."""
    machine = run.document["hardware"]
    return f"{machine['device']}, torch {machine['torch']}"


def _numbers(column: Column, names: dict[str, str], runs: Runs) -> dict[str, tuple[Metric, Number]]:
    """Method -> its measure and number, for the methods that have one."""
    found = {}
    for method, name in names.items():
        if name in runs:
            metric = column(runs[name])
            number = measure(metric, runs[name])
            if number is not None:
                found[method] = (metric, number)
    return found


def _column(column: Column, names: dict[str, str], runs: Runs, alike: Runs) -> dict[str, str]:
    """A column's cells: the number, its rank in brackets, the best in bold."""
    measured, numbers = _numbers(column, names, runs), _numbers(column, names, alike)
    ranks = rank(numbers)
    cells = {}
    for method, name in names.items():
        if method not in numbers:
            absent = OTHER_SEVERITIES if method in measured else NOT_MEASURED
            cells[method] = absent if name in runs else NOT_RUN
            continue
        text = write(*numbers[method], runs[name])
        if method in ranks and len(ranks) > 1:  # the first of one is no rank
            text = f"{text} ({ranks[method]})"
            text = f"**{text}**" if ranks[method] == 1 else text
        cells[method] = text
    return cells


def _standing(places: dict[str, int]) -> list[str]:
    """ProSMIN's rank in every column, best first."""
    if not places:
        return []
    by_place: dict[int, list[str]] = {}
    for heading, place in places.items():
        by_place.setdefault(place, []).append(heading)
    return [
        "ProSMIN's rank among the methods that ran:",
        "",
        *(f"- {place}: {' · '.join(by_place[place])}" for place in sorted(by_place)),
        "",
    ]


def _unplanned(names: dict[str, str]) -> list[str]:
    absent = [METHODS[method] for method in METHODS if method not in names]
    return [f"Not planned in this table: {', '.join(absent)}."] if absent else []


def _both(seeds: Seeds, score: str) -> str:
    cells = []
    for group in ("near", "far"):
        metric = ood_metric(group, score)
        number = measure(metric, seeds)
        if number is None:
            has_scale = measure(ood_metric(group, SCORE), seeds) is not None
            return "no scale" if score in SCALE_SCORES and not has_scale else NOT_MEASURED
        best = max(
            (found.mean for name in score_names(seeds) if (found := measure(ood_metric(group, name), seeds))),
            default=number.mean,
        )
        text = metric.show(number.mean)
        cells.append(f"**{text}**" if number.mean == best else text)
    return " / ".join(cells)


def _apart(seeds: Seeds, reference: Seeds, *, is_reference: bool) -> str:
    if is_reference:
        return "the reference"
    if not seeds:
        return NOT_RUN
    if not reference:
        return "the reference is not run"
    mine, its = seeds[0].configuration, reference[0].configuration
    return ", ".join(f"`{field}` {mine.get(field)} for {its.get(field)}" for field in differing(mine, its)) or "nothing"
