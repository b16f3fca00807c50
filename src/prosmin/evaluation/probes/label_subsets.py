"""The labelled subsets of the low-shot and semi-supervised protocols: balanced draws, or published lists."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from prosmin.data.image_sets import PictureSet
from prosmin.data.subsets import balanced_subset, deal_folds
from prosmin.errors import ProsminError
from prosmin.evaluation.context import Context

SHARES = (0.01, 0.10)
FOLDS = 5
"""Choices within a small subset are made by cross-validation."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of the labels of train: the indices of each draw, (n,) int64."""

    name: str  # such as 1pct, the ending of its metrics
    subsets: tuple[Tensor, ...]


def labelled_shares(context: Context) -> tuple[list[Share], dict[str, str]]:
    """The shares that can be measured, and the reason for each that cannot."""
    lists = context.options.label_lists
    return _published(context, lists) if lists else _drawn(context)


def check_labelled_shares(context: Context) -> str | None:
    """Why there are too few labels for every share; a label list that cannot be used is an error."""
    try:
        labelled_shares(context)
    except ProsminError as error:
        if context.options.label_lists:
            raise
        return str(error)
    return None


def over_draws(rows: Sequence[dict[str, float]], share: str) -> dict[str, float]:
    """The mean of each metric over the draws, NAME_SHARE, and with several draws its NAME_SHARE_sd."""
    metrics = {f"{name}_{share}": statistics.fmean(row[name] for row in rows) for name in rows[0]}
    if len(rows) > 1:
        metrics |= {f"{name}_{share}_sd": statistics.stdev(row[name] for row in rows) for name in rows[0]}
    return metrics


def _drawn(context: Context) -> tuple[list[Share], dict[str, str]]:
    labels = context.labels("train")
    shares, left_out = [], {}
    for share in SHARES:
        try:
            draws = range(context.seed, context.seed + context.options.draws)
            subsets = tuple(balanced_subset(labels, share, seed=seed) for seed in draws)
            for subset in subsets:
                _check_folds(context, subset)
            shares.append(Share(name=_name(share), subsets=subsets))
        except ProsminError as error:
            left_out[_name(share)] = str(error)
    if not shares:
        raise ProsminError(f"{context.sets['train'].spec} has too few labels. {' '.join(left_out.values())}")
    return shares, left_out


def _published(context: Context, files: Sequence[str]) -> tuple[list[Share], dict[str, str]]:
    """One subset per file; files of the same size are draws of one share."""
    train, labels = context.sets["train"], context.labels("train")
    found: dict[str, list[Tensor]] = {}
    for file in files:
        subset = read_list(Path(file), train)
        classes = len(torch.unique(labels[subset]))
        if classes < context.classes:
            raise ProsminError(
                f"{file} names images of {classes} of the {context.classes} classes of {train.spec}; "
                "allowed: at least one image per class."
            )
        _check_folds(context, subset)
        found.setdefault(_name(len(subset) / len(train)), []).append(subset)
    return [Share(name=name, subsets=tuple(subsets)) for name, subsets in found.items()], {}


def read_list(file: Path, pictures: PictureSet) -> Tensor:
    """The sorted indices of the images that a list names by whole keys, or by file names if those are unique."""
    try:
        names = dict.fromkeys(line.strip() for line in file.read_text().splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise ProsminError(f"The label list {file} cannot be read: {error}.") from None
    if not names:
        raise ProsminError(f"The label list {file} is empty; allowed: one name of an image per line.")
    last = [_file_name(key) for key in pictures.keys]
    count = Counter(last)
    place = {name: i for i, name in enumerate(last) if count[name] == 1}
    place |= {key: i for i, key in enumerate(pictures.keys)}
    known = {name: place.get(name, place.get(_file_name(name))) for name in names}
    unknown = [name for name, i in known.items() if i is None]
    if unknown:
        raise ProsminError(
            f"{len(unknown)} of the {len(names)} names in {file} match no image of {pictures.spec}, or several, "
            f"such as {', '.join(unknown[:3])}. Write one path or file name per line, such as {pictures.keys[0]}."
        )
    return torch.tensor(sorted({i for i in known.values() if i is not None}))


def _check_folds(context: Context, subset: Tensor) -> None:
    """An error if the subset is too small for cross-validation: every fold needs labels of classes with two or more."""
    labels, groups = context.labels("train")[subset], context.groups("train")
    groups = torch.arange(len(labels)) if groups is None else groups[subset]
    enough = len(torch.unique(groups)) >= FOLDS
    folds = deal_folds(labels, FOLDS, seed=context.seed, groups=groups) if enough else torch.empty(0)
    if len(torch.unique(folds[folds >= 0])) < FOLDS:
        raise ProsminError(
            f"{len(labels)} labels of {len(torch.unique(labels))} classes are too few for cross-validation; "
            "allowed: two labels per class for most classes."
        )


def _name(share: float) -> str:
    return f"{100 * share:.3g}pct"


def _file_name(key: str) -> str:
    return key.replace("\\", "/").rsplit("/", 1)[-1]
