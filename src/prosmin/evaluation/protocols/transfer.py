"""transfer: the whole backbone fine-tuned on other labelled sets."""

import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from prosmin.data.pictures import Pictures, load_pictures
from prosmin.data.sources import Source, open_source, split_spec
from prosmin.errors import ProsminError, UsageError
from prosmin.evaluation.answers import diagrams, judge
from prosmin.evaluation.context import Context
from prosmin.evaluation.finetune import fine_tune
from prosmin.evaluation.result import Result


def run(context: Context) -> Result:
    """Each set's own metrics in `sets`; a metric itself is the mean over the sets."""
    rows: dict[str, dict[str, float]] = {}
    curves: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for spec in context.options.transfer:
        *parts, test = (load_pictures(split) for split in _splits(spec))
        labels = _check_labels(*parts, test)
        train = _joined(parts)
        tuned = fine_tune(
            context.encoder,
            train,
            test,
            classes=len(test.classes),
            seed=context.seed,
            epochs=context.options.finetune_epochs,
        )
        rows[spec] = judge(tuned.logits, labels, temperature=tuned.temperature, seed=context.seed)
        curves[spec] = diagrams(tuned.logits, labels, temperature=tuned.temperature)
        settings[spec] = {"train": train.spec, "test": test.spec, "labels": len(train), **tuned.settings}
    names = next(iter(rows.values()))
    return Result(
        metrics={name: statistics.fmean(row[name] for row in rows.values()) for name in names},
        sets={spec: {"fine-tuned": row} for spec, row in rows.items()},
        curves=curves,
        settings=settings,
    )


def check_transfer_sets(specs: Sequence[str]) -> None:
    """A sentence for a set that cannot be fine-tuned on, before anything is measured."""
    for spec in specs:
        _check_labels(*(open_source(split) for split in _splits(spec)))


def _splits(spec: str) -> list[str]:
    """What is learned from, the test split last. A validation split is learned from too: published figures do so."""
    train, test = split_spec(spec, "train"), split_spec(spec, "test")
    try:
        between = split_spec(spec, "val")
    except UsageError:
        between = test
    return [train, test] if between == test else [train, between, test]


def _check_labels(*splits: Source | Pictures) -> Tensor:
    """The labels of the last split, when all have labels of the same classes."""
    first = splits[0]
    for split in splits:
        if split.labels is None:
            raise ProsminError(f"{split.spec} has no labels; --transfer needs labelled sets.")
        if split.classes != first.classes:
            different = sorted(set(split.classes) ^ set(first.classes))[:5]
            raise ProsminError(
                f"{first.spec} and {split.spec} have other classes, such as {', '.join(different) or 'their order'}; "
                "--transfer needs splits of one set."
            )
    assert splits[-1].labels is not None
    return splits[-1].labels


def _joined(parts: list[Pictures]) -> Pictures:
    """Several splits as one set."""
    if len(parts) == 1:
        return parts[0]
    height, width = (max(part.images.shape[side] for part in parts) for side in (2, 3))
    padded = [
        torch.nn.functional.pad(part.images, (0, width - part.images.shape[3], 0, height - part.images.shape[2]))
        for part in parts
    ]
    return Pictures(
        images=torch.cat(padded),
        sizes=torch.cat([part.sizes for part in parts]),
        labels=torch.cat([part.labels for part in parts if part.labels is not None]),
        classes=parts[0].classes,
        keys=tuple(key for part in parts for key in part.keys),
        spec=" + ".join(part.spec for part in parts),
    )
