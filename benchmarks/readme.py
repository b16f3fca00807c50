"""Put measured numbers into the README, between its markers: the demo, the recipes, the methods, the speed.

    python benchmarks/readme.py

Every number comes from a file in benchmarks/results/. A recipe counts as measured where a JSON file there has its name
under `recipe` (the demo's own file needs none) and, under `results`, the results of `prosmin evaluate` by protocol. Of
the runs of evidence.py the longest of ProSMIN is quoted that ran with the recipe of today; RESULTS.md has them all.
"""

import json
import re
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import evidence
from prosmin import config as configs
from results_runs import Finished

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"
ROWS = ("raw pixels", "untrained", "untrained, BatchNorm set", "trained")
COLUMNS = (("kNN top-1 %", "knn", "top1", True), ("kNN NLL", "knn", "nll", False),
           ("linear top-1 %", "linear", "top1", True), ("linear NLL", "linear", "nll", False),
           ("linear ECE", "linear", "ece", False), ("OOD AUROC %", "ood", "auroc", True),
           ("corrupted error %", "corruption", "mean_error", True))  # fmt: skip
TITLES = {"prosmin": "ProSMIN", "dino": "DINO", "ibot": "iBOT", "mocov3": "MoCo v3"}
TWIN = "deterministic"
BACKBONES = {"cifar10-resnet18": "ResNet-18", "cifar10-vit": "ViT"}
EPOCHS = 100
COMPARED = (("kNN top-1 %", "knn", "top1"), ("linear top-1 %", "linear", "top1"),
            ("1 % of labels, top-1 %", "lowshot", "top1_1pct"), ("CIFAR-100, AUROC %", "ood", "near_auroc"),
            ("SVHN, AUROC %", "ood", "far_auroc"), ("R-AUROC %", "uncertainty", "r_auroc"))  # fmt: skip


def read(name: str) -> dict[str, Any]:
    """A results file."""
    return json.loads((RESULTS / name).read_text())


def demo() -> list[str]:
    """What the demo prints at its end."""
    measured = read("demo-cpu.json")
    lines = [
        f"What `make demo` prints at the end, {measured['seconds'] / 60:.1f} minutes after the packages are installed, "
        f"on {measured['cores']} CPU cores (`benchmarks/results/demo-cpu.json`):",
        "",
        *_head("", *(heading for heading, *_ in COLUMNS)),
    ]
    for row in ROWS:
        cells = [_cell(measured["results"], row, protocol, name, percent) for _, protocol, name, percent in COLUMNS]
        lines.append(_row(row, *cells))
    return lines


def recipes() -> list[str]:
    """One row a recipe, with what was measured of it or that nothing was."""
    lines = _head("recipe", "what it trains", "measured")
    measured = _measured_recipes()
    for name, about in sorted(map(_header, (ROOT / "src/prosmin/recipes").glob("*.yaml"))):
        runs = measured.get(name, [])
        found = _quoted(runs)
        otherwise = "not yet as it is, but with other settings: [RESULTS.md](RESULTS.md)" if runs else "not yet"
        lines.append(_row(f"`{name}`", about, _reached(*found) if found else otherwise))
    return lines


def methods() -> list[str]:
    """Each method's runs on CIFAR-10 with what tuning kept, and those before it unless of earlier code too."""
    lines = _head(
        "network",
        "method",
        "recipe",
        "number of seeds",
        *(heading for heading, *_ in COMPARED),
        "R-AUROC by distance %",
    )
    for recipe, network in BACKBONES.items():
        for method, title in {**TITLES, TWIN: "ProSMIN's deterministic twin"}.items():
            shown = False
            for suffix, state in (("", "tuned"), (evidence.FIRST, "before tuning")):
                files = sorted(RESULTS.glob(f"{recipe}-{method}-{EPOCHS}{suffix}-s[0-9]*.json"))
                runs = [read(file.name) for file in files]
                older = any(Finished("", run).is_earlier_code for run in runs)
                if not runs or (shown and older):
                    continue
                same = ", nothing changed" if all("same_training_as" in run for run in runs) else ""
                told = state + same + (", earlier code" if older else "")
                lines.append(_row(network, title, told, str(len(runs)), *_compared(runs)))
                shown = True
    return lines


def _compared(runs: list[dict[str, Any]]) -> list[str]:
    results = [run["results"] for run in runs]
    cells = [_mean(found[protocol]["metrics"][name] for found in results) for _, protocol, name in COMPARED]
    return [*cells, _mean(found["uncertainty"]["sets"]["test"]["knn_distance"]["r_auroc"] for found in results)]


def _mean(shares: Iterable[float]) -> str:
    return f"{100 * statistics.fmean(shares):.1f}"


