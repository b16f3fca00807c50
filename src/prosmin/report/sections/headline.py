"""The top of the page: is the training healthy, does the uncertainty point the right way, was something learned."""

import math
from collections.abc import Sequence

import numpy as np

from prosmin.evaluation.metrics.table import CHANCE, Metric, metric, number, percent
from prosmin.evaluation.protocols import PROTOCOLS
from prosmin.report.blocks import Bar, Block, Card, Finding, Missing, Section, Status, Verdict
from prosmin.report.commands import unlabelled
from prosmin.report.runs import Run
from prosmin.report.sections.configuration import sentence
from prosmin.report.sections.results import missing
from prosmin.report.sections.uncertainty import KINDS
from prosmin.report.tables import Column, best, columns
from prosmin.training.health import COLLAPSED_RANK, COLLAPSED_STD, FORGOTTEN, is_diverged, start_columns

WORST: Sequence[Status] = ("bad", "watch", "good", "unknown")
TRAINING: dict[Status, str] = {
    "good": "Training looks healthy",
    "watch": "Training: worth a look",
    "bad": "Training is not healthy",
    "unknown": "Training cannot be judged",
}
UNCERTAINTY: dict[Status, str] = {
    "good": "The uncertainty points the right way",
    "watch": "The uncertainty says little",
    "bad": "The uncertainty points the wrong way",
}

# A constant output has loss 0, so the loss alone cannot distinguish learning from collapse. The standard deviation
# of the targets and the rank of the features can; they are compared with the maximum of the same run.
COLLAPSED, FALLEN = 0.1, 0.3  # shares of the maximum
WIDE_SCALE, NARROW_SCALE = 10.0, 0.001  # of the targets' standard deviation
WEAK = 0.1  # rank correlations up to this size say nothing


def blocks(runs: Sequence[Run]) -> list[Block]:
    """Verdicts, then the few numbers that say whether something was learned, beside the baselines."""
    verdicts = [verdict for run in runs for verdict in _verdicts(run)]
    return [*verdicts, *(cards(runs, without_labels=any(map(unlabelled, runs))) or missing(runs))]


def _verdicts(run: Run) -> list[Block]:
    """The uncertainty comes first if it points the wrong way."""
    training: Block
    if run.log:
        training = judge_training(run)
    elif run.card:
        weights = Finding("unknown", f"Weights: {run.card.get('weights')}")
        training = Verdict(run=_name(run), status="unknown", title="Not trained here", findings=[weights])
    else:
        training = Missing(what=f"{run.name} has no metrics.jsonl", command=f"prosmin pretrain --out {run.quoted}")
    uncertainty = judge_uncertainty(run)
    if uncertainty is None:
        return [training]
    return [uncertainty, training] if uncertainty.status == "bad" else [training, uncertainty]


def _name(run: Run) -> str:
    return run.name if run.several else ""


def _verdict(run: Run, titles: dict[Status, str], findings: Sequence[Finding]) -> Verdict:
    """The worst finding gives the title."""
    status: Status = min((finding.status for finding in findings), key=WORST.index, default=WORST[-1])
    return Verdict(run=_name(run), status=status, title=titles[status], findings=findings)


def judge_uncertainty(run: Run) -> Verdict | None:
    """Whether the uncertainty rises as images get worse, and is higher if the nearest neighbour is wrong."""
    measured = run.metrics("uncertainty")
    findings = []
    for kind, (title, _) in KINDS.items():
        rise = measured.get(f"spearman_{kind}", math.nan)
        if rise < -WEAK:
            findings.append(Finding("bad", f"It falls with {title}, rank correlation {number(rise)}."))
        elif rise <= WEAK:
            findings.append(Finding("watch", f"It hardly changes with {title}, rank correlation {number(rise)}."))
        elif rise > WEAK:
            findings.append(Finding("good", f"It rises with {title}, rank correlation {number(rise)}."))
    r_auroc = measured.get("r_auroc", math.nan)
    if math.isfinite(r_auroc):
        right = r_auroc >= CHANCE
        text = f"It is {'higher' if right else 'lower'} for images with a wrong nearest neighbour: R-AUROC "
        findings.append(Finding("good" if right else "bad", f"{text}{number(r_auroc)}, where 0.5 is chance."))
    if any(finding.status == "bad" for finding in findings):
        advice = "Do not sort or filter images by it; use the out-of-distribution score instead."
        findings.append(Finding("bad", advice))
    findings.sort(key=lambda finding: WORST.index(finding.status))
    return _verdict(run, UNCERTAINTY, findings) if findings else None


