"""What the numbers say, in words that a rule picks: on the probabilistic part, on collapse, on finding strangers."""

import math
import statistics
from dataclasses import dataclass

from prosmin.scoring import Propriety, propriety
from results_numbers import (
    CORRUPTION,
    ECE,
    FAR,
    KNN,
    LINEAR,
    NEAR,
    NLL,
    ONE_PERCENT,
    R_AUROC_FAIR,
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
)
from results_runs import BACKBONES, TABLES, Finished, Runs, Seeds, Table
from results_table import comparable

COMPARED = (KNN, LINEAR, ONE_PERCENT, TEN_PERCENT, NLL, ECE, CORRUPTION, NEAR, FAR, R_AUROC_FAIR)
"""The measures by which ProSMIN is held against its twin; the first gives the verdict.

R-AUROC counts once, and as the harder question: the twin's distance foretells more than its variance between views."""


ONE_SEED = " (one seed)"
PROPER, BOUNDED, WITHOUT = "proper score", "not proper, but with a minimum", "without a minimum"


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
    """Paired by seed: Student's interval over several; of one, the sampling of both as if their pictures differed."""
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
    interval = over_seeds(values) if len(values) > 1 else _sum_of(values[0], *pairs[0][1:])
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


def threshold(run: Finished) -> float:
    """The lam below which this run's score has no minimum, by theory."""
    return _theory(run).threshold


def inflation(run: Finished) -> float:
    """By theory, the scale that this run's score asks for, over the true spread."""
    return _theory(run).scale_inflation


def standing(run: Finished) -> str:
    """What theory says of this run's score."""
    theory = _theory(run)
    if theory.proper:
        return PROPER
    return WITHOUT if _lam(run) <= theory.threshold else BOUNDED


def has_collapsed(run: Finished) -> bool:
    """The health verdict says so, or kNN is no better than an untrained network's."""
    untrained = [
        row["top1"]
        for name, row in run.document["results"].get("knn", {}).get("baselines", {}).items()
        if name.startswith("untrained")
    ]
    top1 = run.metric("knn", "top1")
    learnt_nothing = top1 is not None and bool(untrained) and top1 <= max(untrained)
    return run.verdict != "healthy" or learnt_nothing


def by_standing(runs: Runs) -> dict[str, Seeds]:
    """Every run that forecasts a scale, by what theory says of its score."""
    groups: dict[str, Seeds] = {PROPER: [], BOUNDED: [], WITHOUT: []}
    for run in (run for seeds in runs.values() for run in seeds if _forecasts(run)):
        groups[standing(run)].append(run)
    return groups


def collapse_word(runs: Runs) -> str:
    """The verdict on "it cannot collapse": the first group with a collapsed run decides."""
    groups = by_standing(runs)
    if not any(groups.values()):
        return "not run"
    words = {
        PROPER: "does not hold, not even where the score is proper",
        BOUNDED: "does not hold, not even where the score has a minimum",
        WITHOUT: "holds only where the score has a minimum",
    }
    return next((words[title] for title, group in groups.items() if any(map(has_collapsed, group))), "not contradicted")


def collapse(runs: Runs, lam_runs: list[str]) -> list[str]:
    """The verdict, the counts behind it, and the runs that collapsed."""
    groups = by_standing(runs)
    fallen = {title: [run for run in group if has_collapsed(run)] for title, group in groups.items()}
    counts = [f"{title}: {len(fallen[title])} of {len(group)}" for title, group in groups.items() if group]
    absent = [name for name in lam_runs if name not in runs]
    lines = [f"**Verdict: {collapse_word(runs)}.** Collapsed, by what theory says: {'; '.join(counts) or 'none ran'}."]
    if absent:
        lines[0] += f" {len(absent)} of {len(lam_runs)} runs along `loss.lam` are missing."
    if any(fallen.values()):
        lines += ["", *(f"- `{run.file}`: {_how(run)}" for group in fallen.values() for run in group)]
    return lines


def strangers(runs: Runs) -> list[str]:
    """Which label-free score carries ProSMIN's detection, and whether the learned scale does: a line a backbone."""
    lines = []
    for recipe in BACKBONES:
        # The most final table first: one line a backbone, of the run that counts.
        for table in TABLES:
            seeds = runs.get(table.runs(recipe).get("prosmin", ""), [])
            if seeds and best_score("near", seeds):
                parts = [_carrier(group, seeds) for group in ("near", "far")]
                lines.append(f"- {label(table, recipe)}: {'; '.join(parts)}.")
                break
    return lines or ["Which score carries it, and whether the learned scale does: not run."]


def _carrier(group: str, seeds: Seeds) -> str:
    best = best_score(group, seeds)
    assert best is not None
    metric = ood_metric(group, best)
    first, scale = measure(metric, seeds), measure(ood_metric(group, SCORE), seeds)
    assert first is not None
    text = f"{group} ({STRANGERS[group]}): `{best}` carries it with {_short(metric, first)}"
    if best == SCORE:
        return f"{text}: the learned scale, {against_chance(first)}"
    if scale is None:
        return f"{text}, the learned scale (`{SCORE}`) was not measured"
    return (
        f"{text}, the learned scale (`{SCORE}`) reaches {_short(metric, scale)}, "
        f"{against_chance(scale)}, and {against_best(first, scale)}"
    )


def against_chance(number: Number) -> str:
    """Where an AUROC's interval lies about 0.5."""
    if number.interval is None:
        return "without an interval"
    low, high = number.interval
    return "better than chance" if low > 0.5 else "worse than chance" if high < 0.5 else "no better than chance"


def against_best(first: Number, scale: Number) -> str:
    """Whether the learned scale carries the detection."""
    if first.interval and scale.interval and scale.interval[1] >= first.interval[0]:
        return "cannot be told from the best: their intervals overlap"
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


def _forecasts(run: Finished) -> bool:
    tree = run.document["configuration"]
    return tree["heads"].get("scale") == "learned" and "lam" in tree["loss"]


def _lam(run: Finished) -> float:
    return run.document["configuration"]["loss"]["lam"]


def _theory(run: Finished) -> Propriety:
    loss, views = run.document["configuration"]["loss"], run.document["configuration"]["views"]
    return propriety(
        loss["beta"],
        loss["lam"],
        rule=loss["rule"],
        pairs=loss["pairs"],
        views=2 + views["local"],
        samples=None if loss["estimator"] == "closed" else loss["samples"],
    )


def _how(run: Finished) -> str:
    top1 = run.metric("knn", "top1")
    knn = "" if top1 is None else f"; kNN {KNN.show(top1)} %"
    return f"lam {_lam(run):g}, {run.document['health']['verdict'].partition(';')[0]}{knn}"
