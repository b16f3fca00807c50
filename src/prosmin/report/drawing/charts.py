"""Charts: lines, histograms, reliability diagrams, heat maps, scatter plots."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from prosmin.evaluation.metrics.table import number, percent
from prosmin.report.blocks import Figure, figure
from prosmin.report.drawing.axes import Axis, finite, round_axis, share_axis, tight_axis, unit_axis
from prosmin.report.drawing.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    Words,
    across,
    bottom,
    circle,
    grid,
    path,
    rect,
    svg,
    text,
    up,
)

BINS = 32


def two_histograms(words: Words, groups: Sequence[tuple[str, np.ndarray, str]], command: str) -> Figure:
    """Groups (label, values, style), each as shares of its size. The outer bins include everything beyond them."""
    groups = [(label, finite(values), style) for label, values, style in groups]
    edges = common_edges([values for _, values, _ in groups])
    counts = [np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] for _, values, _ in groups]
    shares = [count / max(len(values), 1) for count, (_, values, _) in zip(counts, groups, strict=True)]
    drawn = [(label, share, style) for share, (label, _, style) in zip(shares, groups, strict=True)]
    return figure(
        words,
        histogram_chart(words, edges, drawn),
        columns=[words.x, *(f"{label} ({len(values):,})" for label, values, _ in groups)],
        rows=[
            [f"{number(low)} to {number(high)}", *(percent(share[i]) for share in shares)]
            for i, (low, high) in enumerate(pairwise(edges))
        ],
        commands=[command],
    )


def common_edges(groups: Sequence[np.ndarray]) -> np.ndarray:
    """Edges (BINS + 1,) over the middle 99 % of each group, so that one outlier does not flatten the rest."""
    ranges = [np.quantile(scores, [0.005, 0.995]) for scores in groups if scores.size]
    low = min((float(r[0]) for r in ranges), default=0.0)
    high = max((float(r[1]) for r in ranges), default=1.0)
    if not high > low:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, BINS + 1)


POINTS = 320  # of a curve: about one per unit of the drawing's width


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line, x and y, with an optional band from low to high, all (n,); in the legend if it has a label."""

    label: str
    x: np.ndarray
    y: np.ndarray
    style: str = "s0"
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    marks: bool = False


Heights = tuple[str, np.ndarray, str]  # one outline of a histogram: label, a height for each bin (n,), style


def line_chart(words: Words, curves: Sequence[Curve], *, x: Axis | None = None, y: Axis | None = None) -> Chart:
    """Curves over a common axis. Values that are not finite leave a gap."""
    curves = [_thinned(curve) for curve in curves]
    every = [v for c in curves for v in (c.y, c.low, c.high) if v is not None]
    x = x or tight_axis(np.concatenate([c.x for c in curves]) if curves else [])
    y = y or round_axis(np.concatenate(every) if every else [])
    body = [grid(words, x, y)]
    for curve in curves:
        if curve.low is not None and curve.high is not None:
            body.append(_band(across(x, curve.x), up(y, curve.low), up(y, curve.high), curve.style))
        body.append(path(across(x, curve.x), up(y, curve.y), f"line {curve.style}"))
        if curve.marks:
            places = zip(across(x, curve.x), up(y, curve.y), strict=True)
            body += [circle(a, b, 2.6, f"mark {curve.style}") for a, b in places if np.isfinite(a) and np.isfinite(b)]
    legend = [(curve.style, curve.label) for curve in curves if curve.label] if len(curves) > 1 else []
    legend.sort(key=lambda entry: "quiet" in entry[0])  # quiet curves are drawn first and named last
    return Chart(svg=svg(words, body), legend=legend, readout=_readout(words, x, y, curves))


