"""What was measured? Fills the tables of RESULTS.md, README.md and docs/ from the files in benchmarks/results/.

    make results

RESULTS.md is benchmarks/RESULTS.template.md, in which `<!-- table: NAME -->` becomes a table that names its files and
`{{ FILE PATH FORMAT }}` one number: `{{ demo-cpu knn.top1 % }}` is the metric `top1` of the protocol `knn` in per cent.
`FILE:NAME` is the line called NAME of a .jsonl file. In README.md and docs/ the text between `<!-- NAME:start -->` and
`<!-- NAME:end -->` is replaced. People write the words, files give the numbers.
"""

import io
import json
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

import evidence
from measures import (
    CORRUPTION,
    COVERAGE,
    DISTANCE,
    ECE,
    FAR,
    FEW,
    KNN,
    LINEAR,
    NEAR,
    NETWORKS,
    NLL,
    NONE,
    OWN,
    RANKINGS,
    Document,
    Metric,
    Results,
    Seeds,
    best_ranking,
    in_file,
    is_earlier_code,
    look_up,
    of_errors,
    of_share,
    own_or_best,
    row_name,
    show,
)  # fmt: skip
from prosmin import config as configs
from prosmin.errors import ProsminError
from prosmin.scoring import propriety

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"
TEMPLATE = ROOT / "benchmarks/RESULTS.template.md"
LAM_FIGURE = "docs/figures/results-lam.svg"
TUNED = [f"{recipe}-{method}-100" for recipe in NETWORKS for method in evidence.METHODS
         if (recipe, method) != (evidence.RESNET, "ibot")]  # fmt: skip
IBOT_FIRST = f"{evidence.VIT}-ibot-100{evidence.FIRST}"
ALONE = f"{evidence.RESNET}-lam-0.50"
LAM = [run.name for run in evidence.STAGES["lam"]]
SCORES = ("knn_distance", "similarity_norm", "mahalanobis", "relative_mahalanobis", "mean_log_scale",
          "distance_and_scale")  # fmt: skip
BASELINES = ("raw pixels", "untrained", "untrained, BatchNorm set")


# The tables of RESULTS.md


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = [f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in (head, *rows)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:]]


def by_run(results: Results, names: Sequence[str], columns: Sequence[Metric]) -> list[str]:
    """One row per run: network, method and the columns."""
    runs = [results.run(name) for name in names]
    head = ("network", "method", *(metric.title for metric in columns))
    return table(head, [(*_names(seeds), *(metric.cell(seeds) for metric in columns)) for seeds in runs])


def _names(seeds: Seeds) -> tuple[str, str]:
    return NETWORKS[seeds[0]["recipe"]], row_name(seeds[0])


def summary(results: Results) -> list[str]:
    """Every tuned run, iBOT before tuning, and the scoring rule alone."""
    columns = (KNN, LINEAR, NLL, NEAR, FAR, OWN)
    rows = []
    for name in (*TUNED[:4], ALONE, *TUNED[4:], IBOT_FIRST):
        seeds = results.run(name)
        other = best_ranking(seeds[0])
        cells = [metric.cell(seeds) for metric in columns]
        rows.append((*_names(seeds), *cells, f"{other.cell(seeds)} {other.title}"))
    return table(("network", "method", *(metric.title for metric in columns), "R-AUROC, best other ranking"), rows)


def differences(results: Results) -> list[str]:
    """ProSMIN + identification less its twin and less the strongest other methods."""
    own = Metric("R-AUROC*", own_or_best, half=of_errors)
    pairs = [(evidence.RESNET, "deterministic-100"), (evidence.RESNET, "dino-100"), (evidence.VIT, "deterministic-100"),
             (evidence.VIT, "dino-100"), (evidence.VIT, "ibot-100-first")]  # fmt: skip
    runs = [(results.run(f"{recipe}-prosmin-100"), results.run(f"{recipe}-{other}")) for recipe, other in pairs]
    head = ["difference in", *(f"{NETWORKS[recipe]}, {row_name(two[0])}" for (recipe, _), (_, two) in
                               zip(pairs, runs, strict=True))]  # fmt: skip
    metrics = (KNN, LINEAR, FEW[0], NLL, ECE, CORRUPTION, NEAR, FAR, own)
    return table(head, [(metric.title, *(metric.difference(*pair) for pair in runs)) for metric in metrics])


