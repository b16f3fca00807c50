"""The plot of a grid: one panel per metric over the swept field, as one SVG file."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import escape

from prosmin.ablation.grid import ROW, Grid
from prosmin.ablation.outcome import SEED, Outcome, Quantity, Summary, measured, over_seeds
from prosmin.config.values import to_text
from prosmin.files import write_text
from prosmin.report.drawing.axes import Axis, round_axis, share_axis
from prosmin.report.drawing.charts import Curve, line_chart
from prosmin.report.drawing.svg import HEIGHT, LEFT, RIGHT, WIDTH, Words, series

LOG_FROM = 8.0  # ratio of largest to smallest value from which the axis is logarithmic
DODGE = 0.012  # horizontal distance between curves at the same value, as a share of the axis
LETTER = 6.0  # width of a character of a tick label, in SVG units


@dataclass(frozen=True, kw_only=True)
class SweptAxis(Axis):
    """An axis with one tick per swept value."""

    names: Sequence[str]  # of the values, in the order of the ticks
    numbered: bool = False  # names are too long for tick labels and are replaced by numbers
    joined: bool  # whether neighbours are joined by a line

    def label(self, tick: float) -> str:
        """The value, or its number in the list below the plot."""
        place = list(self.ticks).index(tick)
        return str(place + 1) if self.numbered else self.names[place]

    def tick(self, value: Any) -> float:
        """The position of a value, in units of the axis."""
        return self.ticks[self.names.index(to_text(value))]

    def beside(self, place: float, number: int, *, of: int) -> float:
        """The position for one of several curves, shifted so that no bar hides another."""
        share = DODGE * (number - (of - 1) / 2)
        if self.log:
            return place * (self.high / self.low) ** share
        return place + share * (self.high - self.low)


def swept_axis(values: Sequence[Any]) -> SweptAxis:
    """Numbers to scale, logarithmic for a large range; names, or labels that would overlap, evenly spaced."""
    unique = list({to_text(value): value for value in values}.values())
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in unique)
    if not numeric:
        return _even([to_text(value) for value in unique], joined=False)
    unique.sort()
    names = [to_text(value) for value in unique]
    low, high = unique[0], unique[-1]
    logs = [False] if low <= 0 else [True, False] if high / low >= LOG_FROM else [False, True]
    for log in logs if low < high else []:
        axis = _numeric(unique, names, log=log)
        if np.diff(axis.place(unique)).min() >= _widest(names):
            return axis
    return _even(names, joined=True)


def _numeric(values: Sequence[float], names: Sequence[str], *, log: bool) -> SweptAxis:
    low, high = float(values[0]), float(values[-1])
    if log:
        room = (high / low) ** 0.05
        low, high = low / room, high * room
    else:
        room = 0.05 * (high - low)
        low, high = low - room, high + room
    return SweptAxis(low=low, high=high, ticks=[float(v) for v in values], log=log, names=names, joined=True)


def _even(names: Sequence[str], *, joined: bool) -> SweptAxis:
    count = len(names)
    ticks = [float(i) for i in range(count)]
    numbered = _widest(names) > 1 / count
    return SweptAxis(low=-0.5, high=count - 0.5, ticks=ticks, names=names, numbered=numbered, joined=joined)


def _widest(names: Sequence[str]) -> float:
    """Width of the longest label, as a share of the axis."""
    return max(len(name) for name in names) * LETTER / (WIDTH - LEFT - RIGHT)


COLUMNS, GAP, MARGIN, LINE = 2, 28, 24, 17  # panels per row, space between and around them, height of a text line

STYLE = """
svg { font-family: system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
.paper { fill: #fff; }
.title { font-size: 14px; font-weight: 600; fill: #1c2127; }
.tick, .axis-label, .legend { font-size: 10.5px; fill: #5b646e; }
.end { text-anchor: end; } .middle { text-anchor: middle; }
.grid { stroke: #e3e4e0; fill: none; } .axis { stroke: #a4abb3; fill: none; }
.line { fill: none; stroke: currentColor; stroke-width: 1.7; stroke-linejoin: round; stroke-linecap: round; }
.dashed { stroke-dasharray: 4 3.5; }
.mark, .legend.key { fill: currentColor; }
.s0 { color: #0f62a6; } .s1 { color: #c6580c; } .s2 { color: #0b7a5f; }
.s3 { color: #8b3f88; } .s4 { color: #7a6200; } .s5 { color: #4a5560; }
"""


def write_plot(grid: Grid, outcomes: Sequence[Outcome], path: Path) -> None:
    """Write the plot of the finished cells, if there are any metrics."""
    quantities = measured(outcomes)
    if quantities:
        write_text(path, draw(grid, over_seeds(outcomes), quantities))


def draw(grid: Grid, summaries: Sequence[Summary], quantities: Sequence[Quantity]) -> str:
    """The SVG: the first swept field on the x axis, one curve per setting of the others."""
    along, *others = [name for name in grid.swept if name != SEED] or [SEED]
    axis = swept_axis([summary.swept[along] for summary in summaries])
    settings: dict[str, list[Summary]] = {}
    for summary in summaries:
        settings.setdefault(_setting(summary, others), []).append(summary)
    top, width = MARGIN + 2 * LINE, 2 * MARGIN + COLUMNS * WIDTH + (COLUMNS - 1) * GAP
    panels = []
    for number, quantity in enumerate(quantities):
        column, row = number % COLUMNS, number // COLUMNS
        place = f'x="{MARGIN + column * (WIDTH + GAP)}" y="{top + row * (HEIGHT + GAP)}"'
        size = f'width="{WIDTH}" height="{HEIGHT}"'
        panels.append(_panel(quantity, along, axis, settings).replace("<svg ", f"<svg {place} {size} ", 1))
    foot = top + math.ceil(len(quantities) / COLUMNS) * (HEIGHT + GAP) + LINE
    legend = _legend(axis, list(settings))
    lines = [_text(MARGIN, foot + i * LINE, text, style) for i, (style, text) in enumerate(legend)]
    height = foot + len(legend) * LINE + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f'<style>{STYLE}</style><rect width="{width}" height="{height}" class="paper"/>'
        f"{_text(MARGIN, MARGIN + 12, _title(grid, summaries), 'title')}{''.join(panels)}{''.join(lines)}</svg>\n"
    )


def _panel(quantity: Quantity, along: str, axis: SweptAxis, settings: dict[str, list[Summary]]) -> str:
    """One metric: means as marks, ranges over seeds as bars."""
    curves = []
    for number, members in enumerate(settings.values()):
        known = [summary for summary in members if quantity.name in summary.metrics]
        known.sort(key=lambda summary: axis.tick(summary.swept[along]))
        ticks = [axis.tick(summary.swept[along]) for summary in known]
        x = np.array([axis.beside(tick, number, of=len(settings)) for tick in ticks])
        spreads = [summary.metrics[quantity.name] for summary in known]
        style = series(number)
        for place, spread in zip(x, spreads, strict=True):
            bar = np.array([spread.low, spread.high])
            curves.append(Curve(label="", x=np.array([place, place]), y=bar, style=style))
        y = np.array([spread.mean for spread in spreads])
        if not axis.joined:  # a gap between any two marks
            x, y = (np.stack([v, np.full_like(v, np.nan)], 1).flatten() for v in (x, y))
        curves.append(Curve(label="", x=x, y=y, style=style, marks=True))
    values = np.concatenate([curve.y for curve in curves])
    words = Words(
        id=quantity.name,
        title=f"{quantity.heading} over {along}",
        desc=f"{quantity.heading} of each cell, mean and range over the seeds.",
        x=along,
        y=quantity.heading.removesuffix(" %"),
    )
    up = share_axis(values) if quantity.percent else round_axis(values)
    return str(line_chart(words, curves, x=axis, y=up).svg)


def _setting(summary: Summary, others: Sequence[str]) -> str:
    """The label of a curve: the fields that are not on the x axis."""
    named = [(name, to_text(summary.swept[name])) for name in others]
    return ", ".join(text if name == ROW else f"{name} {text}" for name, text in named)


def _legend(axis: SweptAxis, settings: Sequence[str]) -> list[tuple[str, str]]:
    """Style and text of the lines below the panels: the curves, and the names behind numbers."""
    keys = [(f"legend key {series(i)}", f"●  {name}") for i, name in enumerate(settings) if name]
    names = [("legend", f"{i}  {name}") for i, name in enumerate(axis.names, 1)] if axis.numbered else []
    return keys + names


def _title(grid: Grid, summaries: Sequence[Summary]) -> str:
    most = max(summary.seeds for summary in summaries)
    seeds = f"; mean and range of {most} seeds" if most > 1 else ""
    return f"{grid.name or 'grid'}, recipe {grid.recipe}{seeds}"


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x}" y="{y}" class="{style}">{escape(text)}</text>'
