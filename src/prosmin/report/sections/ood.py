"""Out-of-distribution images: histograms of the scores, ROC curves, every score on every set in a table."""

from collections.abc import Sequence

import numpy as np

from prosmin.evaluation.metrics.table import metric, number, percent
from prosmin.evaluation.metrics.table import score as score_name
from prosmin.report.blocks import Block, Cell, Figure, Fold, Missing, Row, Section, Table
from prosmin.report.commands import evaluate_command
from prosmin.report.drawing.axes import unit_axis
from prosmin.report.drawing.charts import Curve, line_chart, two_groups
from prosmin.report.drawing.svg import Words, series
from prosmin.report.metrics import apart, best
from prosmin.report.runs import Run, numbers

RATES = (0.01, 0.05, 0.1, 0.2, 0.5)  # false alarms at which the table beneath a ROC reads it


def ood_section(runs: Sequence[Run]) -> Section:
    """The chosen score on every set, then all scores."""
    blocks: list[Block] = []
    for i, run in enumerate(runs):
        if "ood" not in run.results:
            what = (
                f"{run.name} has no out-of-distribution scores"
                if len(runs) > 1
                else "No out-of-distribution scores yet"
            )
            blocks.append(Missing(what=what, command=evaluate_command(run, "ood")))
            continue
        chosen = default_score(run)
        blocks += [
            score_figure(run, i, name, chosen, named=len(runs) > 1) for name in sets(run) if has(run, name, chosen)
        ]
    blocks += [
        f for j, name in enumerate(dict.fromkeys(n for r in runs for n in sets(r))) if (f := roc_figure(runs, name, j))
    ]
    if len(runs) == 1:
        blocks += _details(runs[0], 0, named=False)
    else:
        blocks += [_comparison(runs, name) for name in dict.fromkeys(n for r in runs for n in sets(r))]
        folds = [(run, _details(run, i, named=True)) for i, run in enumerate(runs)]
        blocks += [Fold(title=f"All numbers of {run.name}", blocks=inner) for run, inner in folds if inner]
    lead = (
        "A score says how unlike the training images an image is; no label was used. Familiar images "
        "are test images of the training kind. An out-of-distribution image is the positive class: at "
        "AUROC 1 every such image scores above every familiar one, at 0.5 the score is a coin."
    )
    return Section(id="ood", title="Out of distribution", lead=lead, blocks=blocks)


def sets(run: Run) -> dict[str, dict[str, dict[str, float]]]:
    """The numbers of every score on every set: {set: {score: {metric: value}}}."""
    found = run.part("ood", "sets")
    return {
        str(name): {str(score): numbers(values) for score, values in scores.items() if isinstance(values, dict)}
        for name, scores in found.items()
        if isinstance(scores, dict)
    }


def default_score(run: Run) -> str:
    """The score the headline speaks of: the one named in the settings, or the one whose AUROC it repeats."""
    scores = list(dict.fromkeys(score for values in sets(run).values() for score in values))
    said = run.part("ood", "settings").get("default_score")
    if said in scores:
        return str(said)
    headline = run.metrics("ood").get("auroc", np.nan)
    means = {s: np.mean([v[s].get("auroc", np.nan) for v in sets(run).values() if s in v]) for s in scores}
    near = [s for s in scores if abs(means[s] - headline) < 1e-6]
    return near[0] if near else (scores[0] if scores else "")


def has(run: Run, name: str, score: str) -> bool:
    """Whether the raw scores of a set were kept."""
    arrays = run.arrays.get("ood", {})
    return f"in/{score}" in arrays and f"out/{name}/{score}" in arrays


def raw(run: Run, name: str, score: str) -> tuple[np.ndarray, np.ndarray]:
    """Finite scores of familiar and of out-of-distribution images: (n,), (m,)."""
    arrays = run.arrays["ood"]
    inside, outside = (np.asarray(arrays[key], dtype=float).ravel() for key in (f"in/{score}", f"out/{name}/{score}"))
    mask = arrays.get(f"in_mask/{name}")  # a set may be held against the test images of its own classes alone
    if mask is not None and mask.shape == inside.shape and mask.dtype == bool:
        inside = inside[mask]
    return inside[np.isfinite(inside)], outside[np.isfinite(outside)]


