"""Galleries: the surest, the least sure and the strangest pictures, from thumbnails kept in the run."""

import base64
import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from prosmin.report.album import Album, read_album
from prosmin.report.blocks import Block, Cell, Gallery, Missing, Picture, Row, Section, Table
from prosmin.report.commands import evaluate_command
from prosmin.report.glossary import apart
from prosmin.report.runs import Arrays, Run

MOST = 24  # pictures a gallery
COARSE = 64  # pictures up to this side are shown with hard pixels
FIELDS = ("thumbnails", "thumbnail_uncertainty", "thumbnail_label", "thumbnail_kind", "thumbnail_key")

KINDS = {
    "certain": ("Most certain", "The lowest uncertainty of the test pictures, surest first."),
    "uncertain": ("Least certain", "The highest uncertainty of the test pictures, least sure first."),
    "ood": ("Most out of distribution", "Pictures from outside the training set that score highest."),
}


def pictures_section(runs: Sequence[Run]) -> Section:
    """The three galleries of each run."""
    blocks: list[Block] = []
    for i, run in enumerate(runs):
        album = read_album(run)
        found = [g for kind in KINDS if (g := gallery(run, i, kind, album, named=len(runs) > 1))]
        blocks += found
        if not found:
            what = f"{run.name} has no pictures" if len(runs) > 1 else "No pictures yet"
            blocks.append(Missing(what=what, command=evaluate_command(run, "uncertainty")))
    lead = "Select a picture to see it larger, with its name in full and the test pictures nearest to it."
    return Section(
        id="pictures",
        title="Pictures",
        lead=lead if any(b.kind == "gallery" for b in blocks) else "",
        blocks=blocks,
    )


def gallery(run: Run, i: int, kind: str, album: Album | None, *, named: bool) -> Gallery | None:
    """The pictures of one kind in order; None where the run kept none."""
    arrays = run.arrays.get("uncertainty", {})
    chosen = order(arrays, kind)
    if not len(chosen):
        return None
    title, reading = KINDS[kind]
    values = apart([float(arrays["thumbnail_uncertainty"][j]) for j in chosen])
    shown = [
        replace(picture(arrays, j, value), place="" if album is None else _place(album, arrays, j, kind, i))
        for j, value in zip(chosen, values, strict=True)
    ]
    rows: list[Row] = [[Cell(p.key, head=True), p.label, p.value] for p in shown]
    return Gallery(
        id=f"gallery-{i}-{kind}",
        title=title + (f", {run.name}" if named else ""),
        reading=reading,
        pictures=shown,
        table=Table(
            columns=["picture", "label", "score" if kind == "ood" else "uncertainty"],
            rows=rows,
            caption=title,
        ),
        commands=[run.command("uncertainty")],
    )


def _place(album: Album, arrays: Arrays, j: int, kind: str, i: int) -> str:
    """Where the album of run i holds thumbnail j, so that its neighbours can be shown; empty where it does not."""
    sets = arrays.get("thumbnail_set")  # results of earlier versions have none
    of = str(sets[j]) if sets is not None and sets.shape == arrays["thumbnail_key"].shape else ""
    at = album.find(str(arrays["thumbnail_key"][j]), strange=kind == "ood", of=of)
    return "" if at is None else f"{i}:{at}"


def order(arrays: Arrays, kind: str) -> np.ndarray:
    """The positions of one kind's thumbnails: certain ones rising, the others falling in their score."""
    if not all(name in arrays and len(arrays[name]) == len(arrays[FIELDS[0]]) for name in FIELDS):
        return np.empty(0, dtype=int)
    if arrays["thumbnails"].ndim != 4 or arrays["thumbnails"].dtype != np.uint8:
        return np.empty(0, dtype=int)
    at = np.flatnonzero(arrays["thumbnail_kind"].astype(str) == kind)
    values = arrays["thumbnail_uncertainty"][at].astype(float)
    return at[np.argsort(values if kind == "certain" else -values, kind="stable")][:MOST]


def picture(arrays: Arrays, j: int, value: str) -> Picture:
    """One thumbnail with its words."""
    pixels = arrays["thumbnails"][j]
    return Picture(
        uri=data_uri(pixels),
        label=str(arrays["thumbnail_label"][j]) or str(arrays["thumbnail_key"][j]),
        key=str(arrays["thumbnail_key"][j]),
        value=value,
        pixelated=max(pixels.shape[:2]) <= COARSE,
    )


def data_uri(pixels: np.ndarray) -> str:
    """uint8 (h, w, 3) as a PNG inside the page."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
