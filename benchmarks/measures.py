"""The runs of evidence.py as results.py reads them: files, metrics, and 95 % intervals over the test images."""

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.special import stdtrit

import evidence
from prosmin.config import method_title
from prosmin.errors import ProsminError
from prosmin.evaluation.metrics.intervals import NORMAL, wilson

TEST = 10_000
"""Images in CIFAR-10's test split, and in each of the two OOD sets."""
NONE = "–"
"""The cell of a number that was not measured."""
NETWORKS = {evidence.RESNET: "ResNet-18", evidence.VIT: "ViT"}

Document = dict[str, Any]
Seeds = list[Document]
"""One run: a document for each seed."""


class Results:
    """The files of a folder. `used` collects the names of those read, so that a table can name its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.used: list[str] = []

    def read(self, name: str) -> str:
        """The text of a file."""
        path = self.folder / name
        if not path.exists():
            raise ProsminError(f"{name} is needed and is not in {self.folder}. Measure it, or take it out of the page.")
        self.used.append(name)
        return path.read_text()

    def document(self, stem: str) -> Document:
        """A file STEM.json, or the line of STEM.jsonl that `STEM:NAME` asks for (the last of that name)."""
        stem, _, line = stem.partition(":")
        if not line:
            return json.loads(self.read(f"{stem}.json"))
        found = [each for each in self.lines(stem) if each.get("name") == line]
        if not found:
            raise ProsminError(f"{stem}.jsonl has no line named {line!r}.")
        return found[-1]

    def lines(self, stem: str) -> list[Document]:
        """The lines of STEM.jsonl."""
        return [json.loads(line) for line in self.read(f"{stem}.jsonl").splitlines()]

    def run(self, name: str) -> Seeds:
        """The seeds of a run of evidence.py, checked."""
        files = sorted(self.folder.glob(f"{name}-s[0-9]*.json"), key=lambda path: int(path.stem.rpartition("-s")[2]))
        seeds = [self.document(path.stem) for path in files] or [self.document(f"{name}-s0")]
        for path, document in zip(files, seeds, strict=True):
            images = look_up(document, "knn.top1") * TEST
            if f"{document['name']}-s{document['seed']}" != path.stem:
                raise ProsminError(f"{path.name} contains {document['name']}, seed {document['seed']}. Rename it.")
            if abs(images - round(images)) > 0.01:
                raise ProsminError(f"{path.name}: its kNN top-1 is not a share of {TEST} test images. Move the file.")
            if settings(document) != settings(seeds[0]):
                raise ProsminError(f"{path.name} and {files[0].name} have other settings. Rename one of them.")
        return seeds

    def cite(self) -> str:
        """The files read since the last call; those of one recipe together, as `START{A,B}-s0.json`. Forgets them."""
        names, self.used = sorted(set(self.used)), []
        told = []
        for start in (*(f"{recipe}-" for recipe in NETWORKS), ""):
            own = [name for name in names if name.startswith(start)]
            names = [name for name in names if name not in own]
            ends = [name.removeprefix(start).removesuffix("-s0.json") for name in own]
            joined = f"{start}{{{','.join(ends)}}}-s0.json"
            told += [f"`{joined}`"] if start and len(own) > 1 else [f"`{name}`" for name in own]
        return f"Files: {', '.join(told)}."


def look_up(document: Document, path: str) -> Any:
    """What is at a dotted path from the root, or `PROTOCOL.METRIC` among the results; KeyError if nothing is."""
    protocol, _, metric = path.partition(".")
    metrics = document.get("results", {}).get(protocol, {}).get("metrics", {})
    if metric in metrics:
        return metrics[metric]
    found: Any = document
    for name in path.split("."):
        found = found[int(name) if isinstance(found, list) else name]
    return found


def settings(document: Document) -> Document:
    """What two seeds of a run share."""
    tree = document["configuration"]
    training = {**tree["training"], "seed": None}
    return {"code": evidence.code(document), **tree, "training": training, "data": None, "compute": None}


def is_earlier_code(document: Document) -> bool:
    """Whether the same configuration would train differently today; ProSMIN's first files lack `identification`."""
    tree = document["configuration"]
    unscaled = tree["method"]["name"] == "prosmin" and "identification" not in tree["loss"]
    return unscaled or evidence.code(document) < evidence.code_of_today(document)