def lowshot(results: Results) -> list[str]:
    """Accuracy with few labels, with what needs no training."""
    lines = by_run(results, TUNED, FEW)
    for name in (TUNED[0], TUNED[4]):
        document = results.run(name)[0]
        for kind, numbers in look_up(document, "results.lowshot.baselines").items():
            cells = [show(numbers[f"top1_{share}pct"], "%") for share in (1, 10)]
            lines.append(f"| {NETWORKS[document['recipe']]} | {kind} | {' | '.join(cells)} |")
    return lines


def rankings(results: Results) -> list[str]:
    """R-AUROC by each ranking of the images."""
    recall = Metric("R@1", "uncertainty.recall_at_1", half=of_share)
    own = Metric("own uncertainty", "uncertainty.r_auroc", half=of_errors)
    return by_run(results, [*TUNED, IBOT_FIRST], (recall, own, *RANKINGS))


def forecasts(results: Results) -> list[str]:
    """Coverage and skill of the forecast, with and without same-view pairs."""
    columns = (
        *COVERAGE,
        Metric("joint 90 %", "uncertainty.joint_coverage_90"),
        Metric("reachable", "uncertainty.joint_coverage_90_reachable"),
        in_file("skill, constant scale", "uncertainty.energy_skill", ".3f"),
        in_file("skill, climatology", "uncertainty.energy_skill_climatology", ".3f"),
    )
    names = [f"{recipe}-prosmin-100" for recipe in NETWORKS]
    return by_run(results, [*names, f"{names[0]}-same-view"], columns)


def calibration(results: Results) -> list[str]:
    """ECE of the linear probe, clean and under corruption."""
    floor = Metric("floor", "linear.ece_floor", ".4f")
    levels = [Metric(f"ECE, severity {n}", f"corruption.ece_severity_{n}", ".3f") for n in (1, 3, 5)]
    for name in TUNED:  # ImageNet-C's constants are far stronger at 32 px
        for document in results.run(name):
            assert look_up(document, "results.corruption.settings.parameters") == "cifar-10-c", name
    return by_run(results, TUNED, (ECE, floor, CORRUPTION, *levels))


def ood(results: Results) -> list[str]:
    """Near/far AUROC by every score, the best of a run in bold."""
    rows = []
    for name in (*TUNED, IBOT_FIRST):
        seeds = results.run(name)
        halves = []
        for group in ("near", "far"):
            cells = [Metric("", f"ood.{group}_auroc_{score}").cell(seeds) for score in SCORES]
            best = max((cell for cell in cells if cell != NONE), key=float)
            halves.append([f"**{cell}**" if cell == best else cell for cell in cells])
        cells = [near if near == NONE else f"{near}/{far}" for near, far in zip(*halves, strict=True)]
        rows.append((*_names(seeds), *cells))
    return table(("network", "method", *(f"`{score}`" for score in SCORES)), rows)


def lam(results: Results) -> list[str]:
    """The scoring rule alone along loss.lam."""
    spread = Metric("target std", "health.path.-1.target_std", ".3f")
    columns = (KNN, spread, Metric("mean scale", "health.path.-1.scale_mean", ".3f"), *COVERAGE[:2])
    rows = []
    for name in LAM:
        seeds = results.run(name)
        verdict = seeds[0]["health"]["verdict"].partition(":")[0]
        rows.append((name.rpartition("-")[2], *(metric.cell(seeds) for metric in columns), verdict))
    return table(("`loss.lam`", *(metric.title for metric in columns), "health"), rows)


