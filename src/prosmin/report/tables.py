"""Tables of metrics for runs and baselines, how numbers are written, and warnings about mixed results."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prosmin.evaluation.metrics.intervals import wilson
from prosmin.evaluation.metrics.table import ACCURACIES, Metric, interval_of, metric, spread_of
from prosmin.evaluation.protocols import PROTOCOLS
from prosmin.report.blocks import Cell, Row, Table
from prosmin.report.runs import Run, size_of_test

BASELINES = {"untrained": "untrained encoder", "untrained, BatchNorm set": "untrained encoder, BatchNorm set"}


def protocol(name: str) -> str:
    """The title of a protocol."""
    return PROTOCOLS[name].title if name in PROTOCOLS else name.replace("_", " ")


def baseline(name: str) -> str:
    """The title of a baseline."""
    return BASELINES.get(name, name)


def apart(values: Sequence[float]) -> list[str]:
    """Numbers with the same count of decimals, enough to show a tenth of their range."""
    known = [v for v in values if math.isfinite(v)]
    span = max(known) - min(known) if known else 0.0
    digits = min(6, max(2, 1 - math.floor(math.log10(span)))) if span > 0 else 2
    return [f"{v:.{digits}f}".replace("-", "−") if math.isfinite(v) else "–" for v in values]


def best(values: Sequence[float | None], how: Metric) -> list[bool]:
    """Which values are shown in bold: the best and all that round to it; none if all values are equal."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    texts = ["" if v is None else how.text(v) for v in values]
    if not how.better or len({t for t in texts if t and t != "–"}) < 2:
        return [False] * len(values)
    winner = how.text(max(known) if how.better == "higher" else min(known))
    return [text == winner for text in texts]


@dataclass(frozen=True, kw_only=True)
class Column:
    """The numbers of a run, a baseline or a score: {metric name: value}."""

    label: str
    metrics: dict[str, float]
    style: str = ""
    trained: bool = True
    size: int | None = None  # number of test images, if known


def columns(runs: Sequence[Run], protocol: str) -> list[Column]:
    """The runs and the baselines of a protocol."""
    found = [
        Column(
            label=run.name if run.several else "trained",
            metrics=run.metrics(protocol),
            style=run.style,
            size=size_of_test(run, protocol),
        )
        for run in runs
    ]
    for name in dict.fromkeys(name for run in runs for name in run.baselines(protocol)):
        having = [(run, run.baselines(protocol)[name]) for run in runs if name in run.baselines(protocol)]
        if all(values == having[0][1] for _, values in having):
            having = having[:1]
        for run, values in having:
            # An untrained encoder depends on its backbone and seed: each run keeps its own if they differ.
            label = baseline(name) if len(having) == 1 else f"{baseline(name)}, {run.name}"
            size = size_of_test(run, protocol)
            found.append(Column(label=label, metrics=values, style="quiet", trained=False, size=size))
    return found


def cells(of: Sequence[Column], key: str) -> list[Cell]:
    """One metric of several columns, the best in bold."""
    how = metric(key)
    values = [column.metrics.get(key) for column in of]
    return [
        Cell("–" if v is None else how.text(v), best=b, detail=_uncertainty(column, key, how))
        for column, v, b in zip(of, values, best(values, how), strict=True)
    ]


def metrics_table(of: Sequence[Column], keys: Sequence[str], title: str) -> Table:
    """Metrics as rows."""
    rows: list[Row] = [[Cell(metric(key).heading(), head=True), *cells(of, key)] for key in keys]
    return Table(columns=[title, *(column.label for column in of)], rows=rows, caption=title)


def scores_table(scores: dict[str, dict[str, float]], title: str, *, keys: Sequence[str] = ()) -> Table:
    """Metrics as columns, one row per score: all metrics, or those of `keys` that a score has."""
    of = [Column(label=name, metrics=values) for name, values in scores.items()]
    found = dict.fromkeys(key for column in of for key in column.metrics)
    keys = [key for key in keys if key in found] if keys else list(found)
    rows: list[Row] = [
        [Cell(column.label, head=True), *row]
        for column, *row in zip(of, *(cells(of, key) for key in keys), strict=True)
    ]
    return Table(columns=[title, *(metric(key).heading() for key in keys)], rows=rows, caption=title)


