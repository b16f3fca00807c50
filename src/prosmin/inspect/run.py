"""`prosmin inspect` from top to bottom: scan the images, compare them, collect the issues, write files and page."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from prosmin import __version__
from prosmin.data.sources import open_source, spec_of
from prosmin.data.sources.folder import FolderSource
from prosmin.embed.reference import FALSE_ALARMS
from prosmin.encoder import LEAST_REFERENCE, load
from prosmin.encoder.stored import IMAGES
from prosmin.errors import UsageError
from prosmin.inspect import map as maps
from prosmin.inspect.compare import compare
from prosmin.inspect.findings import Findings
from prosmin.inspect.images import open_whole
from prosmin.inspect.issues import write_issues
from prosmin.inspect.outliers import Outliers
from prosmin.inspect.page import write_page
from prosmin.inspect.scan import Scan, scan, settings_of
from prosmin.inspect.store import Store, used_alone
from prosmin.inspect.subset import representative
from prosmin.inspect.table import ROWS, write_images, write_scanned

ENCODER = "cifar10-vit"
"""The default encoder, which comes with the package."""

REPRESENTATIVE = 50
"""Images to label first, by default."""

REFERENCE, ISSUES, PAGE = "reference.parquet", "issues.csv", "index.html"


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
        store, reference_store = (Store(out, name, settings_of(loaded)) for name in (IMAGES, REFERENCE))
        images = scan(source, loaded, store, title="images")
        others = None if belonging is None else scan(belonging, loaded, reference_store, title="reference")
        print(f"comparing {len(images) + (0 if others is None else len(others)):,} images", flush=True)
        space = loaded.background.space
        found = compare(images, others, space=space, false_alarms=false_alarms, device=loaded.device)
        placed = space.to(loaded.device)(found.features)
        neighbours, distances = maps.neighbours(placed)
        findings = Findings(
            folder=str(source.root) if isinstance(source, FolderSource) else spec,
            encoder=str(encoder),
            reference=None if belonging is None else belonging.spec,
            rate=(false_alarms or FALSE_ALARMS) if found.outliers is None else found.outliers.rate,
            threshold=float("nan") if found.outliers is None else found.outliers.threshold,
            keys=images.names(),
            labels=images.labels(),
            columns=found.columns,
            points=maps.points(placed),
            neighbours=neighbours,
            distances=distances,
            representative=representative(found.features.cpu().numpy(), count),
            issues=found.issues,
            thumbnail=_thumbnails(store),
            notes=[*notes, *_notes(others, found.outliers)],
        )
        about = {
            "prosmin": __version__,
            "command": command,
            "run": str(encoder),
            "settings": {"encoder": loaded.card["hash"], "data": spec, "reference": findings.reference},
        }
        # After comparing, since rows lie elsewhere in new files; images.parquet first, since the next run knows its
        # own folder by it.
        write_images(store, images, findings, nearest=found.nearest, about=about)
        if others is not None:
            _keep(reference_store, others)
        write_issues(out / ISSUES, findings.issues)
        write_page(findings, out / PAGE)
    return findings


def _keep(store: Store, reference: Scan) -> None:
    """Write the rows of the reference for the next run, unless its file has them all."""
    if any(place.path != store.file for place in reference.rows.places):
        write_scanned(store, reference)


def _thumbnails(store: Store) -> Callable[[int], bytes]:
    """Row -> JPEG, from the finished file; a row group is read at a time."""
    read = lru_cache(16)(store.column)
    return lambda row: read(row // ROWS, "image")[row % ROWS]["bytes"].as_py()


def _notes(others: Scan | None, outliers: Outliers | None) -> list[str]:
    notes = []
    if outliers is None:
        which = "the folder" if others is None else others.source.spec
        notes.append(
            f"No image is flagged as not belonging: that needs {LEAST_REFERENCE} different images to compare with, "
            f"and {which} has fewer."
        )
    elif others is None and not outliers.flag.any():
        notes.append(
            f"No image is flagged as not belonging: the share {outliers.rate:g} of this folder is less than one image. "
            "Give a larger --false-alarms."
        )
    if others is not None and others.unreadable:
        notes.append(f"{len(others.unreadable)} images of the reference {others.source.spec} cannot be read.")
    return notes