def tuning(results: Results) -> list[str]:
    """Trials by method, and what 100 epochs reached before and after them."""
    lines = results.lines("tuning-cifar10-h200")
    rows = []
    for name in TUNED:
        after = results.run(name)
        method = {"method.name": "prosmin", "heads.scale": None, **evidence.METHODS[name.split("-")[2]]}
        given = [{"method.name": "prosmin", "heads.scale": None, **line["overrides"]} for line in lines]
        own = [line for line, fields in zip(lines, given, strict=True)
               if line["recipe"] == after[0]["recipe"] and method.items() <= fields.items()]  # fmt: skip
        failed = sum("knn20_top1" not in line for line in own)
        first = f"{name}{evidence.FIRST}"
        before = results.run(first) if (results.folder / f"{first}-s0.json").exists() else []
        older = "*" if any(map(is_earlier_code, before)) else ""
        columns = (Metric("", metric.value) for metric in (KNN, LINEAR, NEAR, FAR))
        cells = [f"{metric.cell(before)} → {metric.cell(after)}{older}" for metric in columns]
        rows.append((*_names(after), f"{len(own)} ({failed} failed)" if failed else str(len(own)), *cells))
    return table(("network", "method", "trials", KNN.title, LINEAR.title, NEAR.title, FAR.title), rows)


# The tables of README.md and docs/


def demo(results: Results) -> list[str]:
    """What the demo prints at its end."""
    measured = results.document("demo-cpu")
    columns = (("kNN top-1 %", "knn", "top1", "%"), ("kNN NLL", "knn", "nll", ".3f"),
               ("linear top-1 %", "linear", "top1", "%"), ("linear NLL", "linear", "nll", ".3f"),
               ("linear ECE", "linear", "ece", ".3f"), ("OOD AUROC %", "ood", "auroc", "%"),
               ("corrupted error %", "corruption", "mean_error", "%"))  # fmt: skip
    rows = []
    for row in (*BASELINES, "trained"):
        numbers = [_of_row(measured, row, protocol).get(name) for _, protocol, name, _ in columns]
        forms = [column[3] for column in columns]
        cells = ("-" if value is None else show(value, form) for value, form in zip(numbers, forms, strict=True))
        rows.append((row, *cells))
    return [
        f"What `make demo` prints at the end, {measured['seconds'] / 60:.1f} minutes after the packages are installed, "
        f"on {measured['cores']} CPU cores (`benchmarks/results/demo-cpu.json`):",
        "",
        *table(("", *(title for title, *_ in columns)), rows),
    ]


def _of_row(document: Document, row: str, protocol: str) -> Document:
    """The metrics of a protocol, for the trained encoder or a baseline."""
    found = document["results"].get(protocol, {"metrics": {}, "baselines": {}})
    return found["metrics"] if row == "trained" else found["baselines"].get(row, {})


def recipes(results: Results) -> list[str]:
    """One row per recipe, with what its current settings reached."""
    measured: dict[str, list[tuple[str, Document]]] = {}
    for file in sorted(results.folder.glob("*.json")):
        document = json.loads(file.read_text())
        name = "demo" if file.stem == "demo-cpu" else document.get("recipe")
        if name and "results" in document:
            measured.setdefault(name, []).append((file.name, document))
    rows = []
    for path in sorted((ROOT / "src/prosmin/recipes").glob("*.yaml"), key=lambda path: path.stem):
        name, _, about = path.read_text().splitlines()[0].removeprefix("# ").partition(": ")
        runs = measured.get(name, [])
        current = [run for run in runs if is_current(run[1])]
        told = "not with its current settings: [RESULTS.md](RESULTS.md)" if runs else "not measured"
        if current:  # the most epochs, of several seeds the first
            told = _reached(*max(current, key=lambda run: (run[1].get("epochs", 0), -run[1].get("seed", 0))))
        rows.append((f"`{name}`", about, told))
    return table(("recipe", "what it trains", "measured"), rows)


def is_current(document: Document) -> bool:
    """Whether a run's configuration is what its recipe gives now, for its default method and as many epochs."""
    if "configuration" not in document:  # the demo, which is measured anew when its recipe changes
        return True
    ran = document["configuration"]
    fields = {"data.spec": ran["data"]["spec"], "training.seed": str(ran["training"]["seed"]),
              "training.epochs": str(ran["training"]["epochs"])}  # fmt: skip
    config = configs.resolve(recipe=document["recipe"], overrides=fields)

    def is_same(group: str, name: str, value: object) -> bool:
        if name in ran[group]:
            return ran[group][name] == value
        return value == getattr(type(getattr(config, group))(), name)  # a field that came later, at its default

    tree = {group: part for group, part in configs.to_tree(config).items() if group != "compute"}
    return all(is_same(group, name, value) for group, part in tree.items() for name, value in part.items())


