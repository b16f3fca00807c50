"""The columns of a comparison: every run, then the baselines, each said once where all runs agree on it."""

from collections.abc import Sequence
from dataclasses import dataclass

from prosmin.report.drawing import series
from prosmin.report.glossary import baseline
from prosmin.report.intervals import size_of_test
from prosmin.report.runs import Run


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of numbers: {metric name: value}."""

    label: str
    metrics: dict[str, float]
    style: str
    trained: bool
    size: int | None = None  # test pictures, where known


def columns(runs: Sequence[Run], protocol: str) -> list[Column]:
    """The runs and the baselines of a protocol."""
    found = [
        Column(
            label=run.name if len(runs) > 1 else "trained",
            metrics=run.metrics(protocol),
            style=series(i),
            trained=True,
            size=size_of_test(run, protocol),
        )
        for i, run in enumerate(runs)
    ]
    names = dict.fromkeys(name for run in runs for name in run.baselines(protocol))
    for name in names:
        having = [(run, run.baselines(protocol)[name]) for run in runs if name in run.baselines(protocol)]
        if all(values == having[0][1] for _, values in having):
            having = having[:1]
        for run, values in having:
            # An untrained encoder depends on its backbone and seed: runs that differ in it keep their own.
            label = baseline(name) if len(having) == 1 else f"{baseline(name)}, {run.name}"
            found.append(
                Column(label=label, metrics=values, style="quiet", trained=False, size=size_of_test(run, protocol))
            )
    return found
