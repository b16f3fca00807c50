"""What the numbers say, in words that a rule picks: on the probabilistic part, on finding strangers."""

import math
import statistics
from dataclasses import dataclass

from results_numbers import (
    CORRUPTION,
    ECE,
    FAR,
    KNN,
    LINEAR,
    NEAR,
    NLL,
    ONE_PERCENT,
    R_AUROC,
    R_AUROC_FAIR,
    RIVALS,
    SCORE,
    STRANGERS,
    TEN_PERCENT,
    Interval,
    Metric,
    Number,
    best_score,
    measure,
    name_seeds,
    ood_metric,
    over_seeds,
    score_names,
)
from results_runs import BACKBONES, METHODS, TABLES, Runs, Seeds, Table
from results_table import comparable

COMPARED = (KNN, LINEAR, ONE_PERCENT, TEN_PERCENT, NLL, ECE, CORRUPTION, NEAR, FAR, R_AUROC_FAIR)
"""The measures by which ProSMIN is held against its twin; the first gives the verdict.

R-AUROC counts once, and as the harder question: against the best of the twin's own orders."""


ONE_SEED = " (one seed)"
DISTANCE, JOINT = "knn_distance", "distance_and_scale"
"""The score of the features that the other adds the scale to."""
RIVAL_METHODS = ("dino", "ibot", "mocov3")
FIRST = next(table for table in TABLES if table.stage == "first")
AIMED = (KNN, LINEAR, NLL, CORRUPTION, NEAR, FAR, ECE)
"""What ProSMIN is to be first in."""


@dataclass(frozen=True)
class Difference:
    """ProSMIN less its deterministic twin in one measure, over the seeds that both have."""

    seeds: tuple[int, ...]
    value: float
    interval: Interval | None
    word: str


@dataclass(frozen=True)
class Comparison:
    """The two of one table and backbone: measure -> difference, None where a run has no such number."""

    title: str
    differences: dict[str, Difference | None]


def comparisons(runs: Runs) -> list[Comparison]:
    """Wherever both ran with a seed in common."""
    found = []
    for table in TABLES:
        for recipe in BACKBONES:
            names = table.runs(recipe)
            alike = comparable(names.values(), runs)
            ours, twin = (alike.get(names.get(method, ""), []) for method in ("prosmin", "deterministic"))
            if {run.seed for run in ours} & {run.seed for run in twin}:
                differences = {metric.title: subtract(metric, ours, twin) for metric in COMPARED}
                found.append(Comparison(label(table, recipe), differences))
    return found


def label(table: Table, recipe: str) -> str:
    """ResNet-18, 100 epochs, tuned."""
    kind = {"first": "before tuning", "table": "tuned", "headline": "tuned"}[table.stage]
    return f"{BACKBONES[recipe].split(' (')[0]}, {table.epochs} epochs, {kind}"


def subtract(metric: Metric, ours: Seeds, twin: Seeds) -> Difference | None:
    """Paired by seed: the sampling of both as if their pictures differed, and over several seeds Student's interval."""
    pairs = []
    for run in ours:
        other = next((each for each in twin if each.seed == run.seed), None)
        if other is not None:
            one, two = measure(metric, [run]), measure(metric, [other])
            if one is not None and two is not None:
                pairs.append((run.seed, one, two))
    if not pairs:
        return None
    values = tuple(one.mean - two.mean for _, one, two in pairs)
    halves = [math.hypot(one.half, two.half) for _, one, two in pairs if one.half is not None and two.half is not None]
    interval = over_seeds(values, halves) if len(values) > 1 else _sum_of(values[0], *pairs[0][1:])
    word = judge(interval, metric.better)
    if len(values) == 1:
        word += ONE_SEED
    return Difference(tuple(seed for seed, *_ in pairs), statistics.fmean(values), interval, word)


def judge(interval: Interval | None, better: int) -> str:
    """helps: all of the interval is on the better side; hurts: on the other; else no difference."""
    if interval is None:
        return "no interval"
    low, high = sorted(better * end for end in interval)
    return "helps" if low > 0 else "hurts" if high < 0 else "no difference beyond the interval"


def word_of(comparison: Comparison, metric: Metric) -> str:
    """The verdict on "the probabilistic part helps" by a measure."""
    found = comparison.differences[metric.title]
    return "not measured" if found is None else found.word


def probabilistic(found: list[Comparison]) -> list[str]:
    """That verdict with its numbers, a line for every pair of runs."""
    if not found:
        return ["**Verdict: not run.** No seed has both ProSMIN and its deterministic twin yet."]
    lines = []
    for comparison in found:
        main = comparison.differences[KNN.title]
        words = [each.word.removesuffix(ONE_SEED) for each in comparison.differences.values() if each]
        counts = ", ".join(f"{word}: {words.count(word)}" for word in dict.fromkeys(words))
        by = "" if main is None else f", {write_difference(KNN, main)} points with {name_seeds(main.seeds)}"
        lines.append(
            f"- {comparison.title}: **{word_of(comparison, KNN)}** by kNN top-1{by}. "
            f"Over the {len(words)} measures below: {counts}."
        )
    return lines


