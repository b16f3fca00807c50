"""Marks of inline SVG. No colour stands in the markup: classes take theirs from style.css, in light and dark.

A drawing is WIDTH units wide, near its size on a phone, so its text stays readable.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

WIDTH, HEIGHT = 360, 216
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


def series(index: int) -> str:
    """The style of the i-th run; beyond six they repeat, dashed."""
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
    """One line of text; `style` places it: end, middle."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(text)}</text>'


def rect(x: float, y: float, width: float, height: float, style: str) -> str:
    """A rectangle from its top left."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(height, 0.0):.1f}" class="{style}"/>'


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
