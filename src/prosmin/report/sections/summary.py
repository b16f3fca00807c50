"""What was run and the numbers that say whether something was learned."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from prosmin.config import METHOD_TITLES
from prosmin.evaluation.metrics.table import CHANCE, Metric, metric, number
from prosmin.evaluation.protocols import PROTOCOLS
from prosmin.report.blocks import Bar, Block, Card, Cards, Cell, Code, Facts, Fold, Missing, Row, Section, Table
from prosmin.report.commands import unlabelled
from prosmin.report.metrics import best, duration
from prosmin.report.runs import Run
from prosmin.report.sections.results import missing
from prosmin.report.tables import Column, columns

LONG = 12  # rows above which the table of differences is folded


def summary_section(runs: Sequence[Run]) -> Section:
    """The facts as rows, a column a run."""
    blocks: list[Block] = []
    if any(run.config for run in runs):
        said = [(label, [fact(run) for run in runs]) for label, fact in FACTS.items()]
        said = [(label, values) for label, values in said if any(values)]
        rows: list[Row] = [[Cell(label, head=True), *(value or "–" for value in values)] for label, values in said]
        columns = ["", *(run.name for run in runs)]
        alone = Facts(facts=[(label, values[0]) for label, values in said])
        blocks.append(
            alone if len(runs) == 1 else Table(columns=columns, rows=rows, text=True, caption="The facts of each run")
        )
    if len(runs) > 1 and all(run.config and not run.foreign for run in runs):
        blocks.append(_differences(runs))
    for run in runs:
        if run.foreign:
            continue
        if run.config:
            text = yaml.safe_dump(run.config, sort_keys=False, default_flow_style=None, allow_unicode=True)
            where = f" of {run.name}" if len(runs) > 1 else ""
            blocks.append(Fold(title=f"The whole configuration{where}", blocks=[Code(title="config.yaml", text=text)]))
        else:
            blocks.append(
                Missing(what=f"{run.name} has no config.yaml", command=f"prosmin pretrain --out {run.quoted}")
            )
    return Section(id="run", title="What was run", blocks=blocks)


def method(run: Run) -> str:
    """The method's name as it is written."""
    name = str(run.setting("method", "name") or "")
    return METHOD_TITLES.get(name, name)


def objective(run: Run) -> str:
    """The loss in a line, for the methods that name a rule."""
    rule, beta, lam = (run.setting("loss", name) for name in ("rule", "beta", "lam"))
    names = {"energy": "energy score", "crps": "CRPS", "kernel": "kernel score"}
    if not rule:
        return ""
    power = f", β = {beta}" if rule == "energy" and beta is not None else ""
    weight = f", λ = {lam}" if lam is not None else ""
    return f"{names.get(rule, rule)}{power}{weight}"


def sentence(run: Run) -> str:
    """What was run, in a sentence."""
    subject = " with ".join(filter(None, [method(run), FACTS["Backbone"](run)])) or "An encoder"
    pictures, epochs = FACTS["Pictures"](run), run.setting("training", "epochs")
    training = [f"on {pictures}" if pictures else "", f"for {epochs} epochs" if epochs else ""]
    trained = " ".join(filter(None, ["trained", *training])) if run.config and not run.foreign else "as it was found"
    return f"{subject}, {trained}."


def views(run: Run) -> str:
    """How many views of which size."""
    large, small, local = (run.setting("views", name) for name in ("global_size", "local_size", "local"))
    if large is None:
        return ""
    return f"2 global of {large} px" + (f", {local} local of {small} px" if local else "")


def length(run: Run) -> str:
    """How far the run came: steps, epochs, images a step."""
    last = run.log[-1] if run.log else {}
    parts = [f"{number(last['step'])} steps"] if "step" in last else []
    epochs, done = run.setting("training", "epochs"), last.get("epoch")
    if done is not None and epochs:
        parts.append(f"{done:.0f} of {epochs} epochs" if done < epochs - 0.5 else f"{epochs} epochs")
    elif epochs:
        parts.append(f"{epochs} epochs planned")
    batch = run.setting("training", "batch_size")
    return ", ".join([*parts, f"{batch} images a step"] if batch else parts)


def seconds(run: Run) -> float:
    """Time spent training: images between logged steps over their rate, pauses left out."""
    batch = run.setting("training", "batch_size") or 0
    total = before = 0.0
    for line in run.log:
        rate = line.get("images_per_second", 0.0)
        total += batch * (line["step"] - before) / rate if rate > 0 else 0.0
        before = line["step"]
    return total


