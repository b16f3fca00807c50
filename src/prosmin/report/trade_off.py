"""The paper's figure: how well strange pictures are told apart against the error on corrupted ones."""

import math
from collections.abc import Sequence

import numpy as np

from prosmin.data.corruptions.parameters import parameters_of
from prosmin.report.axes import round_axis, share_axis
from prosmin.report.blocks import Cell, Figure, Table
from prosmin.report.drawing import Words, series
from prosmin.report.glossary import metric, number
from prosmin.report.intervals import auroc_interval
from prosmin.report.ood import default_score, has, raw, sets
from prosmin.report.runs import Run
from prosmin.report.scatter import Point, scatter_chart

ALIKE = ("corruption_parameters", "baselines", "near")
"""Options that may differ where the numbers of the figure were measured alike.

How strong severities are is resolved in the settings, by what the encoder sees: "auto" may mean the same. Baselines
and the means over near and far sets stand beside the AUROC, which is over all sets.
"""


def trade_off_figure(runs: Sequence[Run]) -> Figure | None:
    """AUROC against the error under corruption, a point a run; None for fewer than two."""
    key = "mce" if all("mce" in run.metrics("corruption") for run in runs) else "mean_error"
    having = [
        (i, run)
        for i, run in enumerate(runs)
        if key in run.metrics("corruption") and math.isfinite(run.metrics("ood").get("auroc", math.nan))
    ]
    if len(having) < 2:
        return None
    points = [
        Point(
            label=run.name,
            x=run.metrics("corruption")[key],
            y=run.metrics("ood")["auroc"],
            style=series(i),
            interval=_auroc_interval(run),
        )
        for i, run in having
    ]
    how = metric(key)
    title = "Out-of-distribution AUROC against corruption"
    said = " ".join(f"{p.label}: AUROC {number(p.y)}, {how.label} {how.text(p.x)}." for p in points)
    words = Words(id="trade-off", title=title, desc=said, x="error under corruption", y="AUROC")
    ends = [end for p in points for end in (p.interval or (p.y, p.y))]
    return Figure(
        id="figure-trade-off",
        title=title,
        chart=scatter_chart(words, points, x=share_axis([p.x for p in points]), y=round_axis(ends)),
        reading="Top left is best: strange pictures are told apart, corrupted ones still recognised. "
        "Lines are 95 % intervals of the AUROC." + _unlike([run for _, run in having]),
        table=Table(
            columns=["run", how.heading(), metric("auroc").heading()],
            rows=[
                [
                    Cell(p.label, head=True),
                    how.text(p.x),
                    Cell(
                        metric("auroc").text(p.y),
                        detail="" if p.interval is None else f"[{p.interval[0]:.3f}, {p.interval[1]:.3f}]",
                    ),
                ]
                for p in points
            ],
            caption=title,
        ),
        commands=[run.command(name) for _, run in having for name in ("ood", "corruption")],
    )


def _auroc_interval(run: Run) -> tuple[float, float] | None:
    """Of the mean over the sets, where all their scores were kept."""
    score = default_score(run)
    if not sets(run) or not all(has(run, name, score) for name in sets(run)):
        return None
    both = [raw(run, name, score) for name in sets(run)]
    familiar = both[0][0]
    if any(not len(outside) or not np.array_equal(inside, familiar) for inside, outside in both) or not len(familiar):
        return None  # sets held against other familiar pictures each share no luck that could be averaged
    return auroc_interval(familiar, [outside for _, outside in both])


def _unlike(runs: Sequence[Run]) -> str:
    """A warning where the runs were not measured alike."""
    for name in ("ood", "corruption"):
        how = [
            (
                {k: v for k, v in run.part(name, "options").items() if k not in ALIKE},
                run.part(name, "data"),
                parameters_of(run.part(name, "settings")),
            )
            for run in runs
        ]
        if any(other != how[0] for other in how):
            return " The runs were measured on different pictures: compare with care."
    return ""
