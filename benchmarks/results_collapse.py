"""Does training collapse: every run that forecasts a scale, by what theory says of its score."""

from prosmin.scoring import Propriety, propriety
from results_cells import head, row
from results_numbers import KNN, at_bound
from results_runs import Finished, Runs, Seeds

PROPER, BOUNDED, WITHOUT = "proper score", "not proper, but with a minimum", "without a minimum"
EARLIER = "earlier"
WORDS = {
    PROPER: "does not hold, not even where the score is proper",
    BOUNDED: "does not hold, not even where the score has a minimum",
    WITHOUT: "does not hold where the score has no minimum, not contradicted where it has one",
}


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
    return run.verdict not in ("healthy", "unknown") or learnt_nothing


def collapse_word(runs: Runs) -> str:
    """The verdict on "it cannot collapse": of all runs and, where it differs, of those that today's code trained."""
    every = [run for seeds in runs.values() for run in seeds if _counts(run)]
    word, today = _word(every), _word([run for run in every if not run.is_earlier_code])
    return word if word == today else f"{word}, in a run of earlier code; with the code of today: {today}"


def collapse(runs: Runs, lam_runs: list[str]) -> list[str]:
    """The verdict, the counts behind it, and the runs that collapsed."""
    groups: dict[tuple[str, str, str], Seeds] = {}
    for run in (run for seeds in runs.values() for run in seeds if _counts(run)):
        term = "with" if run.document["configuration"]["loss"].get("identification") else "without"
        age = EARLIER if run.is_earlier_code else "today's"
        groups.setdefault((standing(run), term, age), []).append(run)
    lines = [f"**Verdict: {collapse_word(runs)}.**"]
    absent = [name for name in lam_runs if name not in runs]
    if absent:
        lines[0] += f" {len(absent)} of {len(lam_runs)} runs along `loss.lam` are missing."
    if groups:
        lines += ["", *head("what theory says", "identification", "code", "runs", "collapsed")]
    for group, found in sorted(groups.items(), key=lambda item: (list(WORDS).index(item[0][0]), item[0][2] == EARLIER)):
        lines.append(row(*group, str(len(found)), str(sum(map(has_collapsed, found)))))
    fallen = [run for found in groups.values() for run in found if has_collapsed(run)]
    return [*lines, "", *(f"- `{run.file}`: {_how(run)}" for run in fallen)]


def _word(runs: Seeds) -> str:
    """The first group with a collapsed run decides."""
    if not runs:
        return "not run"
    fallen = {standing(run) for run in runs if has_collapsed(run)}
    return next((words for title, words in WORDS.items() if title in fallen), "not contradicted")


def _counts(run: Finished) -> bool:
    """A training that forecasts with a learned scale, counted once."""
    tree = run.document["configuration"]
    return tree["heads"].get("scale") == "learned" and "lam" in tree["loss"] and not run.is_copy


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
    """What was seen of a collapsed run, and what it is not."""
    top1 = run.metric("knn", "top1")
    knn = "" if top1 is None else f"; kNN {KNN.show(top1)} %"
    text = f"lam {_lam(run):g}, {run.document['health']['verdict'].partition(';')[0]}{knn}"
    first, last = (point.get("target_std") for point in (run.document["health"]["path"][i] for i in (0, -1)))
    if at_bound(run):
        text += "; the scale ran to its bound"
        if first is not None and last is not None and last >= first:
            text += f"; the target's spread did not vanish ({first:.3f} at first, {last:.3f} in the end)"
    return text + ("; earlier code, which no longer exists" if run.is_earlier_code else "")
