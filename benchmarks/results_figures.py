"""The figures of RESULTS.md as SVG: the same numbers are the same bytes."""

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from results_collapse import inflation, threshold
from results_forecasts import SCALE_RATIO
from results_numbers import KNN, LINEAR, TARGET_STD, Metric, measure
from results_runs import Seeds
from results_verdicts import COMPARED, Comparison

COLOURS = ("#2166ac", "#e08214", "#1b7837", "#b2182b", "#762a83")
Points = dict[float, Seeds]
"""A field's values and their runs."""


def draw_lam(points: Points) -> bytes:
    """kNN, the target's spread and the learned scale against lam, with the threshold and the scale by theory.

    The scale is divided by the constant one that suits the run's own forecasts best: runs differ in the spread that
    there is to forecast. It is 1 at lam 1/2, where theory has 1 too.
    """
    edge = threshold(next(iter(points.values()))[0])
    with _style():
        figure = Figure(figsize=(6.4, 6.4), layout="constrained")
        panels = figure.subplots(3, 1, sharex=True)
        middle = measure(SCALE_RATIO, points[0.5]) if 0.5 in points else None
        for axes, metric, colour in zip(panels, (KNN, TARGET_STD, SCALE_RATIO), COLOURS, strict=False):
            _bare(axes)
            unit = middle.mean if middle and metric is SCALE_RATIO else 1.0
            _plot(axes, metric, list(points), list(points.values()), colour=colour, unit=unit)
            axes.axvline(edge, color="0.4", linewidth=0.9, linestyle="--")
            axes.set_ylabel(metric.title)
            if metric is not KNN:
                axes.set_yscale("log")
        _label_edge(panels[0], edge)
        if middle:
            panels[2].set_ylabel(f"{SCALE_RATIO.title},\n1 at lam 0.5")
            _plot_theory(panels[2], points)
        panels[2].set_xlabel("lam")
        return _svg(figure)


def draw_axis(points: Points, *, field: str) -> bytes:
    """kNN and linear top-1 against a field's values, evenly spaced."""
    with _style():
        figure = Figure(figsize=(6.0, 3.4), layout="constrained")
        axes = figure.subplots()
        _bare(axes)
        places = [float(place) for place in range(len(points))]
        for metric, colour in zip((KNN, LINEAR), COLOURS, strict=False):
            _plot(axes, metric, places, list(points.values()), colour=colour)
        axes.set_xticks(places, [f"{value:g}" for value in points])
        axes.set(xlabel=field, ylabel="top-1 %")
        axes.legend(frameon=False)
        return _svg(figure)


def draw_twin(found: list[Comparison]) -> bytes:
    """ProSMIN less its deterministic twin, in points, turned so that right of zero is better."""
    shown = [metric for metric in COMPARED if metric.percent]
    with _style():
        figure = Figure(figsize=(6.4, 0.9 + 0.42 * len(shown)), layout="constrained")
        axes = figure.subplots()
        _bare(axes)
        axes.axvline(0.0, color="0.4", linewidth=0.9)
        for i, comparison in enumerate(found):
            shift = 0.5 * (i - (len(found) - 1) / 2) / len(found)
            rows = [(place, metric, comparison.differences[metric.title]) for place, metric in enumerate(shown)]
            drawn = [(place, metric, each) for place, metric, each in rows if each is not None]
            axes.errorbar(
                [100 * metric.better * each.value for _, metric, each in drawn],
                [place + shift for place, *_ in drawn],
                xerr=[
                    50 * (each.interval[1] - each.interval[0]) if each.interval else 0.0 for *_, each in drawn
                ],
                fmt="o", markersize=4, linewidth=1.2, color=COLOURS[i % len(COLOURS)], label=comparison.title,
            )  # fmt: skip
        axes.set_yticks(range(len(shown)), [metric.title.removesuffix(" %") for metric in shown])
        axes.invert_yaxis()
        axes.set_xlabel("points in favour of ProSMIN over its deterministic twin")
        figure.legend(loc="outside upper center", frameon=False, fontsize=8, ncols=2)
        return _svg(figure)


def _plot(
    axes: Axes, metric: Metric, places: list[float], runs: list[Seeds], *, colour: str, unit: float = 1.0
) -> None:
    """Means with 95 % intervals where there are any, in a unit."""
    factor = (100 if metric.percent else 1) / unit
    found = [(place, number) for place, seeds in zip(places, runs, strict=True) if (number := measure(metric, seeds))]
    axes.errorbar(
        [place for place, _ in found],
        [factor * number.mean for _, number in found],
        yerr=[factor * (number.half or 0.0) for _, number in found],
        fmt="o-", markersize=4, linewidth=1.2, color=colour, label=metric.title,
    )  # fmt: skip


def _plot_theory(axes: Axes, points: Points) -> None:
    """The scale over the true spread that theory gives, where it gives one."""
    factors = {lam: inflation(seeds[0]) for lam, seeds in points.items()}
    finite = {lam: factor for lam, factor in factors.items() if math.isfinite(factor) and factor > 0}
    if len(finite) > 1:
        axes.plot(list(finite), list(finite.values()), ":", color="0.4", label="theory")
        axes.legend(frameon=False, fontsize=8)


def _label_edge(axes: Axes, edge: float) -> None:
    axes.annotate(
        f"{edge:.4f}: no minimum to the left", (edge, 1.0), (0, 3), xycoords=("data", "axes fraction"),
        textcoords="offset points", fontsize=8, color="0.3", ha="center",
    )  # fmt: skip


def _bare(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)


@contextmanager
def _style() -> Iterator[None]:
    """matplotlib's own settings, whatever the machine's are, and identifiers that do not change."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams["svg.hashsalt"] = "prosmin"
        yield


def _svg(figure: Figure) -> bytes:
    """Without a date or a version, so that the same figure is the same file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
