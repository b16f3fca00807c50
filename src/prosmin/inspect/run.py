"""`prosmin inspect` from top to bottom: scan the images, compare them, collect the issues, write files and page."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from prosmin import __version__
from prosmin.data.sources import open_source, spec_of
from prosmin.data.sources.folder import FolderSource
from prosmin.data.unreadable import CheckedSource
from prosmin.embed.reference import FALSE_ALARMS, own_groups
from prosmin.encoder import LEAST_REFERENCE, load
from prosmin.encoder.stored import IMAGES
from prosmin.errors import UsageError
from prosmin.inspect import map as maps
from prosmin.inspect.duplicates import DuplicateGroup, find_duplicates
from prosmin.inspect.findings import Findings, Issue
from prosmin.inspect.images import open_whole, printable, splits_of
from prosmin.inspect.issues import (
    duplicate_issues,
    in_order,
    outlier_issues,
    quality_issues,
    uncertain_issues,
    unreadable_issues,
    write_issues,
)
from prosmin.inspect.outliers import Outliers, find_outliers
from prosmin.inspect.page import write_page
from prosmin.inspect.quality import find_quality_issues
from prosmin.inspect.scan import Scan, measures, scan, settings_of
from prosmin.inspect.store import Store, used_alone
from prosmin.inspect.subset import representative
from prosmin.inspect.table import ROWS, write_images, write_scanned

ENCODER = "cifar10-vit"
"""The default encoder, which comes with the package."""

REPRESENTATIVE = 50
"""Images to label first, by default."""

REFERENCE, ISSUES, PAGE = "reference.parquet", "issues.csv", "index.html"

Values = dict[str, NDArray[Any]]
"""Scanned values of N images by column: (N,), features (N, D), fingerprint (N, F)."""


def inspect(
    folder: Path | str,
    out: Path | str,
    *,
    encoder: Path | str = ENCODER,
    reference: Path | str | None = None,
    false_alarms: float | None = None,
    count: int = REPRESENTATIVE,
    command: str = "",
) -> Findings:
    """Inspect the images of a folder or SPEC, and write images.parquet, issues.csv and index.html to `out`.

    `reference` is a folder or SPEC of images that belong, by default the folder itself; `false_alarms` the share of
    images like the reference that may be flagged, by default 0.05; `count` the number of images to label first. The
    same call continues an interrupted inspection, and computes only new and changed images of a finished one.
    """
    if false_alarms is not None and not 0 < false_alarms < 1:
        raise UsageError(f"--false-alarms is {false_alarms:g}; allowed: a share above 0 and below 1.")
    if count < 0:
        raise UsageError(f"--representative is {count}; allowed: 0 or more images.")
    spec, out = spec_of(str(folder)), Path(out).expanduser()
    source, notes = open_whole(spec, leave_out=out)
    belonging = None if reference is None else open_source(spec_of(str(reference)))
    loaded = load(encoder)
    with used_alone(out, (IMAGES, REFERENCE, ISSUES, PAGE)):
        store = Store(out, IMAGES, settings_of(loaded))
        images, others = scan(source, loaded, store, title="images"), None
        if belonging is not None:
            bank = Store(out, REFERENCE, settings_of(loaded))
            others = scan(belonging, loaded, bank, title="reference")
            if any(place.path != bank.file for place in others.rows.places):
                write_scanned(bank, others)
        mine = values_of(images)
        theirs = None if others is None else values_of(others)
        features = torch.from_numpy(mine["features"]).to(loaded.device)
        outliers = _outliers(features, mine, theirs, rate=false_alarms)
        neighbours, distances = maps.neighbours(features)
        findings = Findings(
            folder=str(source.root) if isinstance(source, FolderSource) else spec,
            encoder=str(encoder),
            reference=None if belonging is None else belonging.spec,
            rate=(false_alarms or FALSE_ALARMS) if outliers is None else outliers.rate,
            threshold=float("nan") if outliers is None else outliers.threshold,
            keys=images.names(),
            labels=images.labels(),
            columns=_numbers(mine, outliers),
            points=maps.points(features),
            neighbours=neighbours,
            distances=distances,
            representative=representative(mine["features"], count),
            issues=in_order(find_issues(images, mine, others, theirs, outliers)),
            thumbnail=_thumbnails(store),
            notes=[*notes, *_notes(images, others, outliers)],
        )
        about = {
            "prosmin": __version__,
            "command": command,
            "run": str(encoder),
            "settings": {"encoder": loaded.card["hash"], "data": spec, "reference": findings.reference},
        }
        write_images(store, images, findings, nearest=_nearest(images, others, outliers), about=about)
        write_issues(out / ISSUES, findings.issues)
        write_page(findings, out / PAGE)
    return findings


def values_of(found: Scan) -> Values:
    """The scanned values of all images, thumbnails excepted: these stay on disk."""
    names = ["features", "mean_log_scale", "width", "height", "file_size", "content", "pixels", "fingerprint"]
    return found.rows.arrays([*names, *measures()])


def _sizes(values: Values) -> NDArray[np.int64]:
    return np.stack([values["height"], values["width"]], axis=1).astype(np.int64)


def _outliers(features: torch.Tensor, mine: Values, theirs: Values | None, *, rate: float | None) -> Outliers | None:
    reference = None
    if theirs is not None:
        reference = (torch.from_numpy(theirs["features"]).to(features.device), theirs["pixels"])
    return find_outliers(features, mine["pixels"], reference=reference, rate=rate)


def find_issues(
    images: Scan, mine: Values, others: Scan | None, theirs: Values | None, outliers: Outliers | None
) -> list[Issue]:
    """All issues of the images, by kind."""
    names = images.names()
    copied_from: list[str] = []
    every = mine
    if others is not None and theirs is not None:
        new = _not_in(others, images)
        every = {name: np.concatenate([values, theirs[name][new]]) for name, values in mine.items()}
        copied_from = [name for name, is_new in zip(others.names(), new, strict=True) if is_new]
    quality = find_quality_issues({name: mine[name].astype(np.float64) for name in measures()}, _sizes(mine))
    flagged = (
        []
        if outliers is None
        else outlier_issues(outliers, names, others=(images if others is None else others).names())
    )
    return [
        *flagged,
        *duplicate_issues(_duplicates(every), names, splits_of(names), others=copied_from),
        *quality_issues(quality, names),
        *uncertain_issues(mine["mean_log_scale"], names),
        *unreadable_issues(images.unreadable),
    ]


def _duplicates(values: Values) -> list[DuplicateGroup]:
    return find_duplicates(
        content=values["content"].tolist(),
        pixels=values["pixels"],
        fingerprints=values["fingerprint"],
        features=values["features"],
        sizes=_sizes(values),
        sharpness=values["sharpness"].astype(np.float64),
    )


def _not_in(others: Scan, images: Scan) -> NDArray[np.bool_]:
    """Which images of the reference are not images of the folder themselves: (M,). The same file is not a copy."""
    theirs, mine = CheckedSource(others.source), CheckedSource(images.source)
    groups, own = own_groups(mine, theirs, torch.from_numpy(others.numbers))
    return ~np.isin(groups.numpy(), own.numpy())


def _numbers(mine: Values, outliers: Outliers | None) -> Values:
    """The columns of numbers that there are."""
    found = {} if outliers is None else {"ood_score": outliers.score, "reference_distance": outliers.near}
    found |= {name: mine[name] for name in ("mean_log_scale", "width", "height", "file_size", *measures())}
    return {name: values for name, values in found.items() if np.isfinite(values).any()}


def _nearest(images: Scan, others: Scan | None, outliers: Outliers | None) -> list[str] | None:
    """The name of each image's nearest image of the reference."""
    if outliers is None:
        return None
    names = (images if others is None else others).names()
    return [printable(names[i]) for i in outliers.nearest.tolist()]


def _thumbnails(store: Store) -> Callable[[int], bytes]:
    """Row -> JPEG, from the finished file; a row group is read at a time."""
    read = lru_cache(16)(store.column)
    return lambda row: read(row // ROWS, "image")[row % ROWS]["bytes"].as_py()


def _notes(images: Scan, others: Scan | None, outliers: Outliers | None) -> list[str]:
    notes = []
    if outliers is None:
        which = "the folder" if others is None else others.source.spec
        notes.append(
            f"No image is flagged as not belonging: that needs {LEAST_REFERENCE} different images to compare with, "
            f"and {which} has fewer."
        )
    if others is not None and others.unreadable:
        notes.append(f"{len(others.unreadable)} images of the reference {others.source.spec} cannot be read.")
    return notes
