"""The axis of the values that were swept: linear, logarithmic, or side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prosmin.ablation.cells import value_text
from prosmin.report.axes import Axis
from prosmin.report.drawing import WIDTH
from prosmin.report.frame import LEFT, RIGHT

LOG_FROM = 8.0  # values that span this factor are drawn on a logarithmic axis
DODGE = 0.012  # share of the axis between the curves at one value
LETTER = 6.0  # width of a letter of a tick, in units of the drawing


@dataclass(frozen=True, kw_only=True)
class SweptAxis(Axis):
    """An axis whose ticks are the values that were swept, each with its own text."""

    names: Sequence[str]  # of the values, in the order of the ticks
    numbered: bool = False  # the names are too long to stand under the axis
    joined: bool  # whether a line between neighbours means something

    def label(self, tick: float) -> str:
        """The value, or its number in the list beneath the plot."""
        place = list(self.ticks).index(tick)
        return str(place + 1) if self.numbered else self.names[place]

    def tick(self, value: Any) -> float:
        """Where a value lies, in units of the axis."""
        return self.ticks[self.names.index(value_text(value))]

    def beside(self, place: float, number: int, *, of: int) -> float:
        """The place for one of several curves, a little beside the others, so that no bar hides another."""
        share = DODGE * (number - (of - 1) / 2)
        if self.log:
            return place * (self.high / self.low) ** share
        return place + share * (self.high - self.low)


def swept_axis(values: Sequence[Any]) -> SweptAxis:
    """Numbers where they lie, logarithmically if they span much; if their labels would meet, or no numbers: evenly."""
    unique = list({value_text(value): value for value in values}.values())
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in unique)
    if not numeric:
        return _even([value_text(value) for value in unique], joined=False)
    unique.sort()
    names = [value_text(value) for value in unique]
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
    """Share of the axis the longest label takes."""
    return max(len(name) for name in names) * LETTER / (WIDTH - LEFT - RIGHT)