def _uncertainty(column: Column, key: str, how: Metric) -> str:
    """The standard deviation of a number over draws, or its interval over the test images."""
    spread = column.metrics.get(spread_of(key))
    if spread is not None:
        return f"± {100 * spread:.1f}" if how.percent else f"± {how.text(spread)}"
    low, high = (column.metrics.get(end) for end in interval_of(key))
    if (low is None or high is None) and key in ACCURACIES and key in column.metrics and column.size:
        low, high = wilson(column.metrics[key], column.size)
    if low is None or high is None:
        return ""
    return f"[{100 * low:.1f}, {100 * high:.1f}]" if how.percent else f"[{how.text(low)}, {how.text(high)}]"


def side_by_side(runs: Sequence[Run], facts: Sequence[dict[str, str]], title: str, caption: str) -> Table:
    """Texts by name, one column per run."""
    names = dict.fromkeys(name for each in facts for name in each)
    rows: list[Row] = [[Cell(name, head=True), *(each.get(name) or "–" for each in facts)] for name in names]
    return Table(columns=[title, *(run.name for run in runs)], rows=rows, text=True, caption=caption)


def measured_on(run: Run, name: str) -> str:
    """The images of a result; empty if it does not say, or has other sets."""
    data = run.part(name, "data")
    if name == "transfer" or not {"train", "test"} <= data.keys():
        return ""
    return f"{data['test']}, train {data['train']}"


def measured_by(run: Run, name: str) -> str:
    """The encoder of a result: the hash of its weights and its step; empty if it does not say."""
    checkpoint = run.part(name, "checkpoint")
    if not isinstance(checkpoint.get("hash"), str):
        return ""
    return f"the encoder {checkpoint['hash']}" + (f" of step {checkpoint['step']}" if "step" in checkpoint else "")


def heading(runs: Sequence[Run], name: str) -> str:
    """The title of a protocol's table, with its images if other tables of the page have others."""
    by_run = {run.name: on for run in runs if (on := measured_on(run, name))}
    everywhere = {on for run in runs for other in run.results if (on := measured_on(run, other))}
    if not by_run or len(everywhere) < 2:
        return protocol(name)
    same = len(set(by_run.values())) == 1
    sets = [next(iter(by_run.values()))] if same else [f"{on} ({run})" for run, on in by_run.items()]
    return f"{protocol(name)} on {'; '.join(sets)}"


def mixed(run: Run) -> list[str]:
    """Warnings if the protocols of one run were measured on different images or with different encoders."""
    warnings = []
    if images := _listed(run, measured_on, "on"):
        warnings.append(
            f"its protocols were measured on different images, so their numbers cannot be compared: {images}. "
            "Use prosmin evaluate --out DIR to keep the results of each set in its own folder."
        )
    if encoders := _listed(run, measured_by, "by"):
        warnings.append(
            f"its protocols were measured by different encoders, so their numbers cannot be compared: {encoders}. "
            "Run the commands of the older results again; they are measured with the present encoder."
        )
    return warnings


def _listed(run: Run, of: Callable[[Run, str], str], word: str) -> str:
    """The protocols by their images, or encoders; empty if all results that say so have the same."""
    found: dict[str, list[str]] = {}
    for name in run.results:
        if what := of(run, name):
            found.setdefault(what, []).append(name)
    return "; ".join(f"{', '.join(names)} {word} {what}" for what, names in found.items()) if len(found) > 1 else ""


def too_narrow(runs: Sequence[Run]) -> str:
    """A sentence to follow one about intervals, if some are of the embedded photographs; else empty."""
    tested = [run.part(name, "data").get("test") for run in runs for name in run.results if name != "transfer"]
    tested += [spec for run in runs for spec in run.part("transfer", "sets")]
    if not any(str(spec).partition("@")[0] == "photos" for spec in tested):
        return ""
    return (
        " The patches of the embedded photographs overlap but are counted as independent test images, so "
        "their intervals are too narrow, often by a factor of 2 or more."
    )
