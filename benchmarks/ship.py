"""Make an encoder that comes with the package from a finished run and its evidence file, or check one.

    python benchmarks/ship.py RUN NAME --results benchmarks/results/X.json [--to src/prosmin/encoders]
    python benchmarks/ship.py --check NAME --data DIR [--to src/prosmin/encoders]

The first writes the folder NAME: encoder.safetensors in float16 with encoder.json, CARD.md for people, and card.json
with the number that the second compares. DIR holds cifar10-train.parquet and cifar10-test.parquet; float16 may turn a
few votes of 10,000, so kNN may differ from the evidence by 0.2 points.
"""

import argparse
import dataclasses
import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prosmin import config as configs
from prosmin.config import method_title, to_tree
from prosmin.data.image_sets import Pictures, load_pictures
from prosmin.encoder import Encoder, load
from prosmin.encoder.file import REFERENCE, read_card
from prosmin.encoder.neighbours import knn_probabilities
from prosmin.errors import ProsminError, UsageError
from prosmin.evaluation.sets import check_classes
from prosmin.export.card import outputs_of, random_views
from prosmin.export.encoder_folder import write_half
from prosmin.files import staged, write_text

ENCODERS = Path(__file__).resolve().parent.parent / "src" / "prosmin" / "encoders"
TRAIN, TEST = "cifar10-train.parquet", "cifar10-test.parquet"
GEOMETRY = Path(__file__).resolve().parent / "results" / "geometry-cifar10-vit-cpu.json"
TOLERANCE = 0.002
"""Of a share of right answers: 0.2 points."""


@dataclasses.dataclass(frozen=True)
class Finished:
    """A file of evidence.py: its name without .json, and all that it contains."""

    file: str
    document: dict[str, Any]

    def metric(self, protocol: str, name: str) -> float | None:
        """A number of a protocol; None where there is none that is finite."""
        found = self.document["results"].get(protocol, {}).get("metrics", {}).get(name)
        return found if found is not None and math.isfinite(found) else None


LIMITS = """\
- It was trained on images of {side} x {side} pixels and resizes every image to that size. It cannot see details that
  are lost there.
- It was trained on photographs of ten kinds of centred objects: aeroplanes, cars, birds, cats, deer, dogs, frogs,
  horses, ships and lorries. Other images, such as documents, drawings, medical or aerial images, were not
  measured{strangers}. Give `encoder.fit_reference` your own images, and measure before you rely on it.
- Do not use it for decisions about people. It was not made to recognise or judge people, and its training images were
  not examined for bias.
- An uncertainty ranks images under this encoder; it is not the probability of an error. The mean log scale can be
  reversed for images unlike CIFAR-10, because what resembles CIFAR-10 gets the lowest. An OOD image can go unnoticed:
  the AUROC above hold for those sets only.
- The numbers come from one training run with one seed. Another seed gives other numbers.
- The weights are rounded to float16. On random images this changed {moved} of their size; `prosmin.load` computes in
  float32."""