def method_name(document: Document) -> str:
    """The method by its configuration."""
    tree = document["configuration"]
    if tree.get("heads", {}).get("scale") == "zero":
        return "deterministic twin"
    return method_title(tree)


def row_name(document: Document) -> str:
    """The method, and how its run differs from the tuned ones of 100 epochs."""
    notes = ["before tuning"] if document["name"].endswith(evidence.FIRST) else []
    notes += [f"{document['epochs']} epochs"] if document["epochs"] != 100 else []
    notes += ["same-view pairs"] if document["configuration"].get("loss", {}).get("same_view") else []
    notes += ["earlier code"] if is_earlier_code(document) else []
    return ", ".join([method_name(document), *notes])


# Numbers


Half = Callable[[Document, float], float | None]
"""Half the width of a value's 95 % interval over the test images of one run; None where the file cannot tell."""


@dataclass(frozen=True)
class Metric:
    """A column: its title, where its number is, how it is written ("%" or a format), and its interval."""

    title: str
    value: str | Callable[[Document], float | None]
    form: str = "%"
    half: Half = lambda document, value: None

    def of(self, document: Document) -> float | None:
        """The number of one seed; None where its file has none that is finite."""
        try:
            found = self.value(document) if callable(self.value) else look_up(document, self.value)
        except (KeyError, IndexError, TypeError):
            return None
        return found if isinstance(found, (int, float)) and math.isfinite(found) else None

    def number(self, seeds: Seeds) -> tuple[float, float | None] | None:
        """The mean over the seeds and half of its 95 % interval."""
        values = [(document, value) for document in seeds if (value := self.of(document)) is not None]
        if not values:
            return None
        halves = [half for document, value in values if (half := self.half(document, value)) is not None]
        return mean_and_half([value for _, value in values], halves)

    def cell(self, seeds: Seeds) -> str:
        """`89.2±0.6`, without the half where there is none."""
        found = self.number(seeds)
        if found is None:
            return NONE
        value, half = found
        return show(value, self.form) + (f"±{show(half, self.form)}" if half is not None else "")

    def difference(self, mine: Seeds, other: Seeds) -> str:
        """Mine less the other's, bold where its interval excludes 0; as if the two had seen different test images."""
        one, two = self.number(mine), self.number(other)
        if one is None or two is None:
            return NONE
        sign = "%+" if self.form == "%" else f"+{self.form}"
        text = show(one[0] - two[0], sign)
        if one[1] is None or two[1] is None:
            return text
        half = math.hypot(one[1], two[1])
        text += f"±{show(half, self.form)}"
        return f"**{text}**" if abs(one[0] - two[0]) > half else text


def show(value: float, form: str) -> str:
    """A number: "%" is per cent with one decimal, "%+" with its sign too, anything else a Python format."""
    return f"{100 * value:{'+' if form == '%+' else ''}.1f}" if form in ("%", "%+") else format(value, form)


def mean_and_half(values: Sequence[float], halves: Sequence[float]) -> tuple[float, float | None]:
    """Of one seed its own interval; of several Student's over the seeds, with the sampling that they share."""
    mean, own = statistics.fmean(values), statistics.fmean(halves) if halves else None
    if len(values) == 1:
        return mean, own
    student = float(stdtrit(len(values) - 1, 0.975)) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, math.hypot(student, own or 0.0)


def of_share(document: Document, value: float) -> float:
    """Wilson's, of a share of the test images."""
    low, high = wilson(value, TEST)
    return (high - low) / 2


