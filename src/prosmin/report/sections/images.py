"""Single images of a run: thumbnails, neighbours, and galleries of the surest, least sure and strangest."""

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from PIL import Image

from prosmin.report.blocks import Block, Cell, Gallery, Missing, Picture, Row, Section, Table
from prosmin.report.commands import evaluate_command
from prosmin.report.metrics import apart
from prosmin.report.runs import Arrays, Run

TEST = "test"  # the name of the evaluated set; all others are out of distribution


@dataclass(frozen=True, kw_only=True)
class Album:
    """M images by name; the first S have a thumbnail, a place on the map and K neighbours among the M."""

    jpeg: bytes
    tile: int
    columns: int
    evaluated: int
    points: np.ndarray  # (S, 2), within the unit square
    neighbours: np.ndarray  # (S, K)
    similarity: np.ndarray  # (S, K)
    key: Sequence[str]
    label: Sequence[str]
    set: Sequence[str]
    value: np.ndarray  # (M,) uncertainty of test images, out-of-distribution score of others

    @property
    def shown(self) -> int:
        """S: how many are on the map."""
        return len(self.points)

    @cached_property
    def familiar(self) -> np.ndarray:
        """Which images are of the evaluated set, (M,)."""
        return np.array([name == TEST for name in self.set])

    @cached_property
    def texts(self) -> list[str]:
        """The values as text, rounded within their kind."""
        texts = np.empty(len(self.value), dtype=object)
        for kind in (self.familiar, ~self.familiar):
            texts[kind] = apart(self.value[kind].tolist())
        return list(texts)

    @cached_property
    def classes(self) -> list[str]:
        """The labels of the test images on the map, the most frequent first; empty without labels."""
        familiar = np.array(self.label[: self.shown])[self.familiar[: self.shown]]
        names, counts = np.unique(familiar, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return [str(names[i]) for i in order if names[i]]

    def find(self, key: str, *, strange: bool, of: str = "") -> int | None:
        """The place of an image with a thumbnail, by name, kind and the set it is of.

        Results of earlier versions do not say the set: then None where images of several sets have that name.
        """
        places = [i for i in self._places.get(key, []) if self.familiar[i] != strange and of in ("", self.set[i])]
        return places[0] if len({self.set[i] for i in places}) == 1 else None

    @cached_property
    def _places(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for i in range(self.shown):
            found.setdefault(self.key[i], []).append(i)
        return found


def read_album(run: Run) -> Album | None:
    """The album of a run; None where there is none or its parts do not fit each other."""
    arrays = run.arrays.get("pictures", {})
    names = ("sheet", "tile", "columns", "evaluated", "map", "neighbours", "similarity", "key", "label", "set", "value")
    if any(name not in arrays for name in names) or not _fits(arrays):
        return None
    return Album(
        jpeg=arrays["sheet"].tobytes(),
        tile=int(arrays["tile"]),
        columns=int(arrays["columns"]),
        evaluated=int(arrays["evaluated"]),
        points=arrays["map"].astype(float),
        neighbours=arrays["neighbours"].astype(int),
        similarity=arrays["similarity"].astype(float),
        key=[str(key) for key in arrays["key"]],
        label=[str(label) for label in arrays["label"]],
        set=[str(name) for name in arrays["set"]],
        value=arrays["value"].astype(float),
    )


def _fits(arrays: Arrays) -> bool:
    points, near, count = arrays["map"], arrays["neighbours"], arrays["key"].size
    return (
        points.ndim == 2
        and points.shape[1] == 2
        and bool(np.isfinite(points).all())
        and near.ndim == 2
        and near.shape == arrays["similarity"].shape
        and 0 < len(near) == len(points) <= count
        and near.size > 0
        and near.min() >= 0
        and near.max() < count
        and all(arrays[name].shape == (count,) for name in ("key", "label", "set", "value"))
        and all(arrays[name].shape == () and arrays[name] > 0 for name in ("tile", "columns", "evaluated"))
        and arrays["sheet"].dtype == np.uint8
    )


def sheet_uri(album: Album) -> str:
    """The thumbnails as one image inside the page."""
    return "data:image/jpeg;base64," + base64.b64encode(album.jpeg).decode("ascii")


def album_json(album: Album, places: np.ndarray) -> str:
    """What script.js needs to show an image and its neighbours; places (S, 2) are shares of width and height."""
    labels = list(dict.fromkeys(album.label))
    sets = list(dict.fromkeys(album.set))
    place = {label: i for i, label in enumerate(labels)}
    return embed(
        {
            "tile": album.tile,
            "columns": album.columns,
            "labels": labels,
            "label": [place[label] for label in album.label],
            "key": album.key,
            "sets": sets,
            "set": [sets.index(name) for name in album.set],
            "strange": [name != TEST for name in sets],
            "value": album.texts,
            "at": np.round(places, 4).tolist(),
            "near": album.neighbours.tolist(),
            "like": np.round(album.similarity, 4).tolist(),
        }
    )


def embed(value: object) -> str:
    """JSON for a script element, which ends at the first `</`: no `<` stays in it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


MOST = 24  # images a gallery
COARSE = 64  # images up to this side are shown with hard pixels
FIELDS = ("thumbnails", "thumbnail_uncertainty", "thumbnail_label", "thumbnail_kind", "thumbnail_key")

KINDS = {
    "certain": ("Most certain", "The lowest uncertainty of the test images, surest first."),
    "uncertain": ("Least certain", "The highest uncertainty of the test images, least sure first."),
    "ood": ("Most out of distribution", "Images from outside the training set that score highest."),
}


def pictures_section(runs: Sequence[Run]) -> Section:
    """The three galleries of each run."""
    blocks: list[Block] = []
    for i, run in enumerate(runs):
        album = read_album(run)
        found = [g for kind in KINDS if (g := gallery(run, i, kind, album, named=len(runs) > 1))]
        blocks += found
        if not found:
            what = f"{run.name} has no images" if len(runs) > 1 else "No images yet"
            blocks.append(Missing(what=what, command=evaluate_command(run, "uncertainty")))
    lead = "Select an image to see it larger, with its name in full and the test images nearest to it."
    return Section(
        id="pictures",
        title="Pictures",
        lead=lead if any(b.kind == "gallery" for b in blocks) else "",
        blocks=blocks,
    )


def gallery(run: Run, i: int, kind: str, album: Album | None, *, named: bool) -> Gallery | None:
    """The images of one kind in order; None where the run kept none."""
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
