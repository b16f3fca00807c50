"""What a protocol is: one record that evaluate, the command line and the report read, and the result it returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from rich.table import Table

from prosmin.evaluation.context import Context
from prosmin.evaluation.options import Options, flag

Use = Literal["needed", "used", "unused"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """Metrics of the trained encoder and of its baselines, the settings behind them, and the data of figures."""

    metrics: dict[str, float]
    settings: dict[str, Any]
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    sets: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    curves: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


def no_check(context: Context) -> str | None:
    """For protocols that have nothing to check."""
    return None


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One protocol. Its metrics are in metrics/table.py; the options it reads name it, in options.py."""

    name: str
    title: str  # in the report
    run: Callable[[Context], Result]
    check: Callable[[Context], str | None] = no_check
    """Called before the first protocol runs. Returns why the images do not allow it; raises for a user's mistake."""

    labels: Use = "needed"  # "used": without labels it measures less
    ood: Use = "unused"  # the sets of --ood
    own_images: str = ""  # the option that names its images, for a protocol that does not read train and test
    needs_held_out: bool = False  # makes choices on a tenth of train
    uncertainty: bool = False  # its result depends on what `Encoder.uncertainty` is

    default: bool = False  # runs if neither --protocols nor --suite is given
    paper: bool = False  # is in --suite paper
    quick: Mapping[str, Any] = field(default_factory=dict)
    """Options of a default run where they are not given."""

    short: str = ""  # precedes its metrics in the printed table
    columns: tuple[str, ...] = ()  # metrics in the printed table
    columns_without_labels: tuple[str, ...] = ()  # printed if there are no labels, or nothing else to print
    table: Callable[[dict[str, Any]], Table] | None = None  # printed as well: made from its row

    section: str = "results"  # id of the report section with its table of metrics
    expected: bool = False  # the report names it if it is missing
    headlines: tuple[str, ...] = ()  # metrics at the top of the report
    headlines_without_labels: tuple[str, ...] = ()
    labels_show: str = ""  # what the report lists as missing where there are no labels

    def missing(self, *, ood: bool, options: Options) -> str | None:
        """The images it needs that were not given."""
        if self.ood == "needed" and not ood:
            return "out-of-distribution images: --ood SPEC[,SPEC...]"
        if self.own_images and not getattr(options, self.own_images):
            return f"other labelled images: {flag(self.own_images)} SPEC[,SPEC...]"
        return None

    def obstacle(self, context: Context) -> str | None:
        """Why the images of a context do not allow it; None if they do."""
        if not self.own_images and context.unlabelled:
            if self.labels == "needed":
                return (
                    f"it needs labelled train and test images, but {context.unlabelled}; give them with --data SPEC, "
                    "and --test SPEC if that has no test split. A labelled folder has one folder per class."
                )
        elif not self.own_images and self.labels != "unused":
            classes, train = context.classes, context.sets["train"]
            if self.needs_held_out and not bool(context.held_out.any()):
                return (
                    f"it makes choices on a held-out tenth of train, and {train.spec} has {len(train)} images of "
                    f"{classes} classes, too few for that; give two or more images of a class."
                )
        return self.check(context)