def _reached(source: str, document: Document) -> str:
    """What a recipe reached, and the best that needs no training."""

    def beside(protocol: str) -> str:
        shares = {row: _of_row(document, row, protocol)["top1"] for row in (*BASELINES, "trained")
                  if _of_row(document, row, protocol)}  # fmt: skip
        best = max((row for row in shares if row != "trained"), key=lambda row: shares[row])
        return f"{show(shares['trained'], '%')} % ({best} {show(shares[best], '%')} %)"

    method = configs.method_title(configs.to_tree(configs.resolve(recipe=document.get("recipe", "demo"))))
    epochs = f", {document['epochs']} epochs" if "epochs" in document else ""
    return f"{method}{epochs}: kNN {beside('knn')}, linear {beside('linear')}: `benchmarks/results/{source}`"


def methods(results: Results) -> list[str]:
    """The main comparison in six rows; RESULTS.md has the rest."""
    titles = {KNN: "kNN top-1 %", LINEAR: "linear top-1 %", NEAR: "near OOD (CIFAR-100), AUROC %",
              FAR: "far OOD (SVHN), AUROC %", OWN: "R-AUROC %", DISTANCE: "R-AUROC by distance %"}  # fmt: skip
    names = [f"{evidence.RESNET}-{method}-100" for method in ("prosmin", "deterministic", "dino")]
    names += [f"{evidence.VIT}-prosmin-100", f"{evidence.VIT}-dino-100", IBOT_FIRST]
    return by_run(results, names, [Metric(title, metric.value) for metric, title in titles.items()])


def speed(results: Results) -> list[str]:
    """The parts of a step and the whole, and the methods side by side."""
    measured = results.document("throughput-h200")
    sections, recorded = measured["sections"], results.document("throughput-graph-h200")["sections"]
    step, views, decode = sections["step"]["blocks"], sections["views"]["compiled"], sections["decode"]["threads"]
    whole, rival = sections["whole"]["threads"], sections["rival"]["end to end"]
    parts = {
        "the step: forward, backward, update": step,
        f"making the views: {100 * views['share']:.0f} % of the step": views,
        f"decoding JPEG on {measured['hardware']['cores']} CPU threads, in parallel with the step": decode,
        "end to end, from JPEG": whole,
        "**end to end, the step recorded (`compute.graph`)**": recorded["whole"]["threads"],
        f"the same step fed by lightly's `DINOTransform`, {sections['rival']['workers']} workers": rival,
    }
    bound = "The step" if step["ms"] > decode["ms"] + views["ms"] else "Feeding"
    steps = [row for row in results.document("methods-h200")["table"] if row["recipe"] == "imagenet-vit-small"]
    return [
        f"ViT-S/16, {measured['views']} px, {measured['batch_size']} images per step, bf16, one "
        f"{measured['hardware']['device']} (`benchmarks/results/throughput-h200.json`, "
        "`benchmarks/results/throughput-graph-h200.json`):",
        "",
        *table(("part", "ms per step", "img/s"), [
            (name, f"{part['ms']:.0f}", f"{part['images_per_second']:,.0f}") for name, part in parts.items()
        ]),
        "",
        f"{bound} is the bottleneck: {step['ms']:.0f} of {whole['ms']:.0f} ms, at {100 * step['share_of_peak']:.0f} % "
        f"of the {sections['flops']['peak_tflops']:.0f} TFLOP/s of a large matrix product. With lightly's loader, "
        f"training is {whole['images_per_second'] / rival['images_per_second']:.1f} times slower.",
        "",
        "The step alone for each method, with the settings of `imagenet-vit-small` and the same number of images "
        "(`benchmarks/results/methods-h200.json`):",
        "",
        *table(("method", "views", "ms per step", "img/s", "relative to DINO", "memory, GiB"), [
            (configs.METHOD_TITLES[row["method"]], row["views"], f"{row['ms']:.0f}", f"{row['images_per_second']:,.0f}",
             f"{row['ratio_to_dino']:.2f}", f"{row['peak_memory_gib']:.0f}") for row in steps
        ]),
    ]  # fmt: skip


