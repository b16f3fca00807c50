"""The numbers of every protocol: the headline cards, and the table of all of them."""

import math
from collections.abc import Sequence

from prosmin.report.blocks import Bar, Block, Card, Cards, Cell, Fold, Missing, Row, Section, Table
from prosmin.report.columns import Column, columns
from prosmin.report.glossary import CHANCE, Metric, best, interval_of, metric, protocol
from prosmin.report.runs import Run

HEADLINES = [
    ("knn", "top1", "kNN top-1 accuracy"),
    ("linear", "top1", "Linear probe top-1 accuracy"),
    ("linear", "nll", "Linear probe negative log-likelihood"),
    ("linear", "ece", "Linear probe calibration error"),
    ("ood", "auroc", "Out-of-distribution AUROC"),
    ("uncertainty", "r_auroc", "Wrong neighbours foreseen, R-AUROC"),
]
EXPECTED = ("knn", "linear", "ood", "uncertainty")


def headline_section(runs: Sequence[Run]) -> Section:
    """The few numbers that say whether something was learned, beside the baselines."""
    cards = [found for name, key, title in HEADLINES if (found := card(columns(runs, name), key, title))]
    blocks: Sequence[Block] = [Cards(cards=cards)] if cards else _missing(runs)
    lead = "Each number beside that of raw pixels and of the encoder before training. Arrows say what is better."
    return Section(id="headline", title="Headline numbers", lead=lead, blocks=blocks)


def card(of: Sequence[Column], key: str, title: str) -> Card | None:
    """A headline number with a bar for every run and baseline; None where no run has it."""
    having = [c for c in of if math.isfinite(c.metrics.get(key, math.nan))]
    trained, others = [c for c in having if c.trained], [c for c in having if not c.trained]
    if not trained:
        return None
    if not others and "auroc" in key:
        others = [Column(label="chance", metrics={key: CHANCE}, style="quiet", trained=False)]
        having += others
    how = metric(key)
    pick = max if how.better == "higher" else min
    top = pick(trained, key=lambda c: c.metrics[key])
    rival = pick(others, key=lambda c: c.metrics[key]) if others else None
    longest = max(abs(c.metrics[key]) for c in having) or 1.0
    bold = best([c.metrics[key] for c in having], how)
    bars = [
        Bar(label=c.label, text=how.text(v), share=abs(v) / longest, style=c.style, best=b)
        for c, b in zip(having, bold, strict=True)
        for v in [c.metrics[key]]
    ]
    reading = compare(how, top.metrics[key], rival.metrics[key], rival.label) if rival else ""
    return Card(title=f"{title}\u00a0{how.arrow()}", value=how.text(top.metrics[key]), reading=reading, bars=bars)


def compare(how: Metric, value: float, rival: float, name: str) -> str:
    """A number against the better baseline, in words."""
    name = f"the {name}" if name.startswith("untrained") else name
    if how.text(value) == how.text(rival):
        return f"the same as {name}"
    gap = f"{100 * abs(value - rival):.1f} points" if how.percent else f"{abs(value - rival):.3f}"
    ahead = (value > rival) == (how.better == "higher")
    return f"{gap} {'better' if ahead else 'worse'} than {name}"


def results_section(runs: Sequence[Run]) -> Section:
    """Every number of every protocol, ours or not yet known to this page."""
    names = dict.fromkeys([*EXPECTED, *(name for run in runs for name in run.results)])
    blocks: list[Block] = []
    for name in names:
        if any(run.metrics(name) for run in runs):
            blocks.append(protocol_table(runs, name))
            blocks.append(Fold(title="Command and settings", blocks=[_settings(runs, name)]))
    blocks += _missing(runs)
    lead = "The best of each row is bold; arrows say which direction is better. Brackets hold 95 % intervals."
    return Section(id="results", title="Results", lead=lead, blocks=blocks)


def protocol_table(runs: Sequence[Run], name: str) -> Table:
    """The metrics of a protocol as rows, runs and baselines as columns."""
    of = columns(runs, name)
    keys = dict.fromkeys(key for column in of for key in column.metrics)
    ends = {end for key in keys for end in interval_of(key)}  # these stand in brackets behind their number
    if all(len(run.part(name, "sets")) <= 1 for run in runs):  # then their own table says the same
        ends |= {key for key in keys if key.startswith("auroc_")}
    rows: list[Row] = []
    for key in (key for key in keys if key not in ends):
        how = metric(key)
        values = [column.metrics.get(key) for column in of]
        cells = [
            Cell("–" if v is None else how.text(v), best=b, detail=interval(column, key, how))
            for column, v, b in zip(of, values, best(values, how), strict=True)
        ]
        rows.append([Cell(how.heading(), head=True), *cells])
    return Table(
        columns=[protocol(name), *(column.label for column in of)],
        rows=rows,
        caption=protocol(name),
        even=True,
    )


def interval(column: Column, key: str, how: Metric) -> str:
    """The interval of a number in brackets, where the result carries one."""
    low, high = (column.metrics.get(end) for end in interval_of(key))
    return "" if low is None or high is None else f"[{how.text(low)}, {how.text(high)}]"


def _settings(runs: Sequence[Run], name: str) -> Table:
    """Commands, settings, data and checkpoint of a protocol, a column a run."""
    flat = [_said(run, name) for run in runs]
    rows: list[Row] = [
        [Cell(key, head=True), *(said.get(key, "–") for said in flat)]
        for key in dict.fromkeys(key for said in flat for key in said)
    ]
    return Table(
        columns=["", *(run.name for run in runs)],
        rows=rows,
        text=True,
        caption=f"Settings of {protocol(name)}",
    )


def _said(run: Run, name: str) -> dict[str, str]:
    if name not in run.results:
        return {}
    said = {"command": run.command(name)}
    for part in ("settings", "data", "checkpoint"):
        said |= {f"{part}: {key}": str(value) for key, value in run.part(name, part).items()}
    result = run.results[name]
    return said | {key: str(result[key]) for key in ("seed", "seconds") if key in result}


def _missing(runs: Sequence[Run]) -> list[Block]:
    """The protocols of the page that a run has not been through, one command a run."""
    found: list[Block] = []
    for run in runs:
        names = [name for name in EXPECTED if name not in run.results]
        if names:
            what = ", ".join(protocol(name) for name in names)
            where = f" of {run.name}" if len(runs) > 1 else ""
            command = f"prosmin evaluate {run.quoted} --protocols {','.join(names)}"
            found.append(Missing(what=f"Not measured yet{where}: {what}", command=command))
    return found


def lead(runs: Sequence[Run]) -> str:
    """The whole page in a sentence: the first headline that was measured."""
    for name, key, title in HEADLINES:
        found = card(columns(runs, name), key, title)
        if found:
            number = ", ".join(filter(None, [found.value, found.reading]))
            return f"{'Best ' if len(runs) > 1 else ''}{title}: {number}."
    return "Nothing has been measured yet."
