"""Out-of-distribution images: histograms of the scores, ROC curves, every score on every set in a table."""

from collections.abc import Sequence

import numpy as np

from prosmin.evaluation.metrics.table import metric, number, percent
from prosmin.evaluation.metrics.table import score as score_name
from prosmin.report.blocks import Block, Cell, Figure, Fold, Row, Section, Table, figure
from prosmin.report.drawing.axes import unit_axis
from prosmin.report.drawing.charts import Curve, line_chart, two_histograms
from prosmin.report.drawing.svg import Words
from prosmin.report.runs import Run, numbers
from prosmin.report.tables import Column, apart, cells, scores_table

RATES = (0.01, 0.05, 0.1, 0.2, 0.5)  # false alarm rates of the table below a ROC


def blocks(runs: Sequence[Run]) -> list[Block]:
    """The default score on every set, then all scores."""
    names = list(dict.fromkeys(name for run in runs for name in sets(run)))
    found: list[Block] = []
    for run in runs:
        default = default_score(run)
        found += [score_figure(run, name, default) for name in sets(run) if has(run, name, default)]
    found += [drawn for j, name in enumerate(names) if (drawn := roc_figure(runs, name, j))]
    if len(runs) == 1:
        return [*found, *_details(runs[0])]
    found += [_comparison(runs, name) for name in names]
    folded = [(run, _details(run)) for run in runs]
    return [*found, *(Fold(title=f"All numbers of {run.name}", blocks=inner) for run, inner in folded if inner)]


def sets(run: Run) -> dict[str, dict[str, dict[str, float]]]:
    """The numbers of every score on every set: {set: {score: {metric: value}}}."""
    return {
        str(name): {str(score): numbers(values) for score, values in scores.items() if isinstance(values, dict)}
        for name, scores in run.part("ood", "sets").items()
        if isinstance(scores, dict)
    }


def default_score(run: Run) -> str:
    """The score of the headline number: the one named in the settings, or the one with the same AUROC."""
    scores = list(dict.fromkeys(score for values in sets(run).values() for score in values))
    named = run.part("ood", "settings").get("default_score")
    if named in scores:
        return str(named)
    headline = run.metrics("ood").get("auroc", np.nan)
    means = {s: np.mean([v[s].get("auroc", np.nan) for v in sets(run).values() if s in v]) for s in scores}
    return next((s for s in scores if abs(means[s] - headline) < 1e-6), scores[0] if scores else "")


def has(run: Run, name: str, score: str) -> bool:
    """Whether the scores of single images of a set were stored."""
    arrays = run.arrays.get("ood", {})
    return f"in/{score}" in arrays and f"out/{name}/{score}" in arrays


def raw(run: Run, name: str, score: str) -> tuple[np.ndarray, np.ndarray]:
    """Finite scores of in-distribution and of out-of-distribution images: (n,), (m,)."""
    arrays = run.arrays["ood"]
    inside, outside = (np.asarray(arrays[key], dtype=float).ravel() for key in (f"in/{score}", f"out/{name}/{score}"))
    mask = arrays.get(f"in_mask/{name}")  # a set may be compared only with the test images of some classes
    if mask is not None and mask.shape == inside.shape and mask.dtype == bool:
        inside = inside[mask]
    return inside[np.isfinite(inside)], outside[np.isfinite(outside)]


def score_figure(run: Run, name: str, score: str) -> Figure:
    """The scores of in-distribution and of out-of-distribution images as two histograms."""
    inside, outside = raw(run, name, score)
    auroc = sets(run).get(name, {}).get(score, {}).get("auroc")
    medians = apart([float(np.median(scores)) for scores in (inside, outside)])
    names = list(sets(run))
    scores = sorted({s for values in sets(run).values() for s in values})
    words = Words(
        id=f"ood-{run.position}-{names.index(name)}-{scores.index(score)}",
        title=f"{score_name(score)} on {name}{run.suffix}",
        desc=(f"AUROC {number(auroc)}. " if auroc is not None else "")
        + f"Median {medians[0]} for in-distribution images, {medians[1]} for {name}.",
        x="score",
        y="share of images",
    )
    return two_histograms(words, [("in-distribution", inside, "s0"), (name, outside, "s1")], run.command("ood"))


