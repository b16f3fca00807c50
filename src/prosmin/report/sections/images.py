"""Single images of a run: galleries by uncertainty and score, and the thumbnails and neighbours for the map."""

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from PIL import Image

from prosmin.report.blocks import Block, Cell, Gallery, Picture, Row, Section, Table
from prosmin.report.runs import Arrays, Run
from prosmin.report.tables import apart

TEST = "test"  # the name of the evaluated set; all others are out of distribution


@dataclass(frozen=True, kw_only=True)
class Album:
    """M images; the first S have a thumbnail, a place on the map and K neighbours among the M."""

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
        """S, the number of images on the map."""
        return len(self.points)

    @cached_property
    def familiar(self) -> np.ndarray:
        """Which images are of the evaluated set, (M,)."""
        return np.array([name == TEST for name in self.set])

    @cached_property
    def texts(self) -> list[str]:
        """The values as text, with as many decimals as uncertainties or scores need."""
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
        """The place of an image with a thumbnail, by its name and its set.

        Results of earlier versions have no set: then None if images of several sets have that name.
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
    """The album of a run; None if there is none or its parts do not fit each other."""
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


def album_json(album: Album, places: np.ndarray) -> str:
    """What script.js needs to show an image and its neighbours; places (S, 2) are shares of width and height."""
    label_ids = {label: i for i, label in enumerate(dict.fromkeys(album.label))}
    set_ids = {name: i for i, name in enumerate(dict.fromkeys(album.set))}
    return embed(
        {
            "tile": album.tile,
            "columns": album.columns,
            "labels": list(label_ids),
            "label": [label_ids[label] for label in album.label],
            "key": album.key,
            "sets": list(set_ids),
            "set": [set_ids[name] for name in album.set],
            "strange": [name != TEST for name in set_ids],
            "value": album.texts,
            "at": np.round(places, 4).tolist(),
            "near": album.neighbours.tolist(),
            "like": np.round(album.similarity, 4).tolist(),
        }
    )


def embed(value: object) -> str:
    """JSON without `<`, because a script element ends at the first `</`."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


MOST = 24  # images of a gallery
COARSE = 64  # images up to this side are drawn with visible pixels
FIELDS = ("thumbnails", "thumbnail_uncertainty", "thumbnail_label", "thumbnail_kind", "thumbnail_key")
KINDS = {
    "certain": ("Lowest uncertainty", "The test images with the lowest uncertainty, lowest first."),
    "uncertain": ("Highest uncertainty", "The test images with the highest uncertainty, highest first."),
    "ood": ("Most out of distribution", "The out-of-distribution images with the highest score, highest first."),
}


def galleries(run: Run) -> list[Gallery]:
    """The galleries of a run."""
    album = read_album(run)
    return [found for kind in KINDS if (found := gallery(run, kind, album))]


def gallery(run: Run, kind: str, album: Album | None) -> Gallery | None:
    """The images of one kind in order; None if the run stored none."""
    arrays = run.arrays.get("uncertainty", {})
    chosen = order(arrays, kind)
    if not len(chosen):
        return None
    title, reading = KINDS[kind]
    values = apart([float(arrays["thumbnail_uncertainty"][j]) for j in chosen])
    pictures = []
    for j, value in zip(chosen, values, strict=True):
        pixels, key = arrays["thumbnails"][j], str(arrays["thumbnail_key"][j])
        pictures.append(
            Picture(
                uri=data_uri(pixels, format="PNG"),
                label=str(arrays["thumbnail_label"][j]) or key,
                key=key,
                value=value,
                pixelated=max(pixels.shape[:2]) <= COARSE,
                place="" if album is None else _place(run, album, arrays, j),
            )
        )
    rows: list[Row] = [[Cell(p.key, head=True), p.label, p.value] for p in pictures]
    columns = ["image", "label", "score" if kind == "ood" else "uncertainty"]
    return Gallery(
        id=f"gallery-{run.position}-{kind}",
        title=title + run.suffix,
        reading=reading,
        pictures=pictures,
        table=Table(columns=columns, rows=rows, caption=title),
        commands=[run.command("uncertainty")],
    )


def _place(run: Run, album: Album, arrays: Arrays, j: int) -> str:
    """Where script.js finds thumbnail j in the album of the run; empty if it is not there."""
    sets = arrays.get("thumbnail_set")  # results of earlier versions have none
    of = str(sets[j]) if sets is not None and sets.shape == arrays["thumbnail_key"].shape else ""
    at = album.find(str(arrays["thumbnail_key"][j]), strange=str(arrays["thumbnail_kind"][j]) == "ood", of=of)
    return "" if at is None else f"{run.position}:{at}"


def order(arrays: Arrays, kind: str) -> np.ndarray:
    """The positions of one kind's thumbnails: the lowest uncertainty first, for the others the highest value."""
    if not all(name in arrays and len(arrays[name]) == len(arrays[FIELDS[0]]) for name in FIELDS):
        return np.empty(0, dtype=int)
    if arrays["thumbnails"].ndim != 4 or arrays["thumbnails"].dtype != np.uint8:
        return np.empty(0, dtype=int)
    at = np.flatnonzero(arrays["thumbnail_kind"].astype(str) == kind)
    values = arrays["thumbnail_uncertainty"][at].astype(float)
    return at[np.argsort(values if kind == "certain" else -values, kind="stable")][:MOST]


def data_uri(pixels: np.ndarray, *, format: Literal["PNG", "JPEG"]) -> str:
    """An image uint8 (h, w, 3) for the page."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=format, optimize=True, **({"quality": 85} if format == "JPEG" else {}))
    return f"data:image/{format.lower()};base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def blocks(runs: Sequence[Run]) -> list[Block]:
    """The three galleries of each run."""
    return [found for run in runs for found in galleries(run)]


SECTION = Section(
    id="images",
    title="Images",
    lead="Select an image to see it larger, with its full name and the test images nearest to it.",
    build=blocks,
    protocol="uncertainty",
    has=galleries,
)
