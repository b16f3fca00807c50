"""The pictures a report shows: the most and the least certain, and the strangest."""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from prosmin.data.streamed import PictureSet, in_memory
from prosmin.evaluation.thumbnails import label_of, square

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
        "thumbnails": np.stack([square(pool, i, side) for _, pool, i in shown]),
        "thumbnail_uncertainty": np.concatenate([values.numpy() for _, _, values in rows]),
        "thumbnail_kind": np.array([kind for kind, _, _ in shown]),
        "thumbnail_label": np.array([label_of(pool, i) for _, pool, i in shown]),
        "thumbnail_key": np.array([pool.keys[i] for _, pool, i in shown]),
        "thumbnail_set": np.array([pool.spec if kind == "ood" else "test" for kind, pool, _ in shown]),
    }
