"""Axes of a chart: their range, their ticks, and the place of a value between 0 and 1."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

WIDE = 30.0  # a positive quantity that spans more than this factor is drawn on a logarithmic axis


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A range with its ticks; `log` places values by their logarithm."""

    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False
    percent: bool = False  # shares, written as per cent

    def place(self, values: Sequence[float] | np.ndarray) -> np.ndarray:
        """Values as shares of the axis, NaN where a value is not finite: (n,) -> (n,)."""
        values = np.asarray(values, dtype=float)
        low, high = self.low, self.high
        if self.log:
            values = np.log(np.where(values > 0, values, np.nan))
            low, high = math.log(low), math.log(high)
        share = (values - low) / (high - low)
        return np.where(np.isfinite(share), share, np.nan)

    def label(self, tick: float) -> str:
        """The tick as text, with no more digits than the ticks need."""
        if self.percent:
            step = 100 * abs(self.ticks[-1] - self.ticks[0]) / max(len(self.ticks) - 1, 1)
            digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step else 1
            return f"{100 * tick:.{digits}f} %".replace("-", "−")
        if self.log or len(self.ticks) < 2:
            text = f"{tick:.3g}"
        else:
            step = abs(self.ticks[1] - self.ticks[0])
            digits = max(0, -math.floor(math.log10(step) + 1e-9))  # steps are 1, 2 or 5 of a power of ten
            text = f"{tick:,.{digits}f}" if digits <= 5 else f"{tick:.1e}"
        return text.replace("-", "−").replace("e−0", "e−")


def finite(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Only the finite values."""
    values = np.asarray(values, dtype=float)
    return values[np.isfinite(values)]


def nice_step(span: float, count: int) -> float:
    """The step of 1, 2 or 5 times a power of ten that divides `span` into about `count` parts."""
    raw = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))


def _ticks(low: float, high: float, count: int) -> list[float]:
    step = nice_step(high - low, count)
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    return [i * step for i in range(first, last + 1)]


def tight_axis(values: Sequence[float] | np.ndarray, *, count: int = 5) -> Axis:
    """An x axis from the smallest to the largest value."""
    known = finite(values)
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    return Axis(low=low, high=high, ticks=_ticks(low, high, count))


def round_axis(values: Sequence[float] | np.ndarray, *, zero: bool = False, log: bool = False, count: int = 4) -> Axis:
    """An axis whose ends are ticks; `zero` makes it start at 0, `log` is used only for a wide range."""
    known = finite(values)
    if log and known.size and known.min() > 0 and known.max() / known.min() > WIDE:
        return _log_axis(float(known.min()), float(known.max()))
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    low, high = (min(low, 0.0), max(high, 0.0)) if zero else (low, high)
    if high - low <= 1e-12 * max(abs(low), abs(high)):  # one value, except for rounding
        pad = abs(low) / 2 or 0.5
        low, high = low - pad, high + pad
    step = nice_step(high - low, count)
    low, high = math.floor(low / step + 1e-6) * step, math.ceil(high / step - 1e-6) * step
    return Axis(low=low, high=high, ticks=_ticks(low, high, round((high - low) / step)))


def share_axis(values: Sequence[float] | np.ndarray, *, zero: bool = False) -> Axis:
    """Shares as per cent, over the range of the data."""
    return replace(round_axis(values, zero=zero), percent=True)


def unit_axis() -> Axis:
    """Shares and probabilities: 0 to 1."""
    return Axis(low=0.0, high=1.0, ticks=[0.0, 0.2, 0.4, 0.6, 0.8, 1.0])


def _log_axis(low: float, high: float) -> Axis:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / 5))
    ticks = [10.0**power for power in range(first, last + 1, every)]
    return Axis(low=10.0**first, high=10.0**last, ticks=ticks, log=True)
