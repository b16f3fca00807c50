"""The few numbers that say whether something was learned, as cards beside their baselines."""

import math
from collections.abc import Sequence

from prosmin.report.blocks import Bar, Block, Card, Cards, Section
from prosmin.report.columns import Column, columns
from prosmin.report.commands import unlabelled
from prosmin.report.glossary import CHANCE, Metric, best, metric
from prosmin.report.results import missing
from prosmin.report.runs import Run

HEADLINES = [
    ("knn", "top1", "kNN top-1 accuracy"),
    ("linear", "top1", "Linear probe top-1 accuracy"),
    ("linear", "nll", "Linear probe negative log-likelihood"),
    ("linear", "ece", "Linear probe calibration error"),
    ("ood", "auroc", "Out-of-distribution AUROC"),
    ("uncertainty", "r_auroc", "Wrong neighbours foreseen, R-AUROC"),
]
WITHOUT_LABELS = [
    ("uncertainty", "energy_skill", "Skill of the forecast against one constant scale"),
    ("uncertainty", "spearman_blur", "Uncertainty rises with blur, rank correlation"),
]
"""What takes the place of right answers where there are no labels."""


def headlines(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """Protocol, metric and title of each number."""
    return [*HEADLINES, *(WITHOUT_LABELS if any(map(unlabelled, runs)) else [])]


def headline_section(runs: Sequence[Run]) -> Section:
    """The few numbers that say whether something was learned, beside the baselines."""
    cards = [found for name, key, title in headlines(runs) if (found := card(columns(runs, name), key, title))]
    blocks: Sequence[Block] = [Cards(cards=cards)] if cards else missing(runs)
    lead = "Each number beside that of raw pixels and of the encoder before training. Arrows say what is better."
    return Section(id="headline", title="Headline numbers", lead=lead, blocks=blocks)


def card(of: Sequence[Column], key: str, title: str) -> Card | None:
    """A headline number with a bar for every run and baseline; None where no run has it."""
    having = [c for c in of if math.isfinite(c.metrics.get(key, math.nan))]
    trained, others = [c for c in having if c.trained], [c for c in having if not c.trained]
    if not trained:
        return None
    if not others and "auroc" in key:
        others = [Column(label="chance", metrics={key: CHANCE}, style="quiet", trained=False)]
        having += others
    how = metric(key)
    pick = max if how.better == "higher" else min
    top = pick(trained, key=lambda c: c.metrics[key])
    rival = pick(others, key=lambda c: c.metrics[key]) if others else None
    longest = max(abs(c.metrics[key]) for c in having) or 1.0
    bold = best([c.metrics[key] for c in having], how)
    bars = [
        Bar(label=c.label, text=how.text(v), share=abs(v) / longest, style=c.style, best=b)
        for c, b in zip(having, bold, strict=True)
        for v in [c.metrics[key]]
    ]
    reading = compare(how, top.metrics[key], rival.metrics[key], rival.label) if rival else ""
    return Card(title=f"{title}\u00a0{how.arrow()}", value=how.text(top.metrics[key]), reading=reading, bars=bars)


def compare(how: Metric, value: float, rival: float, name: str) -> str:
    """A number against the better baseline, in words."""
    name = f"the {name}" if name.startswith("untrained") else name
    if how.text(value) == how.text(rival):
        return f"the same as {name}"
    gap = f"{100 * abs(value - rival):.1f} points" if how.percent else f"{abs(value - rival):.3f}"
    ahead = (value > rival) == (how.better == "higher")
    return f"{gap} {'better' if ahead else 'worse'} than {name}"


def lead(runs: Sequence[Run]) -> str:
    """The whole page in a sentence: the first headline that was measured."""
    measured = any(run.results for run in runs)
    for name, key, title in headlines(runs):
        found = card(columns(runs, name), key, title)
        if found:
            number = ", ".join(filter(None, [found.value, found.reading]))
            return f"{'Best ' if len(runs) > 1 else ''}{title}: {number}."
    return "None of the headline numbers has been measured yet." if measured else "Nothing has been measured yet."
