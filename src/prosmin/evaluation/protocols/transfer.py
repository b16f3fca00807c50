"""transfer: the whole backbone fine-tuned on other labelled sets."""

import statistics
from typing import Any

import torch
from rich.table import Table
from rich.text import Text

from prosmin.data.image_sets import Pictures, PictureSet, joined, open_pictures, streamed
from prosmin.data.sources import Source, open_source, split_spec
from prosmin.data.stream import picture_batches
from prosmin.errors import ProsminError, UsageError
from prosmin.evaluation.batches import PREDICTED
from prosmin.evaluation.context import Context
from prosmin.evaluation.metrics.table import metric, short_heading
from prosmin.evaluation.probes.finetune import check_held_out, fine_tune
from prosmin.evaluation.protocol import Protocol, Result
from prosmin.evaluation.sets import check_classes

COLUMNS = ("top1", "nll", "ece", "ece_calibrated")


def run(context: Context) -> Result:
    """`sets` has the metrics of each set, `metrics` their mean over the sets."""
    rows: dict[str, dict[str, float]] = {}
    curves: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for spec in context.options.transfer:
        train, test = _open(spec, max_bad=context.max_bad)
        classes, labels = _check_labels(train, test), test.labels
        assert labels is not None
        tuned = fine_tune(
            context.encoder,
            train,
            test,
            classes=classes,
            seed=context.seed,
            epochs=context.options.finetune_epochs,
        )
        rows[spec] = tuned.metrics(labels, seed=context.seed)
        curves[spec] = tuned.diagrams(labels)
        settings[spec] = {"train": train.spec, "test": test.spec, "labels": len(train), **tuned.settings}
    names = next(iter(rows.values()))
    return Result(
        metrics={name: statistics.fmean(row[name] for row in rows.values()) for name in names},
        sets={spec: {"fine-tuned": row} for spec, row in rows.items()},
        curves=curves,
        settings=settings,
    )


def check(context: Context) -> str | None:
    """An error for a set that cannot be fine-tuned on."""
    for spec in context.options.transfer:
        *parts, test = (open_source(split) for split in splits_of(spec))
        _check_labels(*parts, test)
        check_held_out(streamed(parts))
    return None


def splits_of(spec: str) -> list[str]:
    """The splits to learn from, then test. The validation split is learned from too, as in published figures."""
    train, test = split_spec(spec, "train"), split_spec(spec, "test")
    try:
        between = split_spec(spec, "val")
    except UsageError:
        between = test
    return [train, test] if between == test else [train, between, test]


def _check_labels(*splits: Source | PictureSet) -> int:
    """The number of classes; an error unless all splits have labels of the same classes."""
    classes: tuple[str, ...] = ()
    for split in splits:
        if split.labels is None:
            raise ProsminError(f"{split.spec} has no labels; --transfer needs labelled sets.")
        specs = (splits[0].spec, split.spec)
        classes = check_classes(classes, split.classes, specs=specs, advice="; --transfer needs splits of one set.")
    return len(classes)


def _open(spec: str, *, max_bad: float) -> tuple[PictureSet, PictureSet]:
    """The splits to learn from as one set, and the test split."""
    names = splits_of(spec)
    *parts, test = (open_pictures(name, max_bad=max_bad) for name in names)
    _check_labels(*parts, test)
    decoded = [part for part in parts if isinstance(part, Pictures)]
    sources = [open_source(name) for name in names[:-1]]
    train = joined(decoded) if len(decoded) == len(parts) else streamed(sources, max_bad=max_bad)
    return _readable(train), _readable(test)


def _readable(pictures: PictureSet) -> PictureSet:
    """The images that can be read: for a stream, this is known after reading it once."""
    if isinstance(pictures, Pictures):
        return pictures
    batches = picture_batches(pictures, size=PREDICTED, device=torch.device("cpu"), max_bad=pictures.max_bad)
    return pictures.subset(torch.cat([batch.index for batch in batches]))


def table(row: dict[str, Any]) -> Table:
    """One line per set: its metrics, and the learning rate and epochs that gave them."""
    lines = Table(box=None, pad_edge=False)
    lines.add_column("transfer to", overflow="fold")
    for heading in ("labels", *map(short_heading, COLUMNS), "learning rate", "epochs"):
        lines.add_column(heading, justify="right")

    def cells(metrics: dict[str, float]) -> list[str]:
        return [metric(name).short_text(metrics[name]) for name in COLUMNS]

    for spec, found in row["sets"].items():
        settings = row["settings"][spec]
        last = (f"{settings['lr']:g}", str(settings["epochs"]))
        lines.add_row(Text(spec), str(settings["labels"]), *cells(found["fine-tuned"]), *last)
    if len(row["sets"]) > 1:
        lines.add_row("mean", "", *cells(row["metrics"]))
    return lines


PROTOCOL = Protocol(
    name="transfer",
    title="Transfer: fine-tuned on other sets",
    run=run,
    check=check,
    own_images="transfer",
    paper=True,
    table=table,
)
