"""The outcome of a cell: metrics from its log, kNN among training images. No test image is read."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prosmin.ablation.cells import RESULT, Cell
from prosmin.config import Config
from prosmin.data.image_sets import PictureSet, open_pictures
from prosmin.data.sources import files_mark, open_source
from prosmin.encoder import load
from prosmin.encoder.file import read_card
from prosmin.errors import ProsminError
from prosmin.evaluation.probes.held_out import held_out_knn
from prosmin.files import write_text
from prosmin.training import health
from prosmin.training.run_folder import RunFolder

SEED = "training.seed"


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A metric of a cell: its name in files, its heading, its format."""

    name: str
    heading: str
    digits: int
    percent: bool = False

    def text(self, value: float | None) -> str:
        """The formatted number."""
        if value is None:
            return "-"
        return f"{100 * value if self.percent else value:.{self.digits}f}"


KNN = Quantity(name="knn_top1", heading="kNN top-1 %", digits=1, percent=True)
LOGGED = (
    Quantity(name="loss", heading="loss", digits=4),
    Quantity(name="target_std", heading="target std", digits=4),
    Quantity(name="feature_rank", heading="feature rank", digits=1),
    Quantity(name="scale_mean", heading="mean scale", digits=4),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished cell has metrics and a verdict, a failed cell an error, a waiting cell neither."""

    cell: Cell
    metrics: Mapping[str, float] = field(default_factory=dict)
    verdict: str = ""
    seconds: float | None = None  # of training, from its log
    remark: str = ""  # why a metric is missing
    error: str = ""

    @property
    def state(self) -> str:
        """finished, failed or waiting."""
        return "failed" if self.error else "finished" if self.verdict else "waiting"


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A metric over the seeds of one setting."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The finished cells that differ only in their seed."""

    swept: Mapping[str, Any]  # without the seed
    seeds: int
    metrics: Mapping[str, Spread]


def over_seeds(outcomes: Sequence[Outcome]) -> list[Summary]:
    """One summary per setting, in the order of the cells; if only seeds differ, one per seed."""
    only_seeds = all(set(outcome.cell.swept) == {SEED} for outcome in outcomes)
    groups: dict[str, tuple[dict[str, Any], list[Outcome]]] = {}
    for outcome in outcomes:
        setting = {name: v for name, v in outcome.cell.swept.items() if name != SEED or only_seeds}
        groups.setdefault(repr(setting), (setting, []))[1].append(outcome)
    return [_summary(setting, members) for setting, members in groups.values()]


def measured(outcomes: Sequence[Outcome]) -> list[Quantity]:
    """The metrics that at least one cell has."""
    return [quantity for quantity in (KNN, *LOGGED) if any(quantity.name in o.metrics for o in outcomes)]


def _summary(setting: dict[str, Any], members: list[Outcome]) -> Summary:
    finished = [outcome for outcome in members if outcome.state == "finished"]
    found = {}
    for quantity in measured(finished):
        values = [outcome.metrics[quantity.name] for outcome in finished if quantity.name in outcome.metrics]
        found[quantity.name] = Spread(mean=statistics.fmean(values), low=min(values), high=max(values))
    return Summary(swept=setting, seeds=len(finished), metrics=found)


class Measure:
    """Measures finished cells; images are decoded once, or streamed if they do not fit into memory."""

    def __init__(self) -> None:
        self._pictures: tuple[str, PictureSet] | None = None
        self._marks: dict[str, str | None] = {}

    def __call__(self, cell: Cell, folder: Path) -> Outcome:
        """The outcome of a finished run; from its ablation.json if encoder and images are unchanged."""
        found = _saved(folder, cell.config, self._mark(cell.config.data.spec))
        if found is None:
            found = self._measure(cell, folder)
            write_text(folder / RESULT, json.dumps(found, indent=1))
        return Outcome(
            cell=cell,
            metrics={name: value for name, value in found["metrics"].items() if value is not None},
            verdict=found["verdict"],
            seconds=found["seconds"],
            remark=found["remark"],
        )

    def _measure(self, cell: Cell, folder: Path) -> dict[str, Any]:
        rows = RunFolder(folder).read_metrics()
        metrics, remark = self._knn(cell.config, folder)
        last = rows[-1] if rows else {}
        metrics |= {quantity.name: last[quantity.name] for quantity in LOGGED if quantity.name in last}
        return {
            "cell": cell.name,
            "swept": dict(cell.swept),
            # JSON has no NaN.
            "metrics": {name: value if math.isfinite(value) else None for name, value in metrics.items()},
            "verdict": health.verdict(rows, cell.config),
            "seconds": training_seconds(rows, batch_size=cell.config.training.batch_size),
            "remark": remark,
            "checkpoint": _checkpoint(folder),
            "data": cell.config.data.spec,
            "files": self._mark(cell.config.data.spec),
        }

    def _knn(self, config: Config, folder: Path) -> tuple[dict[str, float], str]:
        """kNN, or an empty dictionary and the reason."""
        encoder = load(folder)
        try:
            labels = open_source(config.data.spec).labels
            if labels is None:
                return {}, f"no kNN: {config.data.spec} has no labels"
            if len(labels.unique()) == 1:
                return {}, "no kNN: the images have one class"
            return dict(held_out_knn(encoder, self._load(config))), ""
        except ProsminError as error:
            return {}, f"no kNN: {error}"

    def _mark(self, spec: str) -> str | None:
        """A hash of the files before the first read; computed once, because listing files can take long."""
        if spec not in self._marks:
            self._marks[spec] = files_mark(spec)
        return self._marks[spec]

    def _load(self, config: Config) -> PictureSet:
        spec = config.data.spec
        if self._pictures is None or self._pictures[0] != spec:
            self._pictures = None  # free the first set before the second is loaded
            self._pictures = spec, open_pictures(spec, max_bad=config.data.max_bad)
        return self._pictures[1]


def training_seconds(rows: list[dict[str, Any]], *, batch_size: int) -> float | None:
    """Seconds of training up to the last line of a log, without the pauses of a resumed run."""
    total, before = 0.0, 0
    for row in rows:
        rate = row.get("images_per_second", 0.0)
        if rate <= 0:
            return None
        total += batch_size * (row["step"] - before) / rate
        before = row["step"]
    return round(total, 1) if rows else None


def _saved(folder: Path, config: Config, mark: str | None) -> dict[str, Any] | None:
    """The saved outcome; None if a metric is missing or the encoder or the images have changed."""
    try:
        found = json.loads((folder / RESULT).read_text())
    except (OSError, json.JSONDecodeError):
        return None
    same = found.get("checkpoint") == _checkpoint(folder) and found.get("data") == config.data.spec
    same_files = mark is None or found.get("files") == mark  # images that no longer exist cannot be measured again
    return found if same and same_files and not found.get("remark") else None


def _checkpoint(folder: Path) -> dict[str, Any]:
    card = read_card(folder)
    return {"step": card["step"], "hash": card["hash"]}