def speed() -> list[str]:
    """The parts of a step and the whole, and the methods beside each other."""
    measured, recorded = read("throughput-h200.json"), read("throughput-graph-h200.json")
    sections, views = measured["sections"], measured["sections"]["views"]["compiled"]
    whole, rival = sections["whole"]["threads"], sections["rival"]["end to end"]
    step = sections["step"]["blocks"]
    cores = measured["hardware"]["cores"]
    parts = {
        "the step: forward, backward, update": step,
        f"making the views: {100 * views['share']:.0f} % of the step": views,
        f"decoding JPEG on {cores} CPU threads, beside the step": sections["decode"]["threads"],
        "end to end, from JPEG": whole,
        "**end to end, the step recorded (`compute.graph`)**": recorded["sections"]["whole"]["threads"],
        f"the same step fed by lightly's `DINOTransform`, {sections['rival']['workers']} workers": rival,
    }
    step_bounds = step["ms"] > sections["decode"]["threads"]["ms"] + views["ms"]
    bound = "The step" if step_bounds else "Feeding"
    lines = [
        f"ViT-S/16, {measured['views']} px, {measured['batch_size']} pictures a step, bf16, one "
        f"{measured['hardware']['device']} (`benchmarks/results/throughput-h200.json`, "
        "`benchmarks/results/throughput-graph-h200.json`):",
        "",
        *_head("part", "ms a step", "img/s"),
        *(_row(name, f"{part['ms']:.0f}", f"{part['images_per_second']:,.0f}") for name, part in parts.items()),
        "",
        f"{bound} is the bottleneck: {step['ms']:.0f} of {whole['ms']:.0f} ms, at {100 * step['share_of_peak']:.0f} % "
        f"of the {sections['flops']['peak_tflops']:.0f} TFLOP/s of a large matrix product. Fed by the usual loader it "
        f"is {whole['images_per_second'] / rival['images_per_second']:.1f} times slower.",
        "",
        "The step alone, method beside method, with the settings of `imagenet-vit-small` and as many pictures "
        "(`benchmarks/results/methods-h200.json`):",
        "",
        *_head("method", "views", "ms a step", "img/s", "against DINO", "memory, GiB"),
    ]
    for row in read("methods-h200.json")["table"]:
        if row["recipe"] == "imagenet-vit-small":
            cells = (f"{row['ms']:.0f}", f"{row['images_per_second']:,.0f}", f"{row['ratio_to_dino']:.2f}")
            lines.append(_row(TITLES[row["method"]], row["views"], *cells, f"{row['peak_memory_gib']:.0f}"))
    return lines


BLOCKS: dict[str, Callable[[], list[str]]] = {
    "demo": demo,
    "recipes": recipes,
    "methods": methods,
    "speed": speed,
}


def rewritten() -> str:
    """The README with its blocks made anew."""
    text = (ROOT / "README.md").read_text()
    for name, make in BLOCKS.items():
        start, end = f"<!-- {name}:start -->\n", f"<!-- {name}:end -->"
        before, rest = text.split(start)
        text = before + start + "\n".join(make()) + "\n" + end + rest.split(end, 1)[1]
    return text


Measured = tuple[str, dict[str, Any]]
"""A file's name and what it holds."""


def _measured_recipes() -> dict[str, list[Measured]]:
    found: dict[str, list[Measured]] = {}
    for file in sorted(RESULTS.glob("*.json")):
        document = json.loads(file.read_text())
        name = "demo" if file.stem == "demo-cpu" else document.get("recipe")
        if name and "results" in document:
            found.setdefault(name, []).append((file.name, document))
    return found


def _quoted(runs: list[Measured]) -> Measured | None:
    """ProSMIN's run with the recipe as it is today: the most epochs, of several seeds the first."""
    current = [run for run in runs if _is_current(run[1])]
    return max(current, key=lambda run: (run[1].get("epochs", 0), -run[1].get("seed", 0)), default=None)


def _is_current(document: dict[str, Any]) -> bool:
    """Whether the run's configuration is what its recipe gives now, for ProSMIN and as many epochs."""
    if "configuration" not in document:  # the demo, which is measured anew when its recipe changes
        return True
    ran = document["configuration"]
    fields = {
        "data.spec": ran["data"]["spec"],
        "training.seed": str(ran["training"]["seed"]),
        "training.epochs": str(ran["training"]["epochs"]),
    }
    config = configs.resolve(recipe=document["recipe"], overrides=fields)

    def is_same(group: str, name: str, value: object) -> bool:
        if name in ran[group]:
            return ran[group][name] == value
        return value == getattr(type(getattr(config, group))(), name)  # a field that came later, at its default

    tree = {group: part for group, part in configs.to_tree(config).items() if group != "compute"}
    return all(is_same(group, name, value) for group, part in tree.items() for name, value in part.items())


def _reached(source: str, document: dict[str, Any]) -> str:
    """What a recipe reached, beside the best that needs no training."""
    results = document["results"]

    def beside(protocol: str) -> str:
        shares = {row: _cell(results, row, protocol, "top1", True) for row in ROWS}
        others = [row for row, share in shares.items() if row != "trained" and share != "-"]
        best = max(others, key=lambda row: float(shares[row]))
        return f"{shares['trained']} % ({best} {shares[best]} %)"

    epochs = f", {document['epochs']} epochs" if "epochs" in document else ""
    return f"ProSMIN{epochs}: kNN {beside('knn')}, linear {beside('linear')}: `benchmarks/results/{source}`"


def _header(recipe: Path) -> tuple[str, str]:
    """The first line of a recipe's header: its name and what it is."""
    match = re.fullmatch(r"# (\S+): (.*)", recipe.read_text().splitlines()[0])
    assert match, recipe
    return match.group(1), match.group(2)


def _cell(results: dict[str, Any], row: str, protocol: str, name: str, percent: bool) -> str:
    result = results.get(protocol, {"metrics": {}, "baselines": {}})
    metrics = result["metrics"] if row == "trained" else result["baselines"].get(row, {})
    if name not in metrics:
        return "-"
    return f"{100 * metrics[name]:.1f}" if percent else f"{metrics[name]:.3f}"


def _head(*cells: str) -> list[str]:
    return [_row(*cells).replace("|  |", "| |"), "|---" * len(cells) + "|"]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    (ROOT / "README.md").write_text(rewritten())
