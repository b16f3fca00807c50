"""Charts as inline SVG: pure functions, data in, markup out.

No colour stands in the markup: classes (`s0` to `s5` for series, `quiet`, `dashed`) take theirs from
style.css, so a chart is right in light and dark. A drawing is 360 units wide, near its size on a phone, so
its text stays readable.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from prosmin.report.axes import Axis, finite, round_axis, share_axis, tight_axis, unit_axis
from prosmin.report.glossary import number, percent

WIDTH, HEIGHT = 360, 216
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 24, 36
POINTS = 320  # points a curve keeps: about one a unit of the drawing
SERIES = 6  # styles s0 to s5 in style.css


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A drawing, the legend beside it, and what to read at each place along it (JSON for script.js)."""

    svg: Markup
    legend: Sequence[tuple[str, str]] = ()
    readout: str = ""


@dataclass(frozen=True, kw_only=True)
class Words:
    """What a chart says to those who cannot see it, and along its axes. `id` is unique in the page."""

    id: str
    title: str
    desc: str
    x: str
    y: str


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


def series(index: int) -> str:
    """The style of the i-th run; beyond six they repeat, dashed."""
    return f"s{index % SERIES}" + (" dashed" if index >= SERIES else "")


def line_chart(words: Words, curves: Sequence[Curve], *, x: Axis | None = None, y: Axis | None = None) -> Chart:
    """Curves over a common axis. Values that are not finite leave a gap."""
    curves = [_thinned(curve) for curve in curves]
    every = [v for c in curves for v in (c.y, c.low, c.high) if v is not None]
    x = x or tight_axis(np.concatenate([c.x for c in curves]) if curves else [])
    y = y or round_axis(np.concatenate(every) if every else [])
    body = [_grid(words, x, y)]
    for curve in curves:
        if curve.low is not None and curve.high is not None:
            body.append(_band(_across(x, curve.x), _up(y, curve.low), _up(y, curve.high), curve.style))
        body.append(_path(_across(x, curve.x), _up(y, curve.y), f"line {curve.style}"))
        if curve.marks:
            body.extend(_marks(_across(x, curve.x), _up(y, curve.y), curve.style))
    legend = [(curve.style, curve.label) for curve in curves if curve.label] if len(curves) > 1 else []
    legend.sort(key=lambda entry: "quiet" in entry[0])  # quiet curves are drawn first and named last
    return Chart(svg=_svg(words, body), legend=legend, readout=_readout(words, x, y, curves))


def histogram_chart(words: Words, edges: np.ndarray, groups: Sequence[Heights]) -> Chart:
    """Overlaid histograms as filled outlines over common bins: edges (n + 1,), heights as shares (n,)."""
    x, y = tight_axis(edges), share_axis(np.concatenate([g.heights for g in groups]), zero=True)
    body = [_grid(words, x, y)]
    for group in groups:
        across, up = (
            _across(x, np.repeat(edges, 2)),
            _up(y, np.concatenate([[0.0], np.repeat(group.heights, 2), [0.0]])),
        )
        body.append(_path(across, up, f"area {group.style}"))
    return Chart(svg=_svg(words, body), legend=[(group.style, group.label) for group in groups])


