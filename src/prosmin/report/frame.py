"""The frame of a chart: its margins, its axes, and where a value lies inside it."""

from collections.abc import Sequence

import numpy as np

from prosmin.report.axes import Axis
from prosmin.report.drawing import HEIGHT, WIDTH, Words, path, text

LEFT, RIGHT, TOP, BOTTOM = 44, 10, 24, 36


def across(axis: Axis, values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Values along the bottom as places in the drawing."""
    return LEFT + axis.place(values) * (WIDTH - LEFT - RIGHT)


def up(axis: Axis, values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Values up the side as places in the drawing."""
    # Held inside the plot: a value outside a fixed axis touches its edge.
    return HEIGHT - BOTTOM - np.clip(axis.place(values), 0.0, 1.0) * (HEIGHT - TOP - BOTTOM)


def grid(words: Words, x: Axis, y: Axis, *, labels: bool = True) -> str:
    """Both axes with their ticks; `labels` is False where something stands between the plot and its lower axis."""
    parts = [text(LEFT - 38, 11, words.y, "axis-label")]
    for tick, place in zip(y.ticks, up(y, y.ticks), strict=True):
        parts.append(path(np.array([LEFT, WIDTH - RIGHT]), np.array([place, place]), "grid"))
        parts.append(text(LEFT - 6, place + 3.5, y.label(tick), "tick end"))
    base = HEIGHT - BOTTOM
    parts.append(path(np.array([LEFT, WIDTH - RIGHT]), np.array([base, base]), "axis"))
    return "".join(parts) + (bottom(words, x, base) if labels else "")


def bottom(words: Words, x: Axis, base: float) -> str:
    """The ticks along the bottom and what they count."""
    places = across(x, x.ticks)
    ticks = [text(place, base + 14, x.label(tick), "tick middle") for tick, place in zip(x.ticks, places, strict=True)]
    return "".join([*ticks, text(WIDTH - RIGHT, base + 30, words.x, "axis-label end")])