def histogram_chart(words: Words, edges: np.ndarray, groups: Sequence[Heights]) -> Chart:
    """Overlaid histograms as filled outlines over common bins: edges (n + 1,), heights as shares (n,)."""
    x, y = tight_axis(edges), share_axis(np.concatenate([heights for _, heights, _ in groups]), zero=True)
    body = [grid(words, x, y)]
    for _, heights, style in groups:
        outline = np.concatenate([[0.0], np.repeat(heights, 2), [0.0]])
        body.append(path(across(x, np.repeat(edges, 2)), up(y, outline), f"area {style}"))
    return Chart(svg=svg(words, body), legend=[(style, label) for label, _, style in groups])


def reliability_chart(words: Words, bins: dict[str, np.ndarray]) -> Chart:
    """Accuracy by confidence with the gap between them, above the histogram of the confidences.

    `bins` has confidence, accuracy and count, (n,) each, and their edges (n + 1,).
    """
    tall = HEIGHT + 64
    x, y = unit_axis(), unit_axis()
    body = [grid(words, x, y, labels=False), path(across(x, [0, 1]), up(y, [0, 1]), "line quiet dashed")]
    count = bins["count"]
    share = count / max(float(count.sum()), 1.0)
    floor, room = tall - BOTTOM, 46.0  # the histogram below the diagram
    peak = max(float(share.max(initial=0.0)), 1e-9)
    for i in np.flatnonzero(count > 0):
        left, right = across(x, bins["edges"][[i, i + 1]]) + np.array([0.75, -0.75])
        top, middle = up(y, [bins["accuracy"][i], bins["confidence"][i]])
        high = room * share[i] / peak
        body += [
            rect(left, top, right - left, HEIGHT - BOTTOM - top, "bar s0"),
            rect(left, min(top, middle), right - left, abs(middle - top), "gap"),
            path(np.array([left, right]), np.array([middle, middle]), "line s1"),
            rect(left, floor - high, right - left, high, "bar quiet"),
        ]
    body += [
        text(LEFT - 6, floor - room + 8, f"{100 * peak:.0f} %", "tick end"),
        text(LEFT - 6, floor, "0", "tick end"),
        path(np.array([LEFT, WIDTH - RIGHT]), np.array([floor, floor]), "axis"),
        bottom(words, x, floor),
    ]
    legend = [("s0", "accuracy"), ("s1", "mean confidence"), ("quiet", "share of images")]
    return Chart(svg=svg(words, body, height=tall), legend=legend)


def _band(x: np.ndarray, low: np.ndarray, high: np.ndarray, style: str) -> str:
    known = np.isfinite(x) & np.isfinite(low) & np.isfinite(high)
    across_and_back = np.concatenate([x[known], x[known][::-1]])
    return path(across_and_back, np.concatenate([low[known], high[known][::-1]]), f"band {style}")