def write_difference(metric: Metric, difference: Difference) -> str:
    """+2.1 [+0.9, +3.3]."""
    text = metric.show(difference.value, sign=True)
    if difference.interval is None:
        return text
    low, high = (metric.show(end, sign=True) for end in difference.interval)
    return f"{text} [{low}, {high}]"


def final(runs: Runs) -> list[tuple[str, Seeds]]:
    """ProSMIN's run that counts on every backbone, by its label: of the most final table that has one."""
    found = []
    for recipe in BACKBONES:
        ran = [(table, runs[name]) for table in TABLES if (name := table.runs(recipe).get("prosmin", "")) in runs]
        found += [(label(table, recipe), seeds) for table, seeds in ran[:1]]
    return found


def against_methods(runs: Runs) -> list[str]:
    """ProSMIN and the best of the other methods, a column a backbone: the table with most of them, the most final."""
    columns, notes = {}, []
    for recipe in BACKBONES:
        tables = []
        for table in TABLES:
            names = table.runs(recipe)
            alike = comparable(names.values(), runs)
            ours = alike.get(names.get("prosmin", ""), [])
            others = {method: alike[name] for method in RIVAL_METHODS if (name := names.get(method)) in alike}
            lacking = [METHODS[method] for method in RIVAL_METHODS if method in names and method not in others]
            if ours and others:
                tables.append((table, ours, others, lacking))
        if tables:
            table, ours, others, lacking = max(tables, key=lambda each: len(each[2]))  # of as many, the first
            title = label(table, recipe)
            least = min(len(each) for each in (ours, *others.values()))
            named = {f"{METHODS[method]}{_age(seeds)}": seeds for method, seeds in others.items()}
            named |= before_tuning(table, recipe, runs)
            columns[title + (ONE_SEED if least == 1 else "")] = [_standing(metric, ours, named) for metric in AIMED]
            if lacking:
                notes.append(f"Not run yet, and perhaps better: {', '.join(lacking)} ({title}).")
    if not columns:
        return ["Not run yet."]
    notes += worse_when_tuned(runs)
    rows = zip((metric.title for metric in AIMED), *columns.values(), strict=True)
    head = f"| ProSMIN, and the best other method | {' | '.join(columns)} |"
    lines = [head, "|---" * (1 + len(columns)) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    return lines + (["", *notes] if notes else [])


def _age(seeds: Seeds) -> str:
    return ", earlier code" if any(run.is_earlier_code for run in seeds) else ""


def before_tuning(table: Table, recipe: str, runs: Runs) -> Runs:
    """The other methods' runs with the recipe before tuning, of as many epochs and of today's code.

    Tuning can choose wrongly: a method is held to the better of its two.
    """
    if table.stage != "table":
        return {}
    names = FIRST.runs(recipe)
    alike = comparable(names.values(), runs)
    found = {method: alike[name] for method in RIVAL_METHODS if (name := names.get(method)) in alike}
    return {f"{METHODS[method]}, before tuning": seeds for method, seeds in found.items() if not _age(seeds)}


def worse_when_tuned(runs: Runs) -> list[str]:
    """Where a method did better with the recipe before tuning, by the interval of the difference: trials misled."""
    tuned = next(table for table in TABLES if table.stage == "table")
    lines = []
    for recipe, backbone in BACKBONES.items():
        for method in METHODS:
            old, new = (runs.get(table.runs(recipe).get(method, ""), []) for table in (FIRST, tuned))
            if _age(old):
                continue
            worse = []
            for metric in (KNN, LINEAR, NEAR, FAR):
                one, two = measure(metric, new), measure(metric, old)
                if one and two and metric.better * (two.mean - one.mean) > 0 and told_apart(one, two):
                    worse.append(f"{metric.title} {metric.show(one.mean)}, {metric.show(two.mean)} before")
            if worse:
                lines.append(f"- Worse after tuning: {METHODS[method]}, {backbone.split(' (')[0]}: {'; '.join(worse)}.")
    return lines


def _standing(metric: Metric, ours: Seeds, others: Runs) -> str:
    """Whether it is ahead or behind in a measure, or cannot be told from the best other, with the numbers."""
    mine = measure(metric, ours)
    rivals = {name: number for name, seeds in others.items() if (number := measure(metric, seeds)) is not None}
    if mine is None or not rivals:
        return "not measured"
    best = max(rivals, key=lambda name: metric.better * rivals[name].mean)
    is_ahead = metric.better * (mine.mean - rivals[best].mean) > 0
    apart = told_apart(mine, rivals[best])
    if apart is None:
        word = f"{'better' if is_ahead else 'worse'}, without an interval"
    elif apart:
        word = "**ahead**" if is_ahead else "behind"
    else:
        word = "not told apart"
    return f"{metric.show(mine.mean)}, {metric.show(rivals[best].mean)} ({best}): {word}"


def told_apart(one: Number, two: Number) -> bool | None:
    """Whether 0 lies outside the interval of their difference; None where neither has one.

    Where one alone has an interval, a number within it is not told apart, and one beyond it is nobody knows what.
    """
    halves = [number.half for number in (one, two) if number.half is not None]
    apart = abs(one.mean - two.mean) > math.hypot(*halves)
    if len(halves) == 2:
        return apart
    return None if apart or not halves else False


def strangers(runs: Runs) -> list[str]:
    """Which label-free score carries ProSMIN's detection, and whether the learned scale does: a line a backbone."""
    lines = [
        f"- {title}: {'; '.join(_carrier(group, seeds) for group in STRANGERS)}."
        for title, seeds in final(runs)
        if best_score("near", seeds)
    ]
    return lines or ["Which score carries it, and whether the learned scale does: not run."]


def _carrier(group: str, seeds: Seeds) -> str:
    found = {name: measure(ood_metric(group, name), seeds) for name in score_names(seeds)}
    numbers = {name: number for name, number in found.items() if number is not None}
    metric, (best, *_) = ood_metric(group), sorted(numbers, key=lambda name: -numbers[name].mean)
    text = f"{group} ({STRANGERS[group]}): {_leader(numbers, metric)}"
    if best == SCORE:
        return f"{text}: it is the learned scale, {against_chance(numbers[best])}"
    if best == JOINT:
        parts = (f"`{name}` alone has {_short(metric, numbers[name])}" for name in (DISTANCE, SCORE) if name in numbers)
        return f"{text}: the learned scale is a part of it; {', '.join(parts)}"
    if SCORE not in numbers:
        return f"{text}, the learned scale (`{SCORE}`) was not measured"
    scale = numbers[SCORE]
    return (
        f"{text}, the learned scale (`{SCORE}`) reaches {_short(metric, scale)}, "
        f"{against_chance(scale)}, and {against_best(numbers[best], scale)}"
    )


def _leader(numbers: dict[str, Number], metric: Metric, *, clear: str = "carries it with") -> str:
    """The best of several, and whether its interval is clear of the next one's."""
    best, *others = sorted(numbers, key=lambda name: -numbers[name].mean)
    text = f"`{best}` {{}} {_short(metric, numbers[best])}"
    if not others:
        return text.format("alone has")
    second = f"`{others[0]}` ({_short(metric, numbers[others[0]])})"
    if not told_apart(numbers[best], numbers[others[0]]):
        return f"{text.format('is best with')}, not told apart from {second}"
    return f"{text.format(clear)}, before {second}"


def foretelling(runs: Runs) -> list[str]:
    """Which order foretells wrong neighbours best in ProSMIN's runs, the scale or one that needs none.

    Below it the best order of all other runs of the table, about its own errors.
    """
    lines = []
    for table in TABLES:
        for recipe in BACKBONES:
            names = table.runs(recipe)
            seeds = runs.get(names.get("prosmin", ""), [])
            orders = {"scale": R_AUROC, **RIVALS}
            found = {name: number for name, metric in orders.items() if (number := measure(metric, seeds)) is not None}
            if "scale" in found:
                lines.append(f"- {label(table, recipe)}: {_leader(found, R_AUROC, clear='is best with')}.")
                if others := _orders_of_others(table, recipe, runs):
                    best = max(others, key=lambda name: others[name].mean)
                    lines.append(f"  Of other encoders the best is {best}, {_short(R_AUROC, others[best])}.")
    return lines


def _orders_of_others(table: Table, recipe: str, runs: Runs) -> dict[str, Number]:
    found = {method: runs.get(name, []) for method, name in table.runs(recipe).items() if method != "prosmin"}
    named = {f"{METHODS[method]}{_age(seeds)}": seeds for method, seeds in found.items()}
    named |= before_tuning(table, recipe, runs)
    return {
        f"`{order}` of {name}": number
        for name, seeds in named.items()
        for order, metric in RIVALS.items()
        if (number := measure(metric, seeds)) is not None
    }


def against_chance(number: Number) -> str:
    """Where an AUROC's interval lies about 0.5."""
    if number.interval is None:
        return "without an interval"
    low, high = number.interval
    return "better than chance" if low > 0.5 else "worse than chance" if high < 0.5 else "no better than chance"


def against_best(first: Number, scale: Number) -> str:
    """Whether the learned scale carries the detection."""
    if not told_apart(first, scale):
        return "cannot be told from the best"
    return "it is not what carries it"


def _short(metric: Metric, number: Number) -> str:
    text = metric.show(number.mean)
    if number.interval is None:
        return text
    return f"{text} [{', '.join(metric.show(end) for end in number.interval)}]"


def _sum_of(value: float, one: Number, two: Number) -> Interval | None:
    if one.half is None or two.half is None:
        return None
    half = math.hypot(one.half, two.half)
    return value - half, value + half
