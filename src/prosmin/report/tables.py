"""Tables of metrics: columns for runs and baselines, and a note where they were measured on different images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prosmin.evaluation.metrics.intervals import wilson
from prosmin.evaluation.metrics.table import ACCURACIES, Metric, interval_of, metric, spread_of
from prosmin.report.blocks import Cell, Row, Table
from prosmin.report.drawing.svg import series
from prosmin.report.metrics import baseline, best, protocol
from prosmin.report.runs import Run, size_of_test


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of numbers: {metric name: value}."""

    label: str
    metrics: dict[str, float]
    style: str
    trained: bool
    size: int | None = None  # test images, where known


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


def measured_on(run: Run, name: str) -> str:
    """The images of a result; empty where it does not say, or where it has sets of its own."""
    data = run.part(name, "data")
    if name == "transfer" or not {"train", "test"} <= data.keys():
        return ""
    return f"{data['test']}, train {data['train']}"


def differ(runs: Sequence[Run]) -> bool:
    """Whether not all the numbers of these runs are of the same images."""
    return len({said for run in runs for name in run.results if (said := measured_on(run, name))}) > 1


def heading(runs: Sequence[Run], name: str) -> str:
    """The title of a protocol's table, with its images where there are others on the page."""
    by_run = {run.name: on for run in runs if (on := measured_on(run, name))}
    if not by_run or not differ(runs):
        return protocol(name)
    alike = len(set(by_run.values())) == 1
    said = [next(iter(by_run.values()))] if alike else [f"{on} ({run})" for run, on in by_run.items()]
    return f"{protocol(name)} on {'; '.join(said)}"


def mixed(run: Run) -> list[str]:
    """A warning each where the protocols of one run were measured on different images or by different encoders."""
    apart = "so that their numbers do not belong together"
    said = []
    if pictures := _listed(run, measured_on, "on"):
        said.append(
            f"its protocols were measured on different images, {apart}: {pictures}. "
            "prosmin evaluate --out DIR keeps the results of each set apart."
        )
    if encoders := _listed(run, measured_by, "by"):
        said.append(
            f"its protocols were measured by different encoders, {apart}: {encoders}. "
            "Give the commands of the older ones again: what is not of the present encoder is measured anew."
        )
    return said


def measured_by(run: Run, name: str) -> str:
    """The encoder of a result: the hash of its weights, and its step; empty where it does not say."""
    checkpoint = run.part(name, "checkpoint")
    if not isinstance(checkpoint.get("hash"), str):
        return ""
    return f"the encoder {checkpoint['hash']}" + (f" of step {checkpoint['step']}" if "step" in checkpoint else "")


def _listed(run: Run, of: Callable[[Run, str], str], word: str) -> str:
    """The protocols by what they were measured on, or by; empty where that is the same for all that say."""
    found: dict[str, list[str]] = {}
    for name in run.results:
        if what := of(run, name):
            found.setdefault(what, []).append(name)
    return "; ".join(f"{', '.join(names)} {word} {what}" for what, names in found.items()) if len(found) > 1 else ""


def too_narrow(runs: Sequence[Run]) -> str:
    """A sentence to follow one about intervals, where some are of the embedded photographs; else empty."""
    tested = [run.part(name, "data").get("test") for run in runs for name in run.results if name != "transfer"]
    tested += [spec for run in runs for spec in run.part("transfer", "sets")]
    if not any(str(spec).partition("@")[0] == "photos" for spec in tested):
        return ""
    return (
        " The patches of the embedded photographs overlap, but are counted as independent test images: "
        "their intervals are too narrow, often by a factor of 2 or more."
    )


def metrics_table(of: Sequence[Column], keys: Sequence[str], title: str) -> Table:
    """Metrics as rows, runs and baselines as columns, the best of a row in bold."""
    rows: list[Row] = []
    for key in keys:
        how = metric(key)
        values = [column.metrics.get(key) for column in of]
        cells = [
            Cell("–" if v is None else how.text(v), best=b, detail=uncertainty(column, key, how))
            for column, v, b in zip(of, values, best(values, how), strict=True)
        ]
        rows.append([Cell(how.heading(), head=True), *cells])
    return Table(columns=[title, *(column.label for column in of)], rows=rows, caption=title)


def uncertainty(column: Column, key: str, how: Metric) -> str:
    """What stands behind a number: its spread over draws, or its interval over the test images."""
    spread = column.metrics.get(spread_of(key))
    if spread is not None:
        return f"± {100 * spread:.1f}" if how.percent else f"± {how.text(spread)}"
    low, high = (column.metrics.get(end) for end in interval_of(key))
    if (low is None or high is None) and key in ACCURACIES and key in column.metrics and column.size:
        low, high = wilson(column.metrics[key], column.size)
    if low is None or high is None:
        return ""
    return f"[{100 * low:.1f}, {100 * high:.1f}]" if how.percent else f"[{how.text(low)}, {how.text(high)}]"
