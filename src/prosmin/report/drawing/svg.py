"""SVG elements and the frame of a chart. Colours come from style.css, in light and dark."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from prosmin.report.drawing.axes import Axis

WIDTH, HEIGHT = 360, 216
SERIES = 6  # styles s0 to s5 in style.css


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A drawing, its legend, and the values shown under the pointer (JSON for script.js)."""

    svg: Markup
    legend: Sequence[tuple[str, str]] = ()
    readout: str = ""


@dataclass(frozen=True, kw_only=True)
class Words:
    """The title, the description for screen readers and the axis labels of a chart. `id` is unique in the page."""

    id: str
    title: str
    desc: str
    x: str
    y: str


def series(index: int) -> str:
    """The style of the i-th run; after six they repeat, dashed."""
    return f"s{index % SERIES}" + (" dashed" if index >= SERIES else "")


def svg(words: Words, body: Sequence[str], *, height: int = HEIGHT) -> Markup:
    """The drawing with its words."""
    title, desc = escape(words.title), escape(words.desc)
    name = escape(words.id)
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{title}</title><desc id="{name}-desc">{desc}</desc>{"".join(body)}</svg>'
    )


def text(x: float, y: float, text: str, style: str) -> str:
    """One line of text; `style` aligns it: end, middle."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(text)}</text>'


def rect(x: float, y: float, width: float, height: float, style: str) -> str:
    """A rectangle; x and y are its top left corner."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(height, 0.0):.1f}" class="{style}"/>'


def circle(x: float, y: float, radius: float, style: str) -> str:
    """A circle."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="{style}"/>'


def path(x: np.ndarray, y: np.ndarray, style: str) -> str:
    """A polyline that breaks where a value is missing."""
    steps, pen = [], "M"
    for left, top in zip(x, y, strict=True):
        if np.isfinite(left) and np.isfinite(top):
            steps.append(f"{pen}{left:.1f} {top:.1f}")
            pen = "L"
        else:
            pen = "M"
    return f'<path d="{"".join(steps)}" class="{style}"/>' if steps else ""


LEFT, RIGHT, TOP, BOTTOM = 44, 10, 24, 36


def across(axis: Axis, values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Values of the x axis as coordinates of the drawing."""
    return LEFT + axis.place(values) * (WIDTH - LEFT - RIGHT)


def up(axis: Axis, values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Values of the y axis as coordinates of the drawing; a value outside the axis is drawn at its end."""
    return HEIGHT - BOTTOM - np.clip(axis.place(values), 0.0, 1.0) * (HEIGHT - TOP - BOTTOM)


def grid(words: Words, x: Axis, y: Axis, *, labels: bool = True) -> str:
    """Both axes with their ticks; `labels=False` leaves out those of the x axis, for a chart with more below."""
    parts = [text(LEFT - 38, 11, words.y, "axis-label")]
    for tick, place in zip(y.ticks, up(y, y.ticks), strict=True):
        parts.append(path(np.array([LEFT, WIDTH - RIGHT]), np.array([place, place]), "grid"))
        parts.append(text(LEFT - 6, place + 3.5, y.label(tick), "tick end"))
    base = HEIGHT - BOTTOM
    parts.append(path(np.array([LEFT, WIDTH - RIGHT]), np.array([base, base]), "axis"))
    return "".join(parts) + (bottom(words, x, base) if labels else "")


def bottom(words: Words, x: Axis, base: float) -> str:
    """The ticks and the label of the x axis."""
    places = across(x, x.ticks)
    ticks = [text(place, base + 14, x.label(tick), "tick middle") for tick, place in zip(x.ticks, places, strict=True)]
    return "".join([*ticks, text(WIDTH - RIGHT, base + 30, words.x, "axis-label end")])