def of_auroc(document: Document, value: float, positive: int = TEST, negative: int = TEST) -> float | None:
    """Hanley and McNeil's; the files do not have the scores that a better one needs."""
    if min(positive, negative) < 1:
        return None
    one, two = value / (2 - value) - value**2, 2 * value**2 / (1 + value) - value**2
    variance = (value * (1 - value) + (positive - 1) * one + (negative - 1) * two) / (positive * negative)
    return NORMAL * math.sqrt(max(variance, 0.0))


def of_errors(document: Document, value: float) -> float | None:
    """An AUROC's, of wrong against right nearest neighbours."""
    wrong = round((1 - look_up(document, "uncertainty.recall_at_1")) * TEST)
    return of_auroc(document, value, wrong, TEST - wrong)


def of_labels(share: str) -> Half:
    """With the draw of the few labels, by Student's factor for so few draws."""

    def half(document: Document, value: float) -> float:
        draws = len(look_up(document, f"results.lowshot.settings.shares.{share}.l2"))
        spread = look_up(document, f"lowshot.top1_{share}_sd") / math.sqrt(draws)
        factor = float(stdtrit(draws - 1, 0.975)) if draws > 1 else 0.0
        return math.hypot(of_share(document, value), factor * spread)

    return half


def of_file(path: str) -> Half:
    """The bootstrap interval that the file itself has beside a metric."""

    def half(document: Document, value: float) -> float | None:
        try:
            return (look_up(document, f"{path}_high") - look_up(document, f"{path}_low")) / 2
        except KeyError:
            return None

    return half


def in_file(title: str, path: str, form: str = "%") -> Metric:
    """A metric with the interval of its file."""
    return Metric(title, path, form, of_file(path))


def ranking(name: str) -> Callable[[Document], float]:
    """R-AUROC of another ranking of the same images."""
    return lambda document: look_up(document, f"results.uncertainty.sets.test.{name}.r_auroc")


def view_variance(document: Document) -> float:
    """R-AUROC by the variance between views, which is the own uncertainty of a method without a scale."""
    has_scale = "between_view_variance" in look_up(document, "results.uncertainty.sets.test")
    return ranking("between_view_variance")(document) if has_scale else look_up(document, "uncertainty.r_auroc")


def best_ranking(document: Document) -> Metric:
    """The best of the rankings that need no scale."""
    return max(RANKINGS, key=lambda metric: metric.of(document) or 0.0)


KNN = Metric("kNN", "knn.top1", half=of_share)
LINEAR = Metric("linear", "linear.top1", half=of_share)
NLL = in_file("NLL", "linear.nll", ".3f")
ECE = in_file("ECE", "linear.ece", ".4f")
CORRUPTION = Metric("corruption error", "corruption.mean_error", half=of_share)
NEAR = Metric("near OOD", "ood.near_auroc", half=of_auroc)
FAR = Metric("far OOD", "ood.far_auroc", half=of_auroc)
FEW = [Metric(f"{n} % of labels", f"lowshot.top1_{n}pct", half=of_labels(f"{n}pct")) for n in (1, 10)]
OWN = Metric("R-AUROC, own uncertainty", "uncertainty.r_auroc", half=of_errors)
DISTANCE = Metric("distance", ranking("knn_distance"), half=of_errors)
RANKINGS = (DISTANCE, Metric("view variance", view_variance, half=of_errors),
            Metric("short feature", ranking("low_feature_norm"), half=of_errors),
            Metric("low sharpness", ranking("low_sharpness"), half=of_errors))  # fmt: skip
COVERAGE = [in_file(f"{n} %", f"uncertainty.coverage_{n}") for n in (50, 90, 95)]


def own_or_best(document: Document) -> float | None:
    """The learned scale where there is one, else the best of the other rankings."""
    has_scale = COVERAGE[1].of(document) is not None
    return (OWN if has_scale else best_ranking(document)).of(document)
