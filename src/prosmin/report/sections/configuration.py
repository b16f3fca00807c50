"""What was run: the facts of each run, the fields in which runs differ, the whole configuration."""

from collections.abc import Callable, Sequence
from typing import Any

import yaml

from prosmin.config import method_title
from prosmin.evaluation.metrics.intervals import wilson
from prosmin.evaluation.metrics.table import number, percent
from prosmin.report.blocks import Block, Code, Facts, Fold, Missing, Note, Section
from prosmin.report.runs import Run, numbers
from prosmin.report.tables import side_by_side

LONG = 12  # rows above which the table of differences is folded


def blocks(runs: Sequence[Run]) -> list[Block]:
    """The facts as rows, one column per run."""
    found: list[Block] = []
    facts = [{label: text for label, fact in FACTS.items() if (text := fact(run))} for run in runs]
    if any(run.config for run in runs):
        table = side_by_side(runs, facts, "", "Facts of each run")
        found.append(table if len(runs) > 1 else Facts(facts=list(facts[0].items())))
    if len(runs) > 1 and all(run.config and not run.foreign for run in runs):
        found.append(_differences(runs))
    for run in runs:
        if run.foreign:
            continue
        if run.config:
            text = yaml.safe_dump(run.config, sort_keys=False, default_flow_style=None, allow_unicode=True)
            code = Code(title="config.yaml", text=text)
            found.append(Fold(title=f"The whole configuration{run.suffix}", blocks=[code]))
        else:
            what = f"{run.name} has no config.yaml"
            found.append(Missing(what=what, command=f"prosmin pretrain --out {run.quoted}"))
    return found


def method(run: Run) -> str:
    """The title of what was trained."""
    fields = (("method", "name"), ("loss", "identification"), ("loss", "score_weight"))
    tree: dict[str, dict[str, Any]] = {"method": {}, "loss": {}}
    for group, name in fields:  # one by one: the file may be damaged
        if (value := run.setting(group, name)) is not None:
            tree[group][name] = value
    return method_title(tree)


def objective(run: Run) -> str:
    """The loss in a line, for methods with a scoring rule."""
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
    images, epochs = FACTS["Images"](run), run.setting("training", "epochs")
    training = [f"on {images}" if images else "", f"for {epochs} epochs" if epochs else ""]
    trained = run.config and not run.foreign
    return f"{subject}, {' '.join(filter(None, ['trained', *training])) if trained else 'not trained here'}."


def views(run: Run) -> str:
    """The number and size of the views."""
    large, small, local = (run.setting("views", name) for name in ("global_size", "local_size", "local"))
    if large is None:
        return ""
    return f"2 global of {large} px" + (f", {local} local of {small} px" if local else "")


def length(run: Run) -> str:
    """Steps, epochs and batch size."""
    last = run.log[-1] if run.log else {}
    parts = [f"{number(last['step'])} steps"] if "step" in last else []
    epochs, done = run.setting("training", "epochs"), last.get("epoch")
    if done is not None and epochs:
        parts.append(f"{done:.0f} of {epochs} epochs" if done < epochs - 0.5 else f"{epochs} epochs")
    elif epochs:
        parts.append(f"{epochs} epochs planned")
    batch = run.setting("training", "batch_size")
    return ", ".join([*parts, f"{batch} images per step"] if batch else parts)


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def seconds(run: Run) -> float:
    """Time spent training, without pauses: the images between logged steps over their rate."""
    batch = run.setting("training", "batch_size") or 0
    total = before = 0.0
    for line in run.log:
        rate = line.get("images_per_second", 0.0)
        total += batch * (line["step"] - before) / rate if rate > 0 else 0.0
        before = line["step"]
    return total


def time(run: Run) -> str:
    """Duration and speed."""
    spent = seconds(run)
    rates = sorted(line["images_per_second"] for line in run.log if "images_per_second" in line)
    parts = [duration(spent)] if spent else []
    return ", ".join([*parts, f"{rates[len(rates) // 2]:,.0f} images per second"] if rates else parts)


