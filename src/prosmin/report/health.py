"""Whether a run was healthy, in words, judged from its log alone."""

from collections.abc import Sequence

import numpy as np

from prosmin.report.blocks import Finding, Status, Verdict
from prosmin.report.glossary import number, percent
from prosmin.report.runs import Run
from prosmin.training.health import COLLAPSED_RANK, COLLAPSED_STD, is_diverged

TITLES: dict[Status, str] = {
    "good": "Healthy",
    "watch": "Worth a look",
    "bad": "Not healthy",
    "unknown": "Nothing to judge",
}
WORST: Sequence[Status] = ("bad", "watch", "good", "unknown")

# A constant output has loss 0, so the loss alone cannot tell learning from collapse. The spread of the
# targets and the rank of the features can; they are compared with the most the run itself has reached.
COLLAPSED, FALLEN = 0.1, 0.3  # shares of it
WIDE_SCALE, NARROW_SCALE = 10.0, 0.001  # of the targets' own spread


def judge(run: Run) -> Verdict:
    """The findings on one run; the worst gives the verdict its title."""
    found = [check(run) for check in (_loss, _spread, _rank, _scale, _accuracy, _length)]
    findings = [finding for finding in found if finding]
    status = next(s for s in WORST if s == "unknown" or any(f.status == s for f in findings))
    return Verdict(run=run.name, status=status, title=TITLES[status], findings=findings)


def _ends(run: Run, name: str) -> tuple[float, float, float] | None:
    """A value at the start and at the end of the log (medians over a tenth), and its largest."""
    _, values = run.column(name)
    values = values[np.isfinite(values)]
    if not values.size:
        return None
    tenth = max(1, len(values) // 10)
    return float(np.median(values[:tenth])), float(np.median(values[-tenth:])), float(values.max())


def _loss(run: Run) -> Finding | None:
    steps, values = run.column("loss")
    if not np.isfinite(values).all():
        first = steps[~np.isfinite(values)][0]
        return Finding(status="bad", text=f"The loss stopped being finite at step {number(first)}.")
    ends = _ends(run, "loss")
    if not ends:
        return None
    start, end, _ = ends
    if len(values) == 1 and not is_diverged([{"loss": end}]):
        return None  # of one line there is no telling
    if is_diverged([{"loss": start}, {"loss": end}]):
        text = f"The loss rose from {number(start)} to {number(end)}: it diverged. A lower optimizer.lr helps."
        return Finding(status="bad", text=text)
    if end <= start:
        return Finding(status="good", text=f"The loss fell from {number(start)} to {number(end)}.")
    text = f"The loss rose from {number(start)} to {number(end)}, as it can while the targets spread out."
    return Finding(status="good", text=text)


def _spread(run: Run) -> Finding | None:
    ends = _ends(run, "target_std")
    if not ends:
        return None
    _, end, most = ends
    said = f"their spread ended at {number(end)}, after {number(most)} at its largest."
    if end <= COLLAPSED * most or end < COLLAPSED_STD:
        return Finding(status="bad", text=f"The targets collapsed: {said}")
    if end <= FALLEN * most:
        return Finding(status="watch", text=f"The targets are drawing together: {said}")
    return Finding(status="good", text=f"No collapse: the targets keep a spread of {number(end)}.")


def _rank(run: Run) -> Finding | None:
    ends = _ends(run, "feature_rank")
    if not ends:
        return None
    _, end, most = ends
    if end < COLLAPSED_RANK:
        return Finding(status="bad", text=f"The features use about {number(end)} direction: they have collapsed.")
    if end <= FALLEN * most:
        text = f"The features use about {end:.0f} directions, after {most:.0f} at their richest."
        return Finding(status="watch", text=text)
    return Finding(status="good", text=f"The features use about {end:.0f} directions (effective rank).")


def _scale(run: Run) -> Finding | None:
    scale, spread = _ends(run, "scale_mean"), _ends(run, "target_std")
    if not scale or not spread or spread[1] <= 0:
        return None
    ratio = scale[1] / spread[1]
    said = f"the forecast's scale is {number(scale[1])}, {ratio:.2g} times the targets' own spread"
    if ratio > WIDE_SCALE:
        text = f"The uncertainty ran away: {said}. A weight loss.lam below 1/2 does this."
        return Finding(status="bad", text=text)
    if ratio < NARROW_SCALE:
        return Finding(status="watch", text=f"The uncertainty all but vanished: {said}.")
    low, high = _ends(run, "scale_min"), _ends(run, "scale_max")
    within = f", from {number(low[1])} to {number(high[1])} within a batch" if low and high else ""
    return Finding(status="good", text=f"{said[0].upper()}{said[1:]}{within}.")


def _accuracy(run: Run) -> Finding | None:
    steps, values = run.column("knn_top1")
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    first, last, top = float(values[0]), float(values[-1]), float(values.max())
    if last >= top - 0.02:
        return Finding(
            status="good", text=f"kNN accuracy during training went from {percent(first)} to {percent(last)}."
        )
    at = number(steps[int(values.argmax())])
    text = f"kNN accuracy during training ended at {percent(last)}, below its best, {percent(top)} at step {at}."
    return Finding(status="watch", text=text)


def _length(run: Run) -> Finding | None:
    epochs, most = run.setting("training", "epochs"), run.setting("training", "max_steps")
    done = run.log[-1].get("epoch") if run.log else None
    if done is None or not epochs or most is not None or done >= 0.97 * epochs:
        return None
    text = f"The log ends at epoch {number(done)} of {epochs}: not finished; the same command continues it."
    return Finding(status="watch", text=text)