def _thinned(curve: Curve) -> Curve:
    """The curve with few enough points; the lowest and highest of each stretch are kept, so that no spike is lost."""
    if len(curve.x) <= POINTS:
        return curve
    keep = {0, len(curve.x) - 1}
    for stretch in np.array_split(np.arange(len(curve.x)), POINTS // 2):
        values = curve.y[stretch]
        if finite(values).size:
            keep |= {int(stretch[np.nanargmin(values)]), int(stretch[np.nanargmax(values)])}
    at = np.array(sorted(keep))
    low, high = (None if v is None else v[at] for v in (curve.low, curve.high))
    return replace(curve, x=curve.x[at], y=curve.y[at], low=low, high=high, marks=False)


def _readout(words: Words, x: Axis, y: Axis, curves: Sequence[Curve]) -> str:
    """For each curve: places along the drawing as shares of its width, and the text there."""
    found = []
    strong = [curve for curve in curves if "quiet" not in curve.style] or curves  # more would not fit in a line
    for curve in strong:
        known = np.isfinite(curve.x) & np.isfinite(curve.y)
        places = across(x, curve.x[known]) / WIDTH
        text_of = percent if y.percent else number
        texts = [f"{words.x} {number(a)}: {text_of(b)}" for a, b in zip(curve.x[known], curve.y[known], strict=True)]
        label = f"{curve.label}, " if len(strong) > 1 else ""
        found.append({"at": [round(float(p), 4) for p in places], "text": [label + text for text in texts]})
    return json.dumps(found, ensure_ascii=False)


NAMES, HEAT_TOP, ROW, GAP = 116, 34, 21, 1.5
FAINT, STRONG = 0.05, 0.62  # opacities of the lowest and highest number; text stays readable on the strongest


def heat_chart(
    words: Words,
    rows: Sequence[str],
    columns: Sequence[str],
    values: np.ndarray,
    *,
    write: Callable[[float], str],
    whole: tuple[str, float] | None = None,
) -> Chart:
    """Values (rows, columns), empty where not finite; `whole` is a number for all columns, drawn across the top."""
    known = finite(np.append(values.ravel(), [] if whole is None else [whole[1]]))
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    wide = (WIDTH - NAMES) / max(len(columns), 1)

    def cell(left: float, top: float, width: float, value: float) -> str:
        if not np.isfinite(value):
            return ""
        strength = FAINT + (STRONG - FAINT) * ((value - low) / (high - low) if high > low else 0.5)
        shade = (
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{width - GAP:.1f}" height="{ROW - GAP:.1f}" '
            f'rx="2" class="heat" fill-opacity="{strength:.3f}"/>'
        )
        return shade + text(left + (width - GAP) / 2, top + 13.5, write(value), "cell middle")

    body = [text(NAMES - 6, 11, words.y, "axis-label end"), text(NAMES, 11, words.x, "axis-label")]
    body += [text(NAMES + wide * (i + 0.5), HEAT_TOP - 9, label, "tick middle") for i, label in enumerate(columns)]
    top = float(HEAT_TOP)
    if whole is not None:
        body += [text(NAMES - 6, top + 13.5, whole[0], "tick end"), cell(NAMES, top, WIDTH - NAMES, whole[1])]
        top += ROW + 4
    for name, numbers in zip(rows, values, strict=True):
        body.append(text(NAMES - 6, top + 13.5, name, "tick end"))
        body += [cell(NAMES + wide * i, top, wide, float(value)) for i, value in enumerate(numbers)]
        top += ROW
    return Chart(svg=svg(words, body, height=round(top) + 2))


APART = 12.0  # units between the names of points at the same height


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run: x and y, with an optional interval of y."""

    label: str
    x: float
    y: float
    style: str
    interval: tuple[float, float] | None = None


def scatter_chart(words: Words, points: Sequence[Point], *, x: Axis, y: Axis) -> Chart:
    """Points with their names beside them."""
    lefts, tops = across(x, [p.x for p in points]), up(y, [p.y for p in points])
    body = [grid(words, x, y)]
    heights = spaced(tops)
    for point, left, top, height in zip(points, lefts, tops, heights, strict=True):
        if point.interval is not None:
            body.append(path(np.array([left, left]), up(y, point.interval), f"whisker {point.style}"))
        body.append(circle(left, top, 4.5, f"mark {point.style}"))
        late = left > 0.62 * WIDTH  # names of points at the right stand to their left
        body.append(text(left + (-9 if late else 9), height + 3.5, point.label, "name end" if late else "name"))
    return Chart(svg=svg(words, body))


def spaced(tops: np.ndarray) -> np.ndarray:
    """Heights for names: those of their points, moved apart where they would overlap, within the plot."""
    order = np.argsort(tops, kind="stable")
    heights = tops[order].astype(float)
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + APART)
    over = heights[-1] - (HEIGHT - BOTTOM - 4) if len(heights) else 0.0
    if over > 0:
        heights[-1] -= over
        for i in range(len(heights) - 2, -1, -1):
            heights[i] = min(heights[i], heights[i + 1] - APART)
    result = np.empty_like(heights)
    result[order] = np.maximum(heights, TOP - 14)
    return result
