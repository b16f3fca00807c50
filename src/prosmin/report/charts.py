"""Lines, histograms and reliability diagrams: pure functions, data in, a drawing out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prosmin.report.axes import Axis, finite, round_axis, share_axis, tight_axis, unit_axis
from prosmin.report.drawing import HEIGHT, WIDTH, Chart, Words, path, rect, svg, text
from prosmin.report.frame import BOTTOM, LEFT, RIGHT, across, bottom, grid, up
from prosmin.report.glossary import number, percent

POINTS = 320  # points a curve keeps: about one a unit of the drawing


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line, x and y, perhaps with a band from low to high, all (n,); in the legend if it has a label."""

    label: str
    x: np.ndarray
    y: np.ndarray
    style: str = "s0"
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    marks: bool = False


@dataclass(frozen=True, kw_only=True)
class Heights:
    """One outline of a histogram: a height for each bin, (n,)."""

    label: str
    heights: np.ndarray
    style: str


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
            body.extend(_marks(across(x, curve.x), up(y, curve.y), curve.style))
    legend = [(curve.style, curve.label) for curve in curves if curve.label] if len(curves) > 1 else []
    legend.sort(key=lambda entry: "quiet" in entry[0])  # quiet curves are drawn first and named last
    return Chart(svg=svg(words, body), legend=legend, readout=_readout(words, x, y, curves))


def histogram_chart(words: Words, edges: np.ndarray, groups: Sequence[Heights]) -> Chart:
    """Overlaid histograms as filled outlines over common bins: edges (n + 1,), heights as shares (n,)."""
    x, y = tight_axis(edges), share_axis(np.concatenate([g.heights for g in groups]), zero=True)
    body = [grid(words, x, y)]
    for group in groups:
        outline = np.concatenate([[0.0], np.repeat(group.heights, 2), [0.0]])
        body.append(path(across(x, np.repeat(edges, 2)), up(y, outline), f"area {group.style}"))
    return Chart(svg=svg(words, body), legend=[(group.style, group.label) for group in groups])


def reliability_chart(
    words: Words, edges: np.ndarray, *, confidence: np.ndarray, accuracy: np.ndarray, count: np.ndarray
) -> Chart:
    """Accuracy by confidence with the gap between them, above the histogram of the confidences; all (n,)."""
    tall = HEIGHT + 64
    x, y = unit_axis(), unit_axis()
    body = [grid(words, x, y, labels=False), path(across(x, [0, 1]), up(y, [0, 1]), "line quiet dashed")]
    share = count / max(float(count.sum()), 1.0)
    floor, room = tall - BOTTOM, 46.0  # the histogram's own strip, under the diagram
    peak = max(float(share.max(initial=0.0)), 1e-9)
    for i in np.flatnonzero(count > 0):
        left, right = across(x, edges[[i, i + 1]])
        top, middle = up(y, [accuracy[i], confidence[i]])
        wide = right - left - 1.5
        body.append(rect(left + 0.75, top, wide, HEIGHT - BOTTOM - top, "bar s0"))
        body.append(rect(left + 0.75, min(top, middle), wide, abs(middle - top), "gap"))
        tick = path(np.array([left + 0.75, left + 0.75 + wide]), np.array([middle, middle]), "line s1")
        body.append(tick)
        high = room * share[i] / peak
        body.append(rect(left + 0.75, floor - high, wide, high, "bar quiet"))
    body.append(text(LEFT - 6, floor - room + 8, f"{100 * peak:.0f} %", "tick end"))
    body.append(text(LEFT - 6, floor, "0", "tick end"))
    body.append(path(np.array([LEFT, WIDTH - RIGHT]), np.array([floor, floor]), "axis"))
    body.append(bottom(words, x, floor))
    legend = [("s0", "accuracy"), ("s1", "mean confidence"), ("quiet", "share of pictures")]
    return Chart(svg=svg(words, body, height=tall), legend=legend)


def _band(x: np.ndarray, low: np.ndarray, high: np.ndarray, style: str) -> str:
    known = np.isfinite(x) & np.isfinite(low) & np.isfinite(high)
    return path(
        np.concatenate([x[known], x[known][::-1]]),
        np.concatenate([low[known], high[known][::-1]]),
        f"band {style}",
    )


def _marks(x: np.ndarray, y: np.ndarray, style: str) -> list[str]:
    known = np.isfinite(x) & np.isfinite(y)
    return [
        f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.6" class="mark {style}"/>'
        for a, b in zip(x[known], y[known], strict=True)
    ]


def _thinned(curve: Curve) -> Curve:
    """The curve with few enough points; the lowest and highest of each stretch stay, so no spike is lost."""
    if len(curve.x) <= POINTS:
        return curve
    keep = {0, len(curve.x) - 1}
    for stretch in np.array_split(np.arange(len(curve.x)), POINTS // 2):
        values = curve.y[stretch]
        if finite(values).size:
            keep |= {int(stretch[np.nanargmin(values)]), int(stretch[np.nanargmax(values)])}
    at = np.array(sorted(keep))
    low, high = (None if v is None else v[at] for v in (curve.low, curve.high))
    return Curve(label=curve.label, x=curve.x[at], y=curve.y[at], style=curve.style, low=low, high=high, marks=False)


def _readout(words: Words, x: Axis, y: Axis, curves: Sequence[Curve]) -> str:
    """For each curve: places along the drawing as shares of its width, and the text there."""
    found = []
    strong = [curve for curve in curves if "quiet" not in curve.style] or curves  # a line of text holds no more
    for curve in strong:
        known = np.isfinite(curve.x) & np.isfinite(curve.y)
        places = across(x, curve.x[known]) / WIDTH
        text_of = percent if y.percent else number
        texts = [f"{words.x} {number(a)}: {text_of(b)}" for a, b in zip(curve.x[known], curve.y[known], strict=True)]
        label = f"{curve.label}, " if len(strong) > 1 else ""
        found.append({"at": [round(float(p), 4) for p in places], "text": [label + text for text in texts]})
    return json.dumps(found, ensure_ascii=False)
