"""From the scanned values of all images to their issues: each check is given the columns that it needs."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prosmin.data.unreadable import CheckedSource
from prosmin.embed.reference import own_groups
from prosmin.encoder.space import Space
from prosmin.inspect.duplicates import find_duplicates
from prosmin.inspect.findings import Issue
from prosmin.inspect.images import printable, splits_of
from prosmin.inspect.issues import (
    duplicate_issues,
    in_order,
    outlier_issues,
    quality_issues,
    uncertain_issues,
    unreadable_issues,
)
from prosmin.inspect.outliers import Outliers, find_outliers
from prosmin.inspect.quality import find_quality_issues
from prosmin.inspect.scan import Scan, measures

Values = dict[str, NDArray[Any]]
"""Scanned values of N images by column: (N,), features (N, D), fingerprint (N, F)."""


class Compared(NamedTuple):
    """What the values of N images say."""

    features: Tensor  # (N, D)
    columns: Values  # those of numbers
    outliers: Outliers | None  # None if there are too few images to compare with
    nearest: list[str] | None  # (N,): the name of the nearest image of the reference
    issues: list[Issue]


def compare(
    images: Scan, others: Scan | None, *, space: Space, false_alarms: float | None, device: torch.device
) -> Compared:
    """Compare the images with each other in this space, and with those of the reference if there is one."""
    mine, names = _values(images), images.names()
    theirs = None if others is None else _values(others)
    reference_names = names if others is None else others.names()
    features = torch.from_numpy(mine["features"]).to(device)
    bank = None if theirs is None else (torch.from_numpy(theirs["features"]).to(device), theirs["pixels"])
    outliers = find_outliers(features, mine["pixels"], space=space, reference=bank, rate=false_alarms)
    quality = find_quality_issues({name: mine[name].astype(np.float64) for name in measures()}, _sizes(mine))
    issues = [
        *([] if outliers is None else outlier_issues(outliers, names, others=reference_names)),
        *_copies(images, mine, others, theirs),
        *quality_issues(quality, names),
        *([] if outliers is None else uncertain_issues(outliers, names)),
        *unreadable_issues(images.unreadable),
    ]
    nearest = None if outliers is None else [printable(reference_names[row]) for row in outliers.nearest.tolist()]
    return Compared(features, _numbers(mine, outliers), outliers, nearest, in_order(issues))


def _values(found: Scan) -> Values:
    """The scanned values of all images; their thumbnails stay on disk."""
    names = ["features", "mean_log_scale", "width", "height", "file_size", "content", "pixels", "fingerprint"]
    return found.rows.arrays([*names, *measures()])


def _sizes(values: Values) -> NDArray[np.int64]:
    """Height and width (N, 2)."""
    return np.stack([values["height"], values["width"]], axis=1).astype(np.int64)


def _copies(images: Scan, mine: Values, others: Scan | None, theirs: Values | None) -> list[Issue]:
    """Issues of images that are copies of each other, or of an image of the reference."""
    names, copied_from, values, links = images.names(), [], mine, images.links()
    if others is not None and theirs is not None:
        new = _not_in(others, images)
        values = {name: np.concatenate([column, theirs[name][new]]) for name, column in mine.items()}
        copied_from = [name for name, is_new in zip(others.names(), new.tolist(), strict=True) if is_new]
        links = np.concatenate([links, others.links()[new]])
    groups = find_duplicates(
        content=values["content"].tolist(),
        pixels=values["pixels"],
        fingerprints=values["fingerprint"],
        features=values["features"],
        sizes=_sizes(values),
        sharpness=values["sharpness"].astype(np.float64),
        links=links,
    )
    return duplicate_issues(groups, names, splits_of(names), others=copied_from)


def _not_in(others: Scan, images: Scan) -> NDArray[np.bool_]:
    """Which images of the reference are not images of the folder themselves: (M,). The same file is not a copy."""
    theirs, mine = CheckedSource(others.source), CheckedSource(images.source)
    groups, own = own_groups(mine, theirs, torch.from_numpy(others.numbers))
    return ~np.isin(groups.numpy(), own.numpy())


def _numbers(mine: Values, outliers: Outliers | None) -> Values:
    """The columns of numbers that there are."""
    found: Values = {}
    if outliers is not None:
        found = {"ood_score": outliers.score, "reference_distance": outliers.near, "uncertainty": outliers.uncertainty}
    found |= {name: mine[name] for name in ("mean_log_scale", "width", "height", "file_size", *measures())}
    return {name: values for name, values in found.items() if np.isfinite(values).any()}