def roc(inside: np.ndarray, outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ROC with out-of-distribution as positive: false alarms (n,) and hits (n,), both rising from 0 to 1."""
    scores = np.concatenate([inside, outside])
    order = np.argsort(-scores, kind="stable")
    positive = (order >= len(inside)).astype(float)
    last = np.append(np.diff(scores[order]) != 0, True)  # equal scores are one step
    hits, alarms = np.cumsum(positive)[last], np.cumsum(1 - positive)[last]
    return np.append(0.0, alarms / max(len(inside), 1)), np.append(0.0, hits / max(len(outside), 1))


def roc_figure(runs: Sequence[Run], name: str, j: int) -> Figure | None:
    """The ROC of the default score, one curve per run; for one run all scores, the others in grey."""
    curves: list[Curve] = []
    rows: list[Row] = []
    for run in runs:
        default = default_score(run)
        scores = [default] if len(runs) > 1 else [s for s in sets(run).get(name, {}) if s != default] + [default]
        for score in (s for s in scores if has(run, name, s)):
            alarms, hits = roc(*raw(run, name, score))
            label = f"{run.name}: {score_name(score)}" if len(runs) > 1 else score_name(score)
            if score == default:
                curves.append(Curve(label=label, x=alarms, y=hits, style=run.style))
            else:
                curves.append(Curve(label="" if curves else "other scores", x=alarms, y=hits, style="quiet"))
            rows.append([Cell(label, head=True), *(percent(float(hits[alarms <= rate].max())) for rate in RATES)])
    if not curves:
        return None
    words = Words(
        id=f"roc-{j}",
        title=f"ROC on {name}",
        desc=f"The share of {name} that is detected against the share of in-distribution images flagged by mistake.",
        x="false alarms",
        y="detected",
    )
    return figure(
        words,
        line_chart(words, curves, x=unit_axis(), y=unit_axis()),
        columns=["detected at false alarms of", *(percent(rate) for rate in RATES)],
        rows=rows[::-1],
        commands=[run.command("ood") for run in runs if name in sets(run)],
    )


def _comparison(runs: Sequence[Run], name: str) -> Table:
    """The AUROC of every score on one set, one column per run."""
    rows: list[Row] = []
    for score in dict.fromkeys(score for run in runs for score in sets(run).get(name, {})):
        of = [Column(label=run.name, metrics=sets(run).get(name, {}).get(score, {})) for run in runs]
        rows.append([Cell(score_name(score), head=True), *cells(of, "auroc")])
    columns = [f"{metric('auroc').heading()} on {name}", *(run.name for run in runs)]
    return Table(columns=columns, rows=rows, caption=f"AUROC on {name}")


def _details(run: Run) -> list[Block]:
    """Every score on every set as tables, and the histograms of the other scores."""
    tables = [
        scores_table({score_name(score): values for score, values in scores.items()}, f"{name}{run.suffix}")
        for name, scores in sets(run).items()
    ]
    default = default_score(run)
    others = [
        score_figure(run, name, score)
        for name, scores in sets(run).items()
        for score in scores
        if score != default and has(run, name, score)
    ]
    return [*tables, *([Fold(title=f"Histograms of the other scores{run.suffix}", blocks=others)] if others else [])]


SECTION = Section(
    id="ood",
    title="Out of distribution",
    lead="A score measures how different an image is from the training images; no label was used. In-distribution "
    "images are test images of the same kind as the training images. At AUROC 1 every out-of-distribution image "
    "scores higher than every in-distribution one; 0.5 is chance.",
    build=blocks,
    protocol="ood",
)