SETS = {
    "svhn": "SVHN", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenette": "Imagenette", "pages": "drawn pages",
    "flowers": "flowers", "noise": "noise", "grey": "grey", "flat": "one colour",
}  # fmt: skip


def inspected(results: Results) -> list[str]:
    """What `prosmin inspect` finds in the test folder, by encoder and reference."""
    measured = results.document("inspect-folder-cpu")["results"]
    columns = [(encoder, title) for encoder, rows in measured.items() for title in rows]
    head = ("found, %", *(f"{_encoder(encoder)}, {title}" for encoder, title in columns))

    def row(title: str, value: Callable[[Document], float]) -> tuple[str, ...]:
        return (title, *(show(value(measured[encoder][reference]), "%") for encoder, reference in columns))

    first = measured[columns[0][0]][columns[0][1]]
    rows = [row(f"{kind} copies", partial(_within, "copies_grouped", kind)) for kind in first["copies_grouped"]]
    rows += [row(f"intruders: {SETS.get(kind, kind)}", partial(_within, "intruders_flagged", kind))
             for kind in first["intruders_flagged"]]  # fmt: skip
    rows.append(row("flowers flagged as not belonging", lambda found: found["flowers_flagged"]))
    rows += [row(f"{kind} images", partial(_within, "damaged_found", kind)) for kind in first["damaged_found"]]
    rows.append(row("broken files", lambda found: found["broken_named"]))
    false = ", ".join(str(len(measured[encoder][reference]["false_groups"])) for encoder, reference in columns)
    return [*table(head, rows), "", f"Groups with flowers that were not copied: {false}, in the order of the columns."]


def inspected_briefly(results: Results) -> list[str]:
    """The same for the shipped encoder in two sentences."""
    itself, clean = results.document("inspect-folder-cpu")["results"]["cifar10-vit"].values()
    kinds = {name: SETS.get(name, name) for name in itself["intruders_flagged"]}
    alone = ", ".join(f"{kinds[name]} {show(share, '%')} %" for name, share in itself["intruders_flagged"].items())
    copies, damaged = min(itself["copies_grouped"].values()), min(itself["damaged_found"].values())
    return [
        f"In a test folder of {itself['images']:,} flowers, copies and intruders it groups {show(copies, '%')} % of "
        "resized, re-encoded, mirrored and cropped copies with",
        f"their originals and finds {show(damaged, '%')} % of the blurred and dark images. With clean flowers as the "
        f"reference it flags {show(min(clean['intruders_flagged'].values()), '%')} % of the intruders",
        f"and {show(clean['flowers_flagged'], '%')} % of the flowers; with the folder as its own reference {alone} of "
        "the intruders (`benchmarks/results/inspect-folder-cpu.json`).",
    ]


def _within(part: str, kind: str, document: Document) -> float:
    return document[part][kind]


def _encoder(name: str) -> str:
    return f"`{name.removeprefix('timm:').partition('@')[0]}`"


def geometry(results: Results) -> list[str]:
    """OOD detection with the plain and with the half-whitened distance, by reference."""
    judged = results.document(GEOMETRY)["judged"]
    sets = list(dict.fromkeys(name for row in judged.values() for name in row["plain"]))
    rows = []
    for reference in ("100 of CIFAR-10", "500 of CIFAR-10", "15000 of CIFAR-10", "500 of flowers", "500 of imagenette"):
        cells = [
            f"{row['plain'][name]:.1f} → {row['default'][name]:.1f}" if name in row["plain"] else "-"
            for row in [judged[reference]]
            for name in sets
        ]
        rows.append((reference, *cells))
    return table(("reference", *(SETS[name] for name in sets)), rows)


