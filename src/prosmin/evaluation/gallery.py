"""The pictures a report shows: the most and the least certain, and the strangest."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from prosmin.data.pictures import Pictures
from prosmin.data.streamed import PictureSet, in_memory

PICTURES = 24  # of each kind
THUMBNAIL = 96  # their side at most


class Ranked(NamedTuple):
    """A set with a number for each picture, (N,)."""

    pictures: PictureSet
    values: Tensor


def gallery(test: Ranked, strange: list[Ranked]) -> dict[str, np.ndarray]:
    """The ends of the test pictures by uncertainty, and the first of each out-of-distribution set by strangeness."""
    order = test.values.argsort()
    ranks = [("certain", test, order[:PICTURES]), ("uncertain", test, order.flip(0)[:PICTURES])]
    ranks += [("ood", ranked, ranked.values.argsort(descending=True)[:PICTURES]) for ranked in strange]
    rows = [(kind, in_memory(pool.subset(chosen)), values[chosen]) for kind, (pool, values), chosen in ranks]
    shown = [(kind, pool, i) for kind, pool, _ in rows for i in range(len(pool))]
    side = min(THUMBNAIL, max(int(pool.sizes[i].min()) for _, pool, i in shown))  # one size: they share an array
    return {
        "thumbnails": np.stack([_thumbnail(pool, i, side) for _, pool, i in shown]),
        "thumbnail_uncertainty": np.concatenate([values.numpy() for _, _, values in rows]),
        "thumbnail_kind": np.array([kind for kind, _, _ in shown]),
        "thumbnail_label": np.array([_label(pool, i) for _, pool, i in shown]),
        "thumbnail_key": np.array([pool.keys[i] for _, pool, i in shown]),
    }


def _thumbnail(pool: Pictures, i: int, target: int) -> np.ndarray:
    """One picture as (target, target, 3) uint8: its centred square, resized."""
    height, width = (int(n) for n in pool.sizes[i])
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    picture = pool.images[i, :, top : top + side, left : left + side]
    if side != target:
        resized = torch.nn.functional.interpolate(picture[None].float(), size=target, mode="bilinear", antialias=True)
        picture = resized[0].round().clamp(0, 255).to(torch.uint8)
    return picture.permute(1, 2, 0).cpu().numpy()


def _label(pool: Pictures, i: int) -> str:
    return pool.classes[int(pool.labels[i])] if pool.labels is not None and pool.classes else ""
