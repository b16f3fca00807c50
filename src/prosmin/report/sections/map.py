"""The map: test images as points; images with similar features are near each other."""

import base64
import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from prosmin.evaluation.metrics.table import number, percent
from prosmin.report.blocks import Atlas, Block, Cell, Key, Row, Section, Table
from prosmin.report.drawing.svg import WIDTH, Words, circle, svg
from prosmin.report.runs import Run
from prosmin.report.sections.images import Album, album_json, read_album
from prosmin.report.tables import apart

COLOURS = 10  # hues c0 to c9 in style.css; the next ten classes repeat them as diamonds
CLASSES = 20
FIFTHS = ("lowest fifth", "second fifth", "middle fifth", "fourth fifth", "highest fifth")
MARGIN = 8  # units between the outermost points and the edge
TURNS = 36  # angles tried for the flattest map
LOWEST = 150  # units of height
NOTE = "results/pictures.npz has every point, its name and its neighbours."


def blocks(runs: Sequence[Run]) -> list[Block]:
    """One map per run."""
    return [atlas(run, album) for run in runs if (album := read_album(run))]


def atlas(run: Run, album: Album) -> Atlas:
    """The drawing, with what script.js needs for its images."""
    classes = album.classes[: CLASSES if len(album.classes) <= CLASSES else CLASSES - 1]
    styles = [style_of(album, j, classes) for j in range(album.shown)]
    fifth = fifths(album)
    title = f"t-SNE of the features{run.suffix}"
    words = Words(id=f"map-{run.position}", title=title, desc=reading(run, album), x="", y="")
    places, height = laid_out(album.points)
    body = [_mark(x, y, style, f) for (x, y), style, f in zip(places, styles, fifth, strict=True)]
    legend = [Key(f"c{j}", label, diamond=j >= COLOURS) for j, label in enumerate(classes)]
    legend += [Key("others", "other classes")] if len(classes) < len(album.classes) else []
    strange = [Key("strange", "out of distribution")] if not album.familiar[: album.shown].all() else []
    return Atlas(
        id=f"figure-{words.id}",
        title=title,
        reading=words.desc,
        svg=Markup(svg(words, body, height=height)),
        legend=[*legend, *strange] if classes else [],
        fifths=[*(Key(f"u{j}", label) for j, label in enumerate(FIFTHS)), *strange],
        run=run.position,
        data=album_json(album, places / [WIDTH, height]),
        sheet="data:image/jpeg;base64," + base64.b64encode(album.jpeg).decode("ascii"),
        table=class_table(album, title) if classes else fifths_table(album, fifth, title),
        commands=[run.command("pictures")],
    )


def laid_out(points: np.ndarray) -> tuple[np.ndarray, int]:
    """Points (S, 2) rotated to the least height and scaled to the drawing, without distortion, and its height."""
    turns = [points - points.mean(0)]
    for angle in np.linspace(0, np.pi, TURNS, endpoint=False)[1:]:
        cos, sin = np.cos(angle), np.sin(angle)
        turns.append(turns[0] @ np.array([[cos, sin], [-sin, cos]]))
    flat = min(turns, key=lambda turned: float(np.ptp(turned[:, 1])))
    middle, span = (flat.min(0) + flat.max(0)) / 2, np.maximum(np.ptp(flat, axis=0), 1e-9)
    wide = WIDTH - 2 * MARGIN
    height = max(math.ceil(wide * span[1] / span[0]) + 2 * MARGIN, LOWEST)
    return (flat - middle) * (wide / span[0]) + [WIDTH / 2, height / 2], height


def reading(run: Run, album: Album) -> str:
    """How many images there are and how far the map can be trusted."""
    on_map = int(album.familiar[: album.shown].sum())
    strange = album.shown - on_map
    text = (
        f"All {number(on_map)} evaluated images."
        if on_map >= album.evaluated
        else f"{number(on_map)} of the {number(album.evaluated)} evaluated images: the galleries and random ones."
    )
    if strange:
        text += f" Rings are the {number(strange)} out-of-distribution images with the highest score."
    kept = run.metrics("pictures").get("map_neighbours_kept")
    if kept is not None:
        text += f" The map keeps {percent(kept)} of each image's nearest neighbours near it."
    return text


def style_of(album: Album, j: int, classes: Sequence[str]) -> str:
    """The style of a point: of its label, of the other labels, or of an out-of-distribution image."""
    if not album.familiar[j]:
        return "strange"
    return f"c{classes.index(album.label[j])}" if album.label[j] in classes else "others"


def fifths(album: Album) -> list[str]:
    """The style of each point by its uncertainty among the test images on the map."""
    familiar = album.familiar[: album.shown]
    values = album.value[: album.shown]
    edges = np.nanquantile(values[familiar], [0.2, 0.4, 0.6, 0.8]) if familiar.any() else np.zeros(4)
    which = np.searchsorted(edges, values, side="left")
    return [f"u{n}" if known else "strange" for n, known in zip(which, familiar, strict=True)]


def _mark(x: float, y: float, style: str, fifth: str) -> str:
    """A circle; a diamond for the second ten classes; a ring for out-of-distribution images."""
    if style.startswith("c") and int(style[1:]) >= COLOURS:
        shape = f"M{x:.1f} {y - 2.9:.1f}l2.9 2.9l-2.9 2.9l-2.9-2.9z"
        return f'<path d="{shape}" class="dot {style} {fifth}"/>'
    radius = 3.2 if style == "strange" else 2.2
    classes = style if style == fifth else f"{style} {fifth}"
    return circle(x, y, radius, f"dot {classes}")


def class_table(album: Album, title: str) -> Table:
    """By class: the images on the map, their uncertainty, and the share of neighbours of the same class."""
    labels = np.array(album.label)
    same = (labels[album.neighbours] == labels[: album.shown, None]).mean(1)
    members = [
        np.flatnonzero((labels[: album.shown] == name) & album.familiar[: album.shown]) for name in album.classes
    ]
    values = apart([float(np.mean(album.value[at])) for at in members])
    rows: list[Row] = [
        [Cell(name, head=True), number(len(at)), value, percent(float(same[at].mean()))]
        for name, at, value in zip(album.classes, members, values, strict=True)
    ]
    neighbours = f"of {album.neighbours.shape[1]} neighbours, same class"
    columns = ["class", "images on the map", "mean uncertainty", neighbours]
    return Table(columns=columns, rows=rows, caption=title, note=NOTE)


def fifths_table(album: Album, fifth: Sequence[str], title: str) -> Table:
    """By uncertainty, for images without labels: the images on the map and their range."""
    rows: list[Row] = []
    for j, label in enumerate(FIFTHS):
        values = album.value[: album.shown][[name == f"u{j}" for name in fifth]]
        ends = apart([float(values.min()), float(values.max())]) if len(values) else ["–", "–"]
        rows.append([Cell(label, head=True), number(len(values)), *ends])
    return Table(columns=["uncertainty", "images on the map", "from", "to"], rows=rows, caption=title, note=NOTE)


SECTION = Section(
    id="map",
    title="Map",
    lead="Every point is a test image; images with similar features are near each other. Point at one to see it, "
    "select it to see its nearest neighbours. Only which images are near each other has a meaning, not the distance "
    "between groups.",
    build=blocks,
    protocol="pictures",
    has=read_album,
)
