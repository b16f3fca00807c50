"""Attention maps of the class token in the last block of a ViT."""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from prosmin.evaluation.metrics.table import percent
from prosmin.report.blocks import Block, Cell, Row, Section, Strip, Strips, Table
from prosmin.report.runs import Run
from prosmin.report.sections.images import Album, data_uri, read_album

SIDE = 112  # pixels of an image on the page
HEADS = 12  # maps of single heads beside the mean
COARSE = 64  # views up to this side are drawn with visible pixels
STOPS = (0.0, 0.35, 0.65, 0.85, 1.0)  # shares of the largest weight; the colours become steadily lighter
COLOURS = ((10, 8, 40), (105, 25, 110), (220, 85, 60), (250, 170, 50), (252, 250, 190))


def blocks(runs: Sequence[Run]) -> list[Block]:
    """The maps of each run that has a ViT; without one there is no such section."""
    return [strips(run, album) for run in runs if (album := read_album(run)) and has_attention(run, album)]


def has_attention(run: Run, album: Album) -> bool:
    """Whether the maps are there and fit their images."""
    arrays = run.arrays["pictures"]
    if not {"attention", "attention_view", "attention_of"} <= arrays.keys():
        return False
    weights, views, places = (arrays[name] for name in ("attention", "attention_view", "attention_of"))
    fits = weights.ndim == views.ndim == 4 and weights.size > 0 and views.dtype == np.uint8
    inside = bool(((places >= 0) & (places < album.shown)).all())
    return fits and inside and len(weights) == len(views) == len(places)


def strips(run: Run, album: Album) -> Strips:
    """One row per image: what the encoder sees, the mean over the heads, every head."""
    arrays = run.arrays["pictures"]
    weights, places = arrays["attention"].astype(float), arrays["attention_of"].astype(int)
    heads, height, width = weights.shape[1:]
    names = ["mean of heads", *(f"head {h + 1}" for h in range(min(heads, HEADS)))]
    rows: list[Row] = []
    found = []
    for one, view, place in zip(weights, arrays["attention_view"], places, strict=True):
        maps = [one.mean(0), *one[:HEADS]]
        label = album.label[place] or album.key[place]
        shots = [(data_uri(_resized(view), format="JPEG"), "image", label)]
        for name, values in zip(names, maps, strict=True):
            shots.append((data_uri(overlay(view, values), format="JPEG"), name, f"{label}: attention, {name}"))
        found.append(Strip(label, album.texts[place], shots))
        rows.append([Cell(album.key[place], head=True), label, album.texts[place], *map(_spread, maps)])
    title = f"Attention of the last block{run.suffix}"
    note = f"Numbers: how many of the {height * width} patches share the weight, exp(entropy)."
    return Strips(
        id=f"figure-attention-{run.position}",
        title=title,
        reading=f"{height} × {width} patches, {heads} heads. {percent(float(weights.sum((2, 3)).mean()))} of the class "
        "token's attention is on the patches, the rest on itself.",
        strips=found,
        table=Table(columns=["image", "label", "uncertainty", *names], rows=rows, caption=title, note=note),
        commands=[run.command("pictures")],
    )


def _spread(weights: np.ndarray) -> str:
    """exp(entropy) of weights (h, w): as many patches of equal weight have the same entropy."""
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


SECTION = Section(
    id="attention",
    title="Attention",
    lead="The weight of each patch in the class token of the last block, which gives the features of the image: the "
    "brighter, the more weight. Each map is scaled to its own maximum. From the lowest to the highest uncertainty.",
    build=blocks,
)