def judge_training(run: Run) -> Verdict:
    """The findings on the training log."""
    found = [check(run) for check in (_loss, _spread, _rank, _scale, _accuracy, _kept, _average, _length)]
    return _verdict(run, TRAINING, [finding for finding in found if finding])


def _ends(run: Run, name: str) -> tuple[float, float, float] | None:
    """A value at the start and at the end of the log (medians over a tenth), and its maximum."""
    _, values = run.column(name)
    values = values[np.isfinite(values)]
    if not values.size:
        return None
    tenth = max(1, len(values) // 10)
    return float(np.median(values[:tenth])), float(np.median(values[-tenth:])), float(values.max())


def _loss(run: Run) -> Finding | None:
    steps, values = run.column("loss")
    if not np.isfinite(values).all():
        return Finding("bad", f"The loss stopped being finite at step {number(steps[~np.isfinite(values)][0])}.")
    ends = _ends(run, "loss")
    if not ends:
        return None
    start, end, _ = ends
    if len(values) == 1 and not is_diverged([{"loss": end}]):
        return None  # one line shows no trend
    change = f"from {number(start)} to {number(end)}"
    if is_diverged([{"loss": start}, {"loss": end}]):
        return Finding("bad", f"The loss rose {change}: it diverged. Try a lower optimizer.lr.")
    if end <= start:
        return Finding("good", f"The loss fell {change}.")
    return Finding("good", f"The loss rose {change}, which is normal while the targets spread out.")


def _collapse(run: Run, name: str, title: str, limit: float, share: float) -> Finding | None:
    """Whether a number ended below a limit or a share of its maximum (collapse), or fell far."""
    ends = _ends(run, name)
    if not ends:
        return None
    _, end, most = ends
    change = f"the {title} ended at {number(end)}; its maximum was {number(most)}."
    if end < limit or end <= share * most:
        return Finding("bad", f"Collapse: {change}")
    if end <= FALLEN * most:
        return Finding("watch", f"Close to collapse: {change}")
    return Finding("good", f"No collapse: the {title} is {number(end)}.")


def _spread(run: Run) -> Finding | None:
    return _collapse(run, "target_std", "standard deviation of the targets", COLLAPSED_STD, COLLAPSED)


def _rank(run: Run) -> Finding | None:
    return _collapse(run, "feature_rank", "effective rank of the features", COLLAPSED_RANK, 0.0)


def _scale(run: Run) -> Finding | None:
    scale, spread = _ends(run, "scale_mean"), _ends(run, "target_std")
    if not scale or not spread or spread[1] <= 0:
        return None
    ratio = scale[1] / spread[1]
    size = f"predicted scale is {number(scale[1])}, {ratio:.2g} times the standard deviation of the targets"
    if ratio > WIDE_SCALE:
        return Finding("bad", f"The forecast diverged: the {size}. A loss.lam below 1/2 causes this.")
    if ratio < NARROW_SCALE:
        return Finding("watch", f"The forecast became a point: the {size}.")
    low, high = _ends(run, "scale_min"), _ends(run, "scale_max")
    within = f", from {number(low[1])} to {number(high[1])} within a batch" if low and high else ""
    return Finding("good", f"The {size}{within}.")


def _accuracy(run: Run) -> Finding | None:
    steps, values = run.column("knn_top1")
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    first, last, top = float(values[0]), float(values[-1]), float(values.max())
    if last >= top - 0.02:
        return Finding("good", f"kNN accuracy during training went from {percent(first)} to {percent(last)}.")
    at = number(steps[int(values.argmax())])
    return Finding(
        "watch", f"kNN accuracy during training ended at {percent(last)}, below its best, {percent(top)} at step {at}."
    )


def _kept(run: Run) -> Finding | None:
    """Whether training forgot the encoder that it started from."""
    kept = start_columns(run.log).get("start_neighbours")
    if kept is None:
        return None
    limit = run.setting("training", "guard") or FORGOTTEN
    text = f"training kept {percent(kept)} of the starting encoder's nearest neighbours"
    if kept < limit:
        return Finding("watch", f"Forgetting: {text}, less than {percent(limit)}.")
    return Finding("good", f"No forgetting: {text}.")


def _average(run: Run) -> Finding | None:
    """What training.guard made of the trained weights."""
    share = run.trained_share
    if share == 1:
        return None
    mixed = f"{percent(share)} of the trained and {percent(1 - share)} of the starting weights"
    what = mixed if share else "the starting one"
    return Finding("watch", f"training.guard: the encoder is {what}; the other findings are of the trained weights.")


def _length(run: Run) -> Finding | None:
    epochs, most = run.setting("training", "epochs"), run.setting("training", "max_steps")
    done = run.log[-1].get("epoch") if run.log else None
    if done is None or not epochs or most is not None or done >= 0.97 * epochs:
        return None
    text = f"The log ends at epoch {number(done)} of {epochs}: not finished. The same command resumes the run."
    return Finding("watch", text)


READINGS = {
    "spearman_blur": "1: it always rises with blur. 0: no relation. −1: it always falls.",
    "energy_skill": "0: no better than one constant uncertainty for all images. 1: perfect.",
}
"""For numbers that have no baseline."""


def cards(runs: Sequence[Run], *, without_labels: bool) -> list[Card]:
    """The headline numbers of the protocols; `without_labels` adds those that stand in for accuracies."""
    found = [
        card(columns(runs, name), key, f"{record.title} {metric(key).title}")
        for name, record in PROTOCOLS.items()
        for key in (*record.headlines, *(record.headlines_without_labels if without_labels else ()))
    ]
    return [one for one in found if one]


def card(of: Sequence[Column], key: str, title: str) -> Card | None:
    """A headline number with a bar for every run and baseline; None if no run has it."""
    how = metric(key)
    having = [c for c in of if math.isfinite(c.metrics.get(key, math.nan))]
    trained, others = [c for c in having if c.trained], [c for c in having if not c.trained]
    if not trained:
        return None
    if not others and how.unit == "auroc":
        others = [Column(label="chance", metrics={key: CHANCE}, style="quiet", trained=False)]
    pick = max if how.better == "higher" else min
    top = pick(c.metrics[key] for c in trained)
    rival = pick(others, key=lambda c: c.metrics[key]) if others else None
    reading = compare(how, top, rival.metrics[key], rival.label) if rival else READINGS.get(key, "")
    bars = _bars([*trained, *others], key, how)
    return Card(title=title, arrow=how.arrow(), value=how.text(top), reading=reading, bars=bars)


def _bars(of: Sequence[Column], key: str, how: Metric) -> list[Bar]:
    """Bars from zero, in the middle if a number is negative, to 1, or to the longest of several if lower is better."""
    values = [column.metrics[key] for column in of]
    full = 1.0 if how.better == "higher" else max(map(abs, values)) if len(values) > 1 else 0.0
    if not full:
        return []
    low = -full if min(values) < 0 else 0.0
    return [
        Bar(column.label, how.text(v), (min(v, 0.0) - low) / (full - low), abs(v) / (full - low), column.style, bold)
        for column, v, bold in zip(of, values, best(values, how), strict=True)
    ]


def compare(how: Metric, value: float, rival: float, name: str) -> str:
    """A number against the best baseline, in words."""
    name = f"the {name}" if name.startswith("untrained") else name
    if how.text(value) == how.text(rival):
        return f"the same as {name}"
    gap = f"{100 * abs(value - rival):.1f} points" if how.percent else f"{abs(value - rival):.3f}"
    ahead = (value > rival) == (how.better == "higher")
    return f"{gap} {'better' if ahead else 'worse'} than {name}"


def lead(runs: Sequence[Run]) -> str:
    """The whole page in a few words: a wrong uncertainty first, what was run, the first headline number."""
    wrong = [run.name for run in runs if (verdict := judge_uncertainty(run)) and verdict.status == "bad"]
    named = f" ({', '.join(wrong)})" if len(runs) > 1 else ""
    warning = f"{UNCERTAINTY['bad']}{named}: see below." if wrong else ""
    what = sentence(runs[0]) if len(runs) == 1 else f"{len(runs)} runs side by side."
    return " ".join(filter(None, [warning, what, _first_number(runs)]))


def _first_number(runs: Sequence[Run]) -> str:
    if found := cards(runs, without_labels=False):
        value = ", ".join(filter(None, [found[0].value, found[0].reading]))
        return f"{'Best ' if len(runs) > 1 else ''}{found[0].title}: {value}."
    if not any(run.results for run in runs):
        return "Nothing has been measured yet."
    if any(map(unlabelled, runs)):
        return "The images have no labels, so accuracy and calibration were not measured."
    return "None of the headline numbers has been measured yet."


SECTION = Section(
    id="headline",
    title="At a glance",
    lead="Numbers are compared with raw pixels and the untrained encoder. Arrows show which direction is better.",
    build=blocks,
)
