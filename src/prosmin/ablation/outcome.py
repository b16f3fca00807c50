"""What became of a cell, and the quantities measured of it."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prosmin.ablation.cells import Cell

SEED = "training.seed"


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number of a cell: its name in the files, its heading, how it is written."""

    name: str
    heading: str
    digits: int
    percent: bool = False

    def text(self, value: float | None) -> str:
        """The number as a person reads it."""
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
    """A finished cell has metrics and a verdict, a failed one an error, one that waits has neither."""

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
    """A quantity over the seeds of one setting."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The finished cells that differ in their seed alone."""

    swept: Mapping[str, Any]  # without the seed
    seeds: int
    metrics: Mapping[str, Spread]


def over_seeds(outcomes: Sequence[Outcome]) -> list[Summary]:
    """One summary a setting, in the order of the cells; a seed alone is a setting of its own."""
    only_seeds = all(set(outcome.cell.swept) == {SEED} for outcome in outcomes)
    groups: dict[str, tuple[dict[str, Any], list[Outcome]]] = {}
    for outcome in outcomes:
        setting = {name: v for name, v in outcome.cell.swept.items() if name != SEED or only_seeds}
        groups.setdefault(repr(setting), (setting, []))[1].append(outcome)
    return [_summary(setting, members) for setting, members in groups.values()]


def measured(outcomes: Sequence[Outcome]) -> list[Quantity]:
    """The quantities that at least one cell has."""
    return [quantity for quantity in (KNN, *LOGGED) if any(quantity.name in o.metrics for o in outcomes)]


def _summary(setting: dict[str, Any], members: list[Outcome]) -> Summary:
    finished = [outcome for outcome in members if outcome.state == "finished"]
    found = {}
    for quantity in measured(finished):
        values = [outcome.metrics[quantity.name] for outcome in finished if quantity.name in outcome.metrics]
        found[quantity.name] = Spread(mean=statistics.fmean(values), low=min(values), high=max(values))
    return Summary(swept=setting, seeds=len(finished), metrics=found)
