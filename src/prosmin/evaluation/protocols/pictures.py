"""pictures: single images for the report: a map of the features, neighbours, thumbnails, attention.

Neighbours are searched among all test images. To keep the page small, thumbnails are stored for at most SHOWN of them:
the images of the galleries and random ones, each with its neighbours.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from prosmin.data.image_sets import PictureSet, in_memory
from prosmin.data.views import evaluation_view
from prosmin.encoder import Encoder
from prosmin.encoder.detectors import fit_knn_distance
from prosmin.encoder.neighbours import nearest
from prosmin.evaluation.context import Context
from prosmin.evaluation.protocol import Protocol, Result
from prosmin.evaluation.protocols.gallery import (
    PICTURES,
    kept_neighbours,
    label_of,
    planar_map,
    sheet,
    square,
    tile_side,
)
from prosmin.models.vit import class_attention, has_class_attention
from prosmin.randomness import generator

SHOWN = 1500  # test images with a thumbnail and a place on the map
NEIGHBOURS = 8
ATTENTION = 8  # images with attention maps, from the most to the least certain
ATTENTION_SIDE = 128  # their side


class Outlier(NamedTuple):
    """An out-of-distribution image: its set, its index there, its score."""

    set: str
    place: int
    score: float


def run(context: Context) -> Result:
    """Arrays, and one metric: the share of neighbours that the map keeps."""
    test, features = context.sets["test"], context.features("test")
    uncertainty = context.uncertainty("test")
    k = min(NEIGHBOURS, len(test) - 1)
    order = uncertainty.argsort()
    spread = order[torch.linspace(0, len(order) - 1, min(ATTENTION, len(order))).round().long()]
    first = torch.cat([order[:PICTURES], order[-PICTURES:], spread]).unique()
    chosen = choose(features, first, k=k, most=SHOWN, seed=context.seed)
    outliers = most_distant(context)
    outside = [context.features(one.set)[one.place][None] for one in outliers]

    found = [neighbours_of(features, chosen, k), *(nearest(features, feature, k) for feature in outside)]
    indices = torch.cat([places for _, places in found])  # (S, k) in test
    named = torch.tensor(sorted(set(indices.flatten().tolist()) - set(chosen.tolist())), dtype=torch.int64)
    row = torch.empty(len(test), dtype=torch.int64)  # index of a test image in the arrays: chosen, outliers, named
    row[chosen] = torch.arange(len(chosen))
    row[named] = len(chosen) + len(outliers) + torch.arange(len(named))
    points = planar_map(torch.cat([features[chosen], *outside]), seed=context.seed)
    arrays = {
        "map": points,  # (S, 2): those with a thumbnail, which are first in the arrays of names
        "neighbours": row[indices].numpy().astype(np.int32),  # (S, k)
        "similarity": torch.cat([cosines for cosines, _ in found]).numpy().astype(np.float32),
        "evaluated": np.array(len(test)),
    }
    return Result(
        metrics={"map_neighbours_kept": kept_neighbours(features[chosen], points[: len(chosen)], k=k)},
        settings={
            "shown": len(chosen),
            "evaluated": len(test),
            "map": "t-SNE of the normalised features, started from their PCA",
            "neighbours": "cosine of the features, among all test images",
        },
        arrays=arrays
        | _thumbnails(context, chosen, outliers)
        | _names(context, uncertainty, chosen, outliers, named)
        | _attention(context.encoder, test, spread, row),
    )


def _thumbnails(context: Context, chosen: Tensor, outliers: list[Outlier]) -> dict[str, np.ndarray]:
    shown = in_memory(context.sets["test"].subset(chosen))
    others = [in_memory(context.sets[one.set].subset(torch.tensor([one.place]))) for one in outliers]
    side = tile_side(shown)
    tiles = [square(shown, i, side) for i in range(len(shown))]
    made = sheet(tiles + [square(other, 0, side) for other in others])
    return {
        "sheet": np.frombuffer(made.jpeg, dtype=np.uint8),
        "tile": np.array(made.tile),
        "columns": np.array(made.columns),
    }


def _names(
    context: Context, uncertainty: Tensor, chosen: Tensor, outliers: list[Outlier], named: Tensor
) -> dict[str, np.ndarray]:
    """(M,) each; the value of a test image is its uncertainty, that of an OOD image its OOD score."""
    test = context.sets["test"]
    pictures = [("test", test, int(i), float(uncertainty[i])) for i in chosen]
    pictures += [(one.set, context.sets[one.set], one.place, one.score) for one in outliers]
    pictures += [("test", test, int(i), float(uncertainty[i])) for i in named]
    return {
        "set": np.array([name for name, _, _, _ in pictures]),
        "key": np.array([pool.keys[i] for _, pool, i, _ in pictures]),
        "label": np.array([label_of(pool, i) for _, pool, i, _ in pictures]),
        "value": np.array([value for _, _, _, value in pictures]),
    }


def choose(features: Tensor, first: Tensor, *, k: int, most: int, seed: int) -> Tensor:
    """Sorted indices of at most `most` images: `first`, then random ones, each with its k neighbours: (S,)."""
    if len(features) <= most:
        return torch.arange(len(features))
    random = torch.randperm(len(features), generator=generator(seed, 0, "shown images"))
    seeds = torch.cat([first, random])[:most]
    _, near = neighbours_of(features, seeds, k)
    found = set(first[:most].tolist())
    for seed_image, others in zip(seeds.tolist(), near.tolist(), strict=True):
        if len(together := found | {seed_image, *others}) <= most:
            found = together
    return torch.tensor(sorted(found))


def neighbours_of(features: Tensor, places: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest other images of some images of a set: (N, D), (n,) -> cosines (n, k), indices (n, k)."""
    return nearest(features, features[places], k, groups=torch.arange(len(features)), query_groups=places)


def most_distant(context: Context) -> list[Outlier]:
    """The PICTURES out-of-distribution images that are furthest from train, in that order."""
    if not context.ood:
        return []
    score = fit_knn_distance(context.placed("train"))
    found: list[Outlier] = []
    for name in context.ood:
        values = score(context.features(name)).cpu()
        top = values.argsort(descending=True)[:PICTURES]
        found += [Outlier(name, int(i), float(values[i])) for i in top]
    return sorted(found, key=lambda one: -one.score)[:PICTURES]


def _attention(encoder: Encoder, test: PictureSet, places: Tensor, row: Tensor) -> dict[str, np.ndarray]:
    """The views of some images and the attention of the last block to their patches; empty without a ViT."""
    backbone = encoder.method.get_submodule("online.backbone")
    if not has_class_attention(backbone):
        return {}
    some, views = in_memory(test.subset(places)), encoder.config.views
    x = evaluation_view(some.images.to(encoder.device), some.sizes.to(encoder.device), views)
    weights = class_attention(backbone, x).float().cpu()  # (A, heads, h, w)
    mean, std = (torch.tensor(values, device=x.device).view(3, 1, 1) for values in (views.mean, views.std))
    seen = (x.float() * std + mean).clamp(0, 1)
    if seen.shape[-1] > ATTENTION_SIDE:
        seen = torch.nn.functional.interpolate(seen, size=ATTENTION_SIDE, mode="bilinear", antialias=True)
    return {
        "attention": weights.numpy(),
        "attention_view": (255 * seen).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy(),
        "attention_of": row[places].numpy().astype(np.int32),
    }


PROTOCOL = Protocol(
    name="pictures",
    title="Map of the test images",
    run=run,
    labels="unused",
    ood="used",
    uncertainty=True,
    default=True,
    paper=True,
    section="map",
)