def ship(run: Path, name: str, results: Path, to: Path) -> list[str]:
    """Write the folder of a shipped encoder, all of it or nothing, and say in sentences what was written."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
        raise UsageError(
            f"The name is {name!r}; allowed: small letters, digits, dots and hyphens, such as cifar10-vit."
        )
    if (to / name).exists():
        raise UsageError(f"{to / name} is there already. Remove it first, or choose another name.")
    evidence = _read_evidence(results)
    encoder = load(run).to("cpu")
    _check_same_run(encoder, evidence, run)
    # The evidence tells the same configuration without the folders of the machine that trained.
    encoder.card |= {"config": evidence.document["configuration"]}
    with staged(to / name, folder=to / name) as part:
        said = write_half(encoder, part)
        (part / REFERENCE).unlink(missing_ok=True)  # features of the images of whoever ran it
        card = read_card(part)
        told = {
            "name": name,
            "encoder": card["hash"],
            "evidence": results.name,
            "knn": {"top1": evidence.metric("knn", "top1"), "k": _settings(evidence, "knn")["k"]},
            "data": {"train": TRAIN, "test": TEST},
        }
        write_text(part / "card.json", json.dumps(told, indent=1) + "\n")
        write_text(part / "CARD.md", describe(name, encoder, evidence, card))
    return [f"wrote {to / name}", *said]


def check(folder: Path, data: Path) -> str:
    """Compare the encoder's kNN with its card's number; a difference beyond the tolerance is an error."""
    told = _read_json(folder / "card.json")
    encoder = load(folder)
    if told["encoder"] != encoder.card["hash"]:
        raise ProsminError(f"{folder / 'card.json'} is the card of other weights than those beside it. Ship it again.")
    train, test = (load_pictures(f"parquet:{data / told['data'][part]}") for part in ("train", "test"))
    found, wanted = _knn(encoder, train, test, k=told["knn"]["k"]), told["knn"]["top1"]
    sentence = (
        f"kNN of {folder.name} is {100 * found:.2f} % on {len(test)} test images; its card says {100 * wanted:.2f} %"
    )
    if abs(found - wanted) > TOLERANCE + 1e-9:
        raise ProsminError(
            f"{sentence}, further apart than {100 * TOLERANCE:g} points. Either {data} contains other images, "
            "or the evidence is of another run: ship it again with its own."
        )
    return f"{sentence}, within {100 * TOLERANCE:g} points"


def _knn(encoder: Encoder, train: Pictures, test: Pictures, *, k: int) -> float:
    """The share of test images whose k neighbours vote for their label, as the protocol knn has it."""
    for pictures in (train, test):
        if pictures.labels is None:
            raise ProsminError(f"{pictures.spec} has no labels, and kNN counts right ones. Give labelled images.")
    assert train.labels is not None
    assert test.labels is not None
    classes = check_classes(train.classes, test.classes, specs=(train.spec, test.spec), advice=".")
    bank, queries = (encoder.features(pictures).to(encoder.device) for pictures in (train, test))
    answers = knn_probabilities(bank, train.labels, queries, classes=len(classes), k=k).argmax(1).cpu()
    return answers.eq(test.labels).double().mean().item()


def _read_evidence(file: Path) -> Finished:
    """A file of evidence.py that has what a card cannot do without."""
    evidence = Finished(file.stem, _read_json(file))
    parts = ("recipe", "overrides", "epochs", "seed", "hardware", "health", "configuration", "results")
    missing = [name for name in parts if name not in evidence.document]
    if missing:
        raise ProsminError(f"{file} is no file of benchmarks/evidence.py: it has no {missing[0]}.")
    if evidence.metric("knn", "top1") is None:
        raise ProsminError(f"{file} has no kNN top-1, which the check of a shipped encoder needs. Measure it first.")
    if _file_name(evidence.document["configuration"]["data"]["spec"]) != TRAIN:
        raise ProsminError(
            f"{file} is of a run on {evidence.document['configuration']['data']['spec']}; the card's words on limits "
            f"are about CIFAR-10: allowed is parquet:{TRAIN}."
        )
    return evidence


def _check_same_run(encoder: Encoder, evidence: Finished, run: Path) -> None:
    """An error where the evidence is of another configuration, or the run is not finished."""
    if "trained" not in encoder.card:
        raise ProsminError(f"{run} is not a run of prosmin. Give the folder that `prosmin pretrain --out` wrote.")
    wanted = configs.build(evidence.document["configuration"])
    spec = encoder.config.data.spec
    moved = dataclasses.replace(encoder.config.data, spec=wanted.data.spec)  # the same file may lie elsewhere
    same_file = _file_name(spec) == _file_name(wanted.data.spec)
    found = dataclasses.replace(encoder.config, data=moved) if same_file else encoder.config
    if different := configs.differences(wanted, found):
        raise ProsminError(
            f"{evidence.file}.json is not of the run {run}: {'; '.join(different[:3])}. Give its own --results."
        )
    if not 0 < encoder.card["trained"] == encoder.card["steps"]:
        raise ProsminError(
            f"{run} has taken {encoder.card['trained']} of {encoder.card['steps']} steps. Finish it with "
            f"`prosmin pretrain --out {run}` first."
        )


def describe(name: str, encoder: Encoder, evidence: Finished, card: dict[str, Any]) -> str:
    """CARD.md: what it is, how it was made, what was measured, and what it is not for."""
    views, backbone = encoder.config.views, encoder.config.backbone
    weights = sum(each.numel() for each in encoder.method.get_submodule("online.backbone").parameters())
    outputs = outputs_of(encoder, random_views(views, 1))
    sizes = ", ".join(f"{output} ({value.shape[1]})" for output, value in outputs.items())
    moved = ", ".join(f"{output} by {value:.0e}" for output, value in card["deviation"].items())
    parts = [
        f"# {name}",
        f"An image encoder, trained without labels by {method_title(to_tree(encoder.config))}. "
        f"Its backbone `{backbone.name}` has {weights:,} parameters. For each image it returns vectors: {sizes}.",
        f'```python\nimport prosmin\n\nencoder = prosmin.load("{name}")\n```',
        "## How it was made",
        _table(("", ""), _making(encoder, evidence)),
        "## What was measured",
        "By `benchmarks/evidence.py` on the test images, with the weights in float32, before they were rounded. No "
        "value of the recipe was selected on test images. The best out-of-distribution score was selected on the "
        "images it is reported on; `prosmin embed` and `ood_score` use another, which is measured below.",
        _table(("measure", "value"), _measures(evidence)),
        "## Limits",
        LIMITS.format(side=views.global_size, moved=moved, strangers=_small_references(name)),
    ]
    return "\n\n".join(parts) + "\n"


def _small_references(name: str) -> str:
    """How well OOD images are detected with a reference of 500 images, where it was measured with this encoder."""
    told = json.loads(GEOMETRY.read_text())
    if told["encoder"] != name:
        return ""
    mixed, flowers = (told["judged"][f"500 of {kind}"]["default"] for kind in ("CIFAR-10", "flowers"))
    return (
        f", except as OOD images for a reference of 500 images (AUROC of `ood_score`, 50 % is chance). The 500 are of "
        f"CIFAR-10: CIFAR-100 {mixed['cifar100']:.0f} %, flowers {mixed['flowers']:.0f} %, SVHN {mixed['svhn']:.0f} %. "
        f"The 500 are flowers: CIFAR-10 {flowers['cifar10']:.0f} %, Imagenette {flowers['imagenette']:.0f} % "
        f"(`benchmarks/results/{GEOMETRY.name}`)"
    )


def _making(encoder: Encoder, evidence: Finished) -> list[tuple[str, str]]:
    told, machine = evidence.document, evidence.document["hardware"]
    changes = ", ".join(f"`{name}={value}`" for name, value in told["overrides"].items())
    seconds = told.get("training_seconds")
    return [
        ("images", f"CIFAR-10, train (`{TRAIN}`), without its labels"),
        ("recipe", f"`{told['recipe']}`" + (f" with {changes}" if changes else "")),
        ("epochs", str(told["epochs"])),
        ("seed", str(told["seed"])),
        ("weights of step", f"{encoder.card['step']} of {encoder.card['steps']}"),
        ("hardware", f"{machine['device']}, torch {machine['torch']}"),
        ("training took", "not measured" if seconds is None else f"{seconds / 60:.0f} minutes"),
        ("health at its end", told["health"]["verdict"]),
        ("chosen on", told.get("chosen_on", "not told")),
        ("evidence", f"`benchmarks/results/{evidence.file}.json`"),
    ]


def _measures(evidence: Finished) -> list[tuple[str, str]]:
    def number(protocol: str, name: str, *, percent: bool = True) -> str:
        value = evidence.metric(protocol, name)
        if value is None:
            return "not measured"
        return f"{100 * value:.1f} %" if percent else f"{value:.3f}"

    rows = [
        ("kNN top-1, k = 20", number("knn", "top1") + _best_baseline(evidence, "knn")),
        ("linear probe top-1", number("linear", "top1") + _best_baseline(evidence, "linear")),
        ("linear probe NLL", number("linear", "nll", percent=False)),
        ("linear probe ECE", f"{number('linear', 'ece')} (floor {number('linear', 'ece_floor')})"),
    ]
    rows += _strangers(evidence)
    answer = _settings(evidence, "uncertainty").get("uncertainty", "uncertainty")
    return [
        *rows,
        (
            "mean error under generated corruptions",
            f"{number('corruption', 'mean_error')} (clean {number('corruption', 'clean_error')})",
        ),
        (
            f"R-AUROC: does the {answer} predict a wrong nearest neighbour",
            f"{number('uncertainty', 'r_auroc')} (R@1 {number('uncertainty', 'recall_at_1')})",
        ),
    ]


def _best_baseline(evidence: Finished, protocol: str) -> str:
    """What the best of the untrained networks and the raw pixels reach."""
    baselines = evidence.document["results"].get(protocol, {}).get("baselines", {})
    found = {name: values["top1"] for name, values in baselines.items() if values.get("top1") is not None}
    best = max(found, key=lambda name: found[name], default=None)
    return "" if best is None else f" (best baseline: {best}, {100 * found[best]:.1f} %)"


def _strangers(evidence: Finished) -> list[tuple[str, str]]:
    """A row an out-of-distribution set: the score that is best, and the one that is the default."""
    default = _settings(evidence, "ood").get("default_score")
    rows = []
    for spec, scores in evidence.document["results"].get("ood", {}).get("sets", {}).items():
        found = {score: values["auroc"] for score, values in scores.items() if values.get("auroc") is not None}
        if not found:
            continue
        best = max(found, key=lambda score: found[score])
        text = f"{100 * found[best]:.1f} % by `{best}`, the best of {len(found)} scores"
        if default in found and default != best:
            text += f"; {100 * found[default]:.1f} % by `{default}`, the default"
        rows.append((f"OOD AUROC against `{_file_name(spec).removesuffix('.parquet')}`", text))
    return rows or [("OOD AUROC", "not measured")]


def _settings(evidence: Finished, protocol: str) -> dict[str, Any]:
    return evidence.document["results"].get(protocol, {}).get("settings", {})


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---", "---"), *rows))


def _file_name(spec: str) -> str:
    """The name of a SPEC's file, wherever it lies."""
    return Path(spec.partition(":")[2]).name


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ProsminError(f"{file} cannot be read: {error}.") from None
    if not isinstance(content, dict):
        raise ProsminError(f"{file} holds no JSON object. Give a file that this project wrote.")
    return content


def main(arguments: Sequence[str] | None = None) -> int:
    """Ship or check; the exit status, 1 with a sentence where it failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("name", nargs="?", metavar="NAME", help="what prosmin.load will take")
    parser.add_argument("--results", type=Path, metavar="FILE", help="what evidence.py wrote of the run")
    parser.add_argument("--check", metavar="NAME", help="measure a shipped encoder again")
    parser.add_argument("--data", type=Path, metavar="DIR", help=f"where {TRAIN} and {TEST} are")
    parser.add_argument("--to", type=Path, default=ENCODERS, metavar="DIR", help="where shipped encoders are")
    given = parser.parse_args(arguments)
    try:
        if given.check is not None:
            if given.data is None or given.run is not None or given.results is not None:
                parser.error("--check NAME takes --data DIR, and no RUN and no --results.")
            print(check(given.to / given.check, given.data))
        else:
            if given.run is None or given.name is None or given.results is None or given.data is not None:
                parser.error("give RUN NAME --results FILE, or --check NAME --data DIR.")
            print("\n".join(ship(given.run, given.name, given.results, given.to)))
    except ProsminError as error:
        print(f"ship: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
