"""The runs that evidence.py left in a folder: read, checked, and held against the plan."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import evidence
from prosmin.errors import ProsminError

TEST = 10_000
"""Pictures in CIFAR-10's test split, and in each of the two sets of strange pictures."""

METHODS = {
    "prosmin": "ProSMIN",
    "deterministic": "deterministic twin",
    "dino": "DINO",
    "ibot": "iBOT",
    "mocov3": "MoCo v3",
}
BACKBONES = {evidence.RESNET: "ResNet-18", evidence.VIT: "ViT (patch 4, width 192, depth 12)"}


@dataclass(frozen=True)
class Finished:
    """One run and seed: its file's name and all that the file says."""

    file: str
    document: dict[str, Any]

    @property
    def seed(self) -> int:
        """The seed it was trained with."""
        return self.document["seed"]

    def metric(self, protocol: str, name: str) -> float | None:
        """A number of a protocol; None where there is none, or none that is finite."""
        found = self.document["results"].get(protocol, {}).get("metrics", {}).get(name)
        return found if found is not None and math.isfinite(found) else None

    def health(self, name: str) -> float | None:
        """A health number at the end of training; None where the method has none."""
        return self.document["health"]["path"][-1].get(name)

    @property
    def is_copy(self) -> bool:
        """Whether it tells of a training that another file has too."""
        return "same_training_as" in self.document

    @property
    def has_forecast(self) -> bool:
        """Whether it forecasts with a scale, whose coverage can be measured."""
        return self.metric("uncertainty", "coverage_90") is not None

    @property
    def verdict(self) -> str:
        """The first word of the health verdict: healthy, shrinking or collapsing."""
        return self.document["health"]["verdict"].partition(":")[0]

    @property
    def configuration(self) -> dict[str, Any]:
        """What determined the result but the seed, as group.field -> value."""
        tree = self.document["configuration"]
        fields = {f"{group}.{name}": value for group, part in tree.items() for name, value in part.items()}
        free = ("compute.", "training.seed", "training.log_every", "training.checkpoint_", "loss.force")
        return {name: value for name, value in fields.items() if not name.startswith(free)}

    @property
    def is_earlier_code(self) -> bool:
        """Whether code trained it that would train otherwise today.

        ProSMIN's forecast was not yet in units of the target's spread: such files are older than `loss.identification`
        and do not know it. Of other methods the file and evidence.py say which code it was.
        """
        tree = self.document["configuration"]
        unscaled = tree["method"]["name"] == "prosmin" and "identification" not in tree["loss"]
        return unscaled or evidence.code(self.document) < evidence.code_of_today(self.document)


Seeds = list[Finished]
"""The seeds of one run, in order."""
Runs = dict[str, Seeds]


@dataclass(frozen=True)
class Table:
    """A stage that compares methods: what it is called, and the run of every method by backbone."""

    title: str
    stage: str
    epochs: int
    suffix: str = ""

    def runs(self, recipe: str) -> dict[str, str]:
        """Method -> name of its run, where the stage plans one."""
        planned = {run.name for run in evidence.STAGES[self.stage]}
        names = {method: f"{recipe}-{method}-{self.epochs}{self.suffix}" for method in METHODS}
        return {method: name for method, name in names.items() if name in planned}


TABLES = (
    Table("Headline: 200 epochs", "headline", 200),
    Table("Tuned: 100 epochs with what tuning kept", "table", 100),
    Table("First: 100 epochs, recipes as they were before tuning", "first", 100, "-first"),
)


def read_runs(folder: Path) -> Runs:
    """Every run of evidence.py in a folder, by name; a file that cannot be what it says is an error."""
    found: Runs = {}
    for path in sorted(folder.glob("*.json")):
        match = re.fullmatch(r"(.+)-s(\d+)", path.stem)
        if match is None:
            continue
        run = Finished(path.name, _read(path))
        if (run.document["name"], run.seed) != (match[1], int(match[2])):
            raise ProsminError(
                f"{path.name} holds the run {run.document['name']!r} with seed {run.seed}; "
                "a file is named NAME-sSEED.json after its run. Rename it."
            )
        _check_pictures(run)
        found.setdefault(match[1], []).append(run)
    for name, seeds in found.items():
        seeds.sort(key=lambda run: run.seed)
        _check_alike(name, seeds)
    return found


def planned(stage: str) -> list[str]:
    """The names of a stage's runs."""
    return [run.name for run in evidence.STAGES[stage]]


def missing(names: list[str], runs: Runs) -> list[str]:
    """Those of them that have no file."""
    return [name for name in names if name not in runs]


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except ValueError as error:
        raise ProsminError(f"{path.name} is not JSON ({error}). Delete it and let evidence.py run again.") from error
    wanted = {"name", "seed", "results", "configuration", "fingerprint", "health", "hardware", "command", "epochs"}
    if lacking := wanted - set(document):
        raise ProsminError(
            f"{path.name} has no {', '.join(sorted(lacking))}; a file named NAME-sSEED.json is one that evidence.py "
            "wrote. Delete it and let evidence.py run again, or give it another name."
        )
    return document


def _check_pictures(run: Finished) -> None:
    """Intervals count on all test pictures: a trial on fewer would get too narrow ones."""
    top1 = run.metric("knn", "top1")
    if top1 is not None and abs(top1 * TEST - round(top1 * TEST)) > 0.01:
        raise ProsminError(
            f"{run.file} has kNN top-1 {top1}, which is no share of {TEST} pictures: a trial on a part of the test "
            "split. Move it elsewhere; results/ holds runs judged on all of it."
        )


def _check_alike(name: str, seeds: Seeds) -> None:
    first, *others = seeds
    for other in others:
        a, b = ({"code": evidence.code(run.document), **run.configuration} for run in (first, other))
        if apart := differing(a, b):
            what = ", ".join(f"{field}: {a.get(field)} and {b.get(field)}" for field in apart)
            raise ProsminError(
                f"{first.file} and {other.file} are seeds of {name} with different configurations ({what}). "
                "Train one of them again, or give it a name of its own."
            )


def differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """The fields in which two configurations differ."""
    return [field for field in dict.fromkeys([*a, *b]) if a.get(field) != b.get(field)]
