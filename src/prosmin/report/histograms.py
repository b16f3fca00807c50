"""Histograms of two groups of scores over common bins."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from prosmin.report.blocks import Table
from prosmin.report.charts import Heights, histogram_chart
from prosmin.report.drawing import Chart, Words
from prosmin.report.glossary import number, percent

BINS = 32


def two_groups(words: Words, groups: Sequence[tuple[str, np.ndarray, str]]) -> tuple[Chart, Table]:
    """Groups (label, scores, style), each as shares of its own size. The outer bins hold all beyond."""
    groups = [(label, scores[np.isfinite(scores)], style) for label, scores, style in groups]
    edges = common_edges([scores for _, scores, _ in groups])
    shares = [
        np.histogram(np.clip(scores, edges[0], edges[-1]), edges)[0] / max(len(scores), 1) for _, scores, _ in groups
    ]
    drawn = [Heights(label=g[0], heights=share, style=g[2]) for g, share in zip(groups, shares, strict=True)]
    rows = [
        [f"{number(low)} to {number(high)}", *(percent(share[i]) for share in shares)]
        for i, (low, high) in enumerate(pairwise(edges))
    ]
    table = Table(
        columns=[words.x, *(f"{label} ({len(s):,})" for label, s, _ in groups)],
        rows=rows,
        caption=words.title,
    )
    return histogram_chart(words, edges, drawn), table


def common_edges(groups: Sequence[np.ndarray]) -> np.ndarray:
    """Edges (BINS + 1,) over the middle 99 % of each group, so that one far score flattens nothing."""
    ranges = [np.quantile(scores, [0.005, 0.995]) for scores in groups if scores.size]
    low = min((float(r[0]) for r in ranges), default=0.0)
    high = max((float(r[1]) for r in ranges), default=1.0)
    if not high > low:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, BINS + 1)