def hardware(run: Run) -> str:
    """Device, processes, precision and memory, as far as known."""
    kind, devices, precision = (run.setting("compute", name) for name in ("accelerator", "devices", "precision"))
    if kind is None and devices is None:
        return ""
    if kind == "auto" and run.log and "on_gpu" in run.log[-1]:
        kind = "cuda" if run.log[-1]["on_gpu"] else "cpu"
    names = {"auto": "device chosen automatically", "cpu": "CPU", "cuda": "GPU"}
    parts = [names.get(str(kind), str(kind)), f"{devices} process{'' if devices == 1 else 'es'}", str(precision)]
    used = max((line["memory_mib"] for line in run.log if "memory_mib" in line), default=0.0)
    return ", ".join([*parts, f"{used:,.0f} MiB at most"] if used > 0 else parts)


def bad_pictures(run: Run) -> str:
    """The number of unreadable images, if any."""
    count = max((line["bad_pictures"] for line in run.log if "bad_pictures" in line), default=0.0)
    return f"{number(count)}, left out" if count else ""


def _field(group: str, name: str) -> Callable[[Run], str]:
    return lambda run: "" if (value := run.setting(group, name)) is None else str(value)


def calibration(run: Run) -> str:
    """The images of `prosmin calibrate`."""
    found = run.card.get("calibration")
    return f"{number(found['images'])} images of {found['data']}" if isinstance(found, dict) else ""


def held_out(run: Run) -> str:
    """What the forecasts of `prosmin calibrate` were worth on images that were not trained on."""
    calibrated = run.card.get("calibration")
    found = numbers(calibrated.get("held_out") or {}) if isinstance(calibrated, dict) else {}
    if not {"images", "coverage_90", "joint_coverage_90_radius", "skill"} <= found.keys():
        return ""
    joint, images = found["joint_coverage_90_radius"], int(found["images"])
    low, high = wilson(joint, images)
    return (
        f"{number(images)} images: 90 % intervals held {percent(found['coverage_90'])} of the coordinates, joint 90 % "
        f"regions {percent(joint)} of the images (95 % confidence interval {percent(low)} to {percent(high)}); skill "
        f"of forecasts of random views {percent(found['skill'])}"
    )


FACTS: dict[str, Callable[[Run], str]] = {
    "Method": method,
    "Objective": objective,
    "Backbone": _field("backbone", "name"),
    "Weights": lambda run: str(run.card.get("weights") or ""),
    "Calibrated with": calibration,
    "Calibration, held out": held_out,
    "Embedding size K": _field("heads", "dim"),
    "Images": _field("data", "spec"),
    "Unreadable images": bad_pictures,
    "Views": views,
    "Length": length,
    "Time": time,
    "Hardware": hardware,
    "Seed": _field("training", "seed"),
    "Folder": lambda run: str(run.path),
}


def _flat(config: dict[str, Any]) -> dict[str, str]:
    return {
        f"{group}.{name}": str(value)
        for group, values in config.items()
        if isinstance(values, dict)
        for name, value in values.items()
    }


def _differences(runs: Sequence[Run]) -> Block:
    """The fields in which the configurations differ; folded if there are many, as between two methods."""
    flat = [_flat(run.config) for run in runs]
    differing = {name for fields in flat for name in fields if len({each.get(name) for each in flat}) > 1}
    if not differing:
        return Note(text="The configurations are equal in every field.")
    flat = [{name: value for name, value in fields.items() if name in differing} for fields in flat]
    table = side_by_side(runs, flat, "Differs in", "Fields in which the runs differ")
    return table if len(differing) <= LONG else Fold(title=f"The {len(differing)} fields that differ", blocks=[table])


SECTION = Section(id="run", title="What was run", build=blocks)
