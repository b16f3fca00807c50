"""Points with names: one number against another."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prosmin.report.axes import Axis
from prosmin.report.drawing import HEIGHT, WIDTH, Chart, Words, path, svg, text
from prosmin.report.frame import BOTTOM, TOP, across, grid, up

APART = 12.0  # units between the names of points that lie at one height


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run: x and y, perhaps with an interval of y."""

    label: str
    x: float
    y: float
    style: str
    interval: tuple[float, float] | None = None


def scatter_chart(words: Words, points: Sequence[Point], *, x: Axis, y: Axis) -> Chart:
    """Every point with its name beside it."""
    lefts, tops = across(x, [p.x for p in points]), up(y, [p.y for p in points])
    body = [grid(words, x, y)]
    heights = spaced(tops)
    for point, left, top, height in zip(points, lefts, tops, heights, strict=True):
        if point.interval is not None:
            body.append(path(np.array([left, left]), up(y, point.interval), f"whisker {point.style}"))
        body.append(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="4.5" class="mark {point.style}"/>')
        late = left > 0.62 * WIDTH  # names run inwards
        body.append(text(left + (-9 if late else 9), height + 3.5, point.label, "name end" if late else "name"))
    return Chart(svg=svg(words, body))


def spaced(tops: np.ndarray) -> np.ndarray:
    """Heights for names: those of their points, pushed apart where they would touch, within the plot."""
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
