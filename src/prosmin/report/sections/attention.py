"""Attention maps: where the class token of a ViT's last block looks."""

import base64
import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from prosmin.evaluation.metrics.table import percent
from prosmin.report.blocks import Block, Cell, Row, Section, Shot, Strip, Strips, Table
from prosmin.report.runs import Arrays, Run
from prosmin.report.sections.images import Album, read_album

SIDE = 112  # pixels of an image on the page
HEADS = 12  # maps of single heads beside the mean
COARSE = 64  # views up to this side keep hard pixels
STOPS = (0.0, 0.35, 0.65, 0.85, 1.0)  # of the largest weight; the colours grow lighter all the way
COLOURS = ((10, 8, 40), (105, 25, 110), (220, 85, 60), (250, 170, 50), (252, 250, 190))


def attention_section(runs: Sequence[Run]) -> Section:
    """The maps of each run that has a ViT; without one there is no such section."""
    found = [(i, run, album) for i, run in enumerate(runs) if (album := read_album(run)) and has_attention(run, album)]
    blocks: list[Block] = [strips(run, i, album, named=len(runs) > 1) for i, run, album in found]
    lead = (
        "Which patches the class token of the last block, the image's features, is made from: the brighter, the "
        "more weight a patch has. Each map is drawn up to its own maximum. From the surest image to the least sure."
    )
    return Section(id="attention", title="Attention", lead=lead, blocks=blocks)


def has_attention(run: Run, album: Album) -> bool:
    """Whether the maps are there and fit their images."""
    arrays: Arrays = run.arrays["pictures"]
    weights, views, places = (arrays.get(name) for name in ("attention", "attention_view", "attention_of"))
    return (
        weights is not None
        and views is not None
        and places is not None
        and weights.ndim == 4
        and weights.size > 0
        and views.ndim == 4
        and views.dtype == np.uint8
        and len(weights) == len(views) == len(places)
        and bool(((places >= 0) & (places < album.shown)).all())
    )


def strips(run: Run, i: int, album: Album, *, named: bool) -> Strips:
    """A row per image: what the encoder sees, the mean over the heads, every head."""
    arrays = run.arrays["pictures"]
    weights, places = arrays["attention"].astype(float), arrays["attention_of"].astype(int)
    heads, height, width = weights.shape[1:]
    rows: list[Row] = []
    found = []
    for one, view, place in zip(weights, arrays["attention_view"], places, strict=True):
        maps = [one.mean(0), *one[:HEADS]]
        names = ["mean", *(f"head {h + 1}" for h in range(len(maps) - 1))]
        label = album.label[place] or album.key[place]
        shots = [Shot(uri=_uri(_resized(view)), caption="picture", alt=label)]
        shots += [
            Shot(uri=_uri(overlay(view, values)), caption=name, alt=f"{label}: attention, {name}")
            for name, values in zip(names, maps, strict=True)
        ]
        found.append(
            Strip(label=label, key=album.key[place], value=album.texts[place], place=f"{i}:{place}", shots=shots)
        )
        rows.append([Cell(album.key[place], head=True), label, album.texts[place], *map(_spread, maps)])
    title = "Attention of the last block" + (f", {run.name}" if named else "")
    patches = height * width
    columns = ["picture", "label", "uncertainty", "mean of heads", *(f"head {h + 1}" for h in range(min(heads, HEADS)))]
    on_patches = percent(float(weights.sum((2, 3)).mean()))
    return Strips(
        id=f"figure-attention-{i}",
        title=title,
        reading=f"{height} × {width} patches, {heads} heads. {on_patches} of the class token's attention is on the "
        "patches, the rest on itself.",
        strips=found,
        table=Table(
            columns=columns,
            rows=rows,
            caption=title,
            note=f"Numbers: over how many of the {patches} patches the weight spreads, exp of its entropy.",
        ),
        commands=[run.command("pictures")],
    )


def _spread(weights: np.ndarray) -> str:
    """exp(entropy) of weights (h, w): the number of patches, were they weighed alike."""
    shares = weights.ravel() / max(float(weights.sum()), 1e-12)
    return f"{np.exp(-(shares * np.log(np.maximum(shares, 1e-12))).sum()):.1f}"


def overlay(view: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weights (h, w), from 0 to their maximum, as colours over the grey image (s, s, 3): (SIDE, SIDE, 3) uint8."""
    share = (255 * weights / max(float(weights.max()), 1e-12)).round().astype(np.uint8)
    light = np.asarray(Image.fromarray(share).resize((SIDE, SIDE), Image.Resampling.BICUBIC)) / 255.0
    colour = np.stack([np.interp(light, STOPS, channel) for channel in zip(*COLOURS, strict=True)], axis=2)
    grey = _resized(view).mean(2, keepdims=True)
    return (0.62 * colour + 0.38 * grey).round().astype(np.uint8)


def _resized(view: np.ndarray) -> np.ndarray:
    how = Image.Resampling.NEAREST if view.shape[0] <= COARSE else Image.Resampling.BICUBIC
    return np.asarray(Image.fromarray(view).resize((SIDE, SIDE), how))


def _uri(pixels: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="JPEG", quality=85, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