def score_figure(run: Run, i: int, name: str, score: str, *, named: bool) -> Figure:
    """The scores of familiar and of out-of-distribution images as two histograms."""
    inside, outside = raw(run, name, score)
    title = f"{score_name(score)} on {name}" + (f", {run.name}" if named else "")
    auroc = sets(run).get(name, {}).get(score, {}).get("auroc")
    said = f"AUROC {number(auroc)}. " if auroc is not None else ""
    middle = apart([float(np.median(scores)) for scores in (inside, outside)])
    said += f"Median {middle[0]} for familiar images, {middle[1]} for {name}."
    names = list(sets(run))
    scores = sorted({s for values in sets(run).values() for s in values})
    id = f"ood-{i}-{names.index(name)}-{scores.index(score) if score in scores else 0}"
    words = Words(id=id, title=f"Histogram of {title}", desc=said, x="score", y="share of images")
    chart, table = two_groups(words, [("familiar", inside, "s0"), (name, outside, "s1")])
    return Figure(id=f"figure-{id}", title=title, chart=chart, reading=said, table=table, commands=[run.command("ood")])


def roc(inside: np.ndarray, outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ROC, out-of-distribution positive: false alarms (n,) and hits (n,), both rising from 0 to 1."""
    scores = np.concatenate([inside, outside])
    order = np.argsort(-scores, kind="stable")
    positive = (order >= len(inside)).astype(float)
    last = np.append(np.diff(scores[order]) != 0, True)  # equal scores are one step
    hits, alarms = np.cumsum(positive)[last], np.cumsum(1 - positive)[last]
    return np.append(0.0, alarms / max(len(inside), 1)), np.append(0.0, hits / max(len(outside), 1))


def roc_figure(runs: Sequence[Run], name: str, j: int) -> Figure | None:
    """The ROC of the chosen score, a curve a run; of one run all scores, the others quiet."""
    curves: list[Curve] = []
    rows: list[Row] = []
    commands = []
    for i, run in enumerate(runs):
        chosen = default_score(run)
        scores = [chosen] if len(runs) > 1 else [s for s in sets(run).get(name, {}) if s != chosen] + [chosen]
        for score in (s for s in scores if has(run, name, s)):
            alarms, hits = roc(*raw(run, name, score))
            label = f"{run.name}: {score_name(score)}" if len(runs) > 1 else score_name(score)
            style = series(i) if score == chosen else "quiet"
            said = label if score == chosen else ("other scores" if not curves else "")
            curves.append(Curve(label=said, x=alarms, y=hits, style=style))
            rows.append([Cell(label, head=True), *(percent(float(hits[alarms <= rate].max())) for rate in RATES)])
            commands.append(run.command("ood"))
    if not curves:
        return None
    words = Words(
        id=f"roc-{j}",
        title=f"ROC on {name}",
        desc=f"Share of {name} found against the share of familiar images flagged.",
        x="false alarms",
        y="found",
    )
    chart = line_chart(words, curves, x=unit_axis(), y=unit_axis())
    columns = ["found at false alarms of", *(percent(rate) for rate in RATES)]
    table = Table(columns=columns, rows=rows[::-1], caption=f"ROC on {name}")
    reading = f"How many images of {name} are found when so many familiar ones are flagged."
    return Figure(
        id=f"figure-roc-{j}",
        title=f"ROC on {name}",
        chart=chart,
        reading=reading,
        table=table,
        commands=list(dict.fromkeys(commands)),
    )


def _comparison(runs: Sequence[Run], name: str) -> Table:
    """The AUROC of every score on one set, a column a run."""
    how = metric("auroc")
    rows = []
    for score in dict.fromkeys(score for run in runs for score in sets(run).get(name, {})):
        values = [sets(run).get(name, {}).get(score, {}).get("auroc") for run in runs]
        bold = best(values, how)
        cells = [Cell("–" if v is None else how.text(v), best=b) for v, b in zip(values, bold, strict=True)]
        rows.append([Cell(score_name(score), head=True), *cells])
    columns = [f"{how.heading()} on {name}", *(run.name for run in runs)]
    return Table(columns=columns, rows=rows, caption=f"AUROC on {name}")


def _details(run: Run, i: int, *, named: bool) -> list[Block]:
    """Every score on every set as tables, and the histograms of the scores that were not chosen."""
    blocks: list[Block] = []
    where = f", {run.name}" if named else ""
    for name, scores in sets(run).items():
        keys = list(dict.fromkeys(key for values in scores.values() for key in values))
        bold = {key: best([values.get(key) for values in scores.values()], metric(key)) for key in keys}
        rows = [
            [
                Cell(score_name(score), head=True),
                *(Cell(metric(k).text(values[k]) if k in values else "–", best=bold[k][row]) for k in keys),
            ]
            for row, (score, values) in enumerate(scores.items())
        ]
        columns = [f"{name}{where}", *(metric(key).heading() for key in keys)]
        blocks.append(Table(columns=columns, rows=rows, caption=f"Every score on {name}{where}"))
    chosen = default_score(run)
    others = [
        score_figure(run, i, name, score, named=named)
        for name, scores in sets(run).items()
        for score in scores
        if score != chosen and has(run, name, score)
    ]
    if others:
        blocks.append(Fold(title=f"Histograms of the other scores{where}", blocks=others))
    return blocks