def time(run: Run) -> str:
    """How long it took and how fast it went."""
    spent = seconds(run)
    rates = sorted(line["images_per_second"] for line in run.log if "images_per_second" in line)
    parts = [duration(spent)] if spent else []
    return ", ".join([*parts, f"{rates[len(rates) // 2]:,.0f} images a second"] if rates else parts)


def hardware(run: Run) -> str:
    """Where it ran, as far as the run says."""
    kind, devices, precision = (run.setting("compute", name) for name in ("accelerator", "devices", "precision"))
    if kind is None and devices is None:
        return ""
    used = [line["memory_mib"] for line in run.log if "memory_mib" in line]
    if kind == "auto" and run.log and "on_gpu" in run.log[-1]:
        kind = "cuda" if run.log[-1]["on_gpu"] else "cpu"
    names = {"auto": "device chosen automatically", "cpu": "CPU", "cuda": "GPU"}
    parts = [
        names.get(str(kind), str(kind)),
        f"{devices} process{'' if devices == 1 else 'es'}",
        str(precision),
    ]
    return ", ".join([*parts, f"{max(used):,.0f} MiB at most"] if used and max(used) > 0 else parts)


def bad_pictures(run: Run) -> str:
    """How many images could not be read, where any."""
    count = max((line["bad_pictures"] for line in run.log if "bad_pictures" in line), default=0.0)
    return f"{number(count)}, left out" if count else ""


def _plain(group: str, name: str) -> Callable[[Run], str]:
    def fact(run: Run) -> str:
        value = run.setting(group, name)
        return "" if value is None else str(value)

    return fact


FACTS: dict[str, Callable[[Run], str]] = {
    "Method": method,
    "Objective": objective,
    "Backbone": _plain("backbone", "name"),
    "Weights": lambda run: str(run.card.get("weights") or ""),
    "Embedding size K": _plain("heads", "dim"),
    "Pictures": _plain("data", "spec"),
    "Unreadable images": bad_pictures,
    "Views": views,
    "Length": length,
    "Time": time,
    "Hardware": hardware,
    "Seed": _plain("training", "seed"),
    "Folder": lambda run: str(run.path),
}


def _flat(config: dict[str, Any]) -> dict[str, str]:
    return {
        f"{group}.{name}": str(value)
        for group, values in config.items()
        if isinstance(values, dict)
        for name, value in values.items()
    }


def _differences(runs: Sequence[Run]) -> Table | Fold:
    """The fields in which the configurations differ; many of them, as between two methods, are folded."""
    flat = [_flat(run.config) for run in runs]
    names = dict.fromkeys(name for fields in flat for name in fields)
    rows: list[Row] = [
        [Cell(name, head=True), *(fields.get(name, "–") for fields in flat)]
        for name in names
        if len({fields.get(name) for fields in flat}) > 1
    ]
    note = "" if rows else "The configurations are equal in every field."
    columns = ["Differs in", *(run.name for run in runs)]
    table = Table(columns=columns, rows=rows, note=note, text=True, caption="Fields in which the runs differ")
    return table if len(rows) <= LONG else Fold(title=f"The {len(rows)} fields that differ", blocks=[table])


def headlines(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """Protocol, metric and title of each number; without labels there are others."""
    unlabelled_too = any(map(unlabelled, runs))
    found = [
        (name, key)
        for name, protocol in PROTOCOLS.items()
        for key in (*protocol.headlines, *(protocol.headlines_without_labels if unlabelled_too else ()))
    ]
    return [(name, key, f"{PROTOCOLS[name].title} {metric(key).title}") for name, key in found]


def headline_section(runs: Sequence[Run]) -> Section:
    """The few numbers that say whether something was learned, beside the baselines."""
    cards = [found for name, key, title in headlines(runs) if (found := card(columns(runs, name), key, title))]
    blocks: Sequence[Block] = [Cards(cards=cards)] if cards else missing(runs)
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


def lead(runs: Sequence[Run]) -> str:
    """The whole page in a sentence: the first headline that was measured."""
    measured = any(run.results for run in runs)
    for name, key, title in headlines(runs):
        found = card(columns(runs, name), key, title)
        if found:
            number = ", ".join(filter(None, [found.value, found.reading]))
            return f"{'Best ' if len(runs) > 1 else ''}{title}: {number}."
    return "None of the headline numbers has been measured yet." if measured else "Nothing has been measured yet."