def errors(results: Results) -> list[str]:
    """R-AUROC by ranking."""
    found = results.document(GEOMETRY)["uncertainty"]
    rows = []
    for name, row in found["rankings"].items():
        low, high = row.get("default_minus_this", (0.0, 0.0))
        rows.append((name, f"{row['r_auroc']:.1f}", "-" if name == "default" else f"{low:+.1f} to {high:+.1f}"))
    return table(("ranking", "R-AUROC %", "`encoder.uncertainty` minus this, 95 % interval"), rows)


def calibrated(results: Results) -> list[str]:
    """Coverage of the forecasts of `prosmin calibrate`, and R-AUROC of the uncertainty against its rivals."""
    rows = []
    for name, found in results.document("calibrated-cpu")["encoders"].items():
        epochs = "the shipped encoder" if found["epochs"] is None else f"{found['epochs']} epochs"
        rivals = [found["r_auroc"]["rivals"][name] for name in RIVALS]
        low, high = found["gain_interval"]
        rows.append((
            f"{_encoder(name) if found['epochs'] is None else name}, {epochs}",
            *(f"{100 * found['typical'][name]:.1f}" for name in ("coverage_90", "joint_coverage_90")),
            *(f"{100 * found['coverage'][name]:.1f}" for name in ("coverage_90", "joint_coverage_90_radius")),
            f"{100 * found['held_out']['skill']:.1f}",
            f"{found['r_auroc']['default']['uncertainty']:.1f}",
            *(f"{rival:.1f}" for rival in rivals),
            f"{low:+.1f} to {high:+.1f}",
        ))  # fmt: skip
    head = ("encoder", "typical view in 90 % intervals", "in joint regions", "random views in 90 % intervals",
            "in joint regions", "skill", "`encoder.uncertainty`")  # fmt: skip
    return table((*head, *RIVALS, "gain by the forecast"), rows)


def continued(results: Results) -> list[str]:
    """kNN on the old and the new images before and after training further, with the guard and without."""
    rows = []
    for start, found in results.document("continuing-cpu")["starts"].items():
        before = found["before"]
        rows.append((start, "before", "", *(f"{before[name]:.1f}" for name in ("cifar10", "cifar100")), "100", ""))
        for way, judged in found["ways"].items():
            for guard in ("off", "on"):
                after = judged[f"guard {guard}"]
                kept, share = (f"{100 * after[name]:.0f}" for name in ("neighbours", "trained_share"))
                changes = (f"{after[name]:.1f} ({after[name] - before[name]:+.1f})" for name in before)
                rows.append((start, way, guard, *changes, kept, share))
    head = ("start", "how it was continued", "guard", "kNN CIFAR-10", "kNN CIFAR-100", "neighbours kept")
    return table((*head, "share of the trained weights"), [[cell or "-" for cell in row] for row in rows])


def own_folder(results: Results) -> list[str]:
    """What does not belong, by the shipped encoder and by one trained on the folder itself."""
    measured = results.document("own-folder-cpu")["auroc"]
    kinds = list(next(iter(next(iter(measured.values())).values())))
    rows = [
        (_encoder(encoder) if "," not in encoder else encoder, score, *(f"{found[kind]:.1f}" for kind in kinds))
        for encoder, scores in measured.items()
        for score, found in scores.items()
    ]
    return table(("encoder", "score", *(SETS.get(kind, kind) for kind in kinds)), rows)


TABLES: dict[str, Callable[[Results], list[str]]] = {
    "summary": summary, "differences": differences, "lowshot": lowshot, "rankings": rankings, "forecasts": forecasts,
    "calibration": calibration, "ood": ood, "lam": lam, "tuning": tuning, "errors": errors,
}  # fmt: skip

GEOMETRY = "geometry-cifar10-vit-cpu"
RIVALS = ("centred distance", "neighbour dispersion", "half-whitened distance")
"""Rankings that need no training."""

PAGES: dict[str, dict[str, Callable[[Results], list[str]]]] = {
    "README.md": {"readme-inspect": inspected_briefly, "demo": demo, "methods": methods},
    "docs/inspect.md": {"inspect": inspected, "own-folder": own_folder},
    "docs/use.md": {"geometry": geometry, "errors": errors, "calibrated": calibrated, "continued": continued},
    "docs/method.md": {"recipes": recipes},
    "docs/scaling.md": {"speed": speed},
}