def reliability_chart(
    words: Words, edges: np.ndarray, *, confidence: np.ndarray, accuracy: np.ndarray, count: np.ndarray
) -> Chart:
    """Accuracy by confidence with the gap between them, above the histogram of the confidences; all (n,)."""
    tall = HEIGHT + 64
    x, y = unit_axis(), unit_axis()
    body = [_grid(words, x, y, labels=False), _path(_across(x, [0, 1]), _up(y, [0, 1]), "line quiet dashed")]
    share = count / max(float(count.sum()), 1.0)
    floor, room = tall - BOTTOM, 46.0  # the histogram's own strip, under the diagram
    peak = max(float(share.max(initial=0.0)), 1e-9)
    for i in np.flatnonzero(count > 0):
        left, right = _across(x, edges[[i, i + 1]])
        top, middle = _up(y, [accuracy[i], confidence[i]])
        wide = right - left - 1.5
        body.append(_rect(left + 0.75, top, wide, HEIGHT - BOTTOM - top, "bar s0"))
        body.append(_rect(left + 0.75, min(top, middle), wide, abs(middle - top), "gap"))
        tick = _path(np.array([left + 0.75, left + 0.75 + wide]), np.array([middle, middle]), "line s1")
        body.append(tick)
        high = room * share[i] / peak
        body.append(_rect(left + 0.75, floor - high, wide, high, "bar quiet"))
    body.append(_text(LEFT - 6, floor - room + 8, f"{100 * peak:.0f} %", "tick end"))
    body.append(_text(LEFT - 6, floor, "0", "tick end"))
    body.append(_path(np.array([LEFT, WIDTH - RIGHT]), np.array([floor, floor]), "axis"))
    body.append(_bottom(words, x, floor))
    legend = [("s0", "accuracy"), ("s1", "mean confidence"), ("quiet", "share of pictures")]
    return Chart(svg=_svg(words, body, height=tall), legend=legend)


def _across(axis: Axis, values: Sequence[float] | np.ndarray) -> np.ndarray:
    return LEFT + axis.place(values) * (WIDTH - LEFT - RIGHT)


def _up(axis: Axis, values: Sequence[float] | np.ndarray) -> np.ndarray:
    # Held inside the plot: a value outside a fixed axis touches its edge.
    return HEIGHT - BOTTOM - np.clip(axis.place(values), 0.0, 1.0) * (HEIGHT - TOP - BOTTOM)


def _svg(words: Words, body: Sequence[str], *, height: int = HEIGHT) -> Markup:
    title, desc = escape(words.title), escape(words.desc)
    name = escape(words.id)
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{title}</title><desc id="{name}-desc">{desc}</desc>{"".join(body)}</svg>'
    )


def _grid(words: Words, x: Axis, y: Axis, *, labels: bool = True) -> str:
    parts = [_text(LEFT - 38, 11, words.y, "axis-label")]
    for tick, place in zip(y.ticks, _up(y, y.ticks), strict=True):
        parts.append(_path(np.array([LEFT, WIDTH - RIGHT]), np.array([place, place]), "grid"))
        parts.append(_text(LEFT - 6, place + 3.5, y.label(tick), "tick end"))
    base = HEIGHT - BOTTOM
    parts.append(_path(np.array([LEFT, WIDTH - RIGHT]), np.array([base, base]), "axis"))
    return "".join(parts) + (_bottom(words, x, base) if labels else "")


def _bottom(words: Words, x: Axis, base: float) -> str:
    places = _across(x, x.ticks)
    ticks = [_text(place, base + 14, x.label(tick), "tick middle") for tick, place in zip(x.ticks, places, strict=True)]
    return "".join([*ticks, _text(WIDTH - RIGHT, base + 30, words.x, "axis-label end")])


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(height, 0.0):.1f}" class="{style}"/>'


def _path(x: np.ndarray, y: np.ndarray, style: str) -> str:
    """A polyline that breaks where a value is missing."""
    steps, pen = [], "M"
    for left, top in zip(x, y, strict=True):
        if np.isfinite(left) and np.isfinite(top):
            steps.append(f"{pen}{left:.1f} {top:.1f}")
            pen = "L"
        else:
            pen = "M"
    return f'<path d="{"".join(steps)}" class="{style}"/>' if steps else ""


def _band(x: np.ndarray, low: np.ndarray, high: np.ndarray, style: str) -> str:
    known = np.isfinite(x) & np.isfinite(low) & np.isfinite(high)
    return _path(
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
        places = _across(x, curve.x[known]) / WIDTH
        text_of = percent if y.percent else number
        texts = [f"{words.x} {number(a)}: {text_of(b)}" for a, b in zip(curve.x[known], curve.y[known], strict=True)]
        label = f"{curve.label}, " if len(strong) > 1 else ""
        found.append({"at": [round(float(p), 4) for p in places], "text": [label + text for text in texts]})
    return json.dumps(found, ensure_ascii=False)