# The figure


def draw_lam(results: Results) -> bytes:
    """kNN, the target's spread and the learned scale against lam, as an SVG that is the same for the same numbers.

    The scale is divided by the constant scale that suits the same run's forecasts best, and by that ratio at lam 0.5.
    """
    runs = {look_up(seeds[0], "configuration.loss.lam"): seeds for seeds in map(results.run, LAM)}
    ratio = Metric("scale / best constant scale", lambda document: look_up(document, "health.path.-1.scale_mean")
                   / look_up(document, "results.uncertainty.settings.calibration.constant_scale"))  # fmt: skip
    panels = ((KNN, 100.0, "kNN top-1 %"), (Metric("", "health.path.-1.target_std"), 1.0, "target std"),
              (ratio, 1 / ratio.number(runs[0.5])[0], f"{ratio.title},\n1 at lam 0.5"))  # type: ignore[index]  # fmt: skip
    theory = {value: propriety(1.0, value, samples=4) for value in runs}
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams["svg.hashsalt"] = "prosmin"
        figure = Figure(figsize=(6.4, 6.4), layout="constrained")
        axes = figure.subplots(3, 1, sharex=True)
        for place, (metric, factor, label) in enumerate(panels):
            numbers = [number for seeds in runs.values() if (number := metric.number(seeds))]
            axes[place].errorbar(
                list(runs), [factor * value for value, _ in numbers],
                yerr=[factor * (half or 0.0) for _, half in numbers],
                fmt="o-", markersize=4, linewidth=1.2, color=("#2166ac", "#e08214", "#1b7837")[place],
            )  # fmt: skip
            axes[place].axvline(theory[0.5].threshold, color="0.4", linewidth=0.9, linestyle="--")
            axes[place].set(ylabel=label, yscale="log" if place else "linear")
            axes[place].spines[["top", "right"]].set_visible(False)
        finite = {at: each.scale_inflation for at, each in theory.items() if 0 < each.scale_inflation < math.inf}
        axes[2].plot(list(finite), list(finite.values()), ":", color="0.4", label="theory")
        axes[2].legend(frameon=False, fontsize=8)
        axes[0].set_title(f"{theory[0.5].threshold:.4f}: no minimum to the left", fontsize=8, color="0.3")
        axes[2].set_xlabel("lam")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


# The page


def fill(template: str, results: Results) -> str:
    """The template with its tables and numbers."""

    def one_table(match: re.Match[str]) -> str:
        if match[1] not in TABLES:
            raise ProsminError(f"The template asks for the table {match[1]!r}; there are {', '.join(TABLES)}.")
        results.used.clear()
        return "\n".join([*TABLES[match[1]](results), "", results.cite()])

    def one_number(match: re.Match[str]) -> str:
        file, path, form = match.groups()
        document = results.document(file)
        try:
            return show(look_up(document, path), form)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ProsminError(f"The template asks for {match[0]}; {file} has no number {path!r}.") from error

    text = re.sub(r"<!-- table: (\S+) -->", one_table, template)
    return re.sub(r"\{\{ (\S+) (\S+) (\S+) \}\}", one_number, text)


def fill_page(page: str, results: Results) -> str:
    """A page of PAGES with its tables made anew."""
    text = (ROOT / page).read_text()
    for name, make in PAGES[page].items():
        start, end = f"<!-- {name}:start -->\n", f"<!-- {name}:end -->"
        before, rest = text.split(start)
        text = before + start + "\n".join(make(results)) + "\n" + end + rest.split(end, 1)[1]
    return text


def build(folder: Path = RESULTS) -> dict[str, bytes]:
    """Path from the repository's root -> content."""
    results = Results(folder)
    return {
        "RESULTS.md": fill(TEMPLATE.read_text(), results).encode(),
        **{page: fill_page(page, results).encode() for page in PAGES},
        LAM_FIGURE: draw_lam(results),
    }


if __name__ == "__main__":
    for name, content in build().items():
        (ROOT / name).write_bytes(content)
