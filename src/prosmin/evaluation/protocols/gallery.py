"""Images for the report: which are shown, their thumbnails, and a planar map of the features."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from prosmin.data.image_sets import Pictures, PictureSet, in_memory

LARGEST = 64  # side of a tile
BLOCK = 8  # a JPEG works on squares of 8 px: tiles that are multiples do not run into each other
QUALITY = 70


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """Tiles of one size in rows of `columns`, from the top left: the bytes of a JPEG."""

    jpeg: bytes
    tile: int
    columns: int


def tile_side(pictures: Pictures) -> int:
    """The side of a tile that shows what these images hold, and not more."""
    middle = float(pictures.sizes.amin(1).float().median())
    return min(LARGEST, BLOCK * math.ceil(middle / BLOCK))


def square(pictures: Pictures, i: int, side: int) -> np.ndarray:
    """The centred square of an image, resized: (side, side, 3) uint8."""
    height, width = (int(n) for n in pictures.sizes[i])
    own = min(height, width)
    top, left = (height - own) // 2, (width - own) // 2
    pixels = pictures.images[i, :, top : top + own, left : left + own].permute(1, 2, 0).cpu().numpy()
    if own == side:
        return pixels
    # Reduced in two steps, so that the images of a large set cost a millisecond each.
    return np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC, reducing_gap=2.0))


def label_of(pictures: PictureSet, i: int) -> str:
    """The name of an image's class; empty where there is none."""
    return pictures.classes[int(pictures.labels[i])] if pictures.labels is not None and pictures.classes else ""


def sheet(tiles: Sequence[np.ndarray]) -> Sheet:
    """Tiles (s, s, 3) uint8 as one image, about square."""
    side = tiles[0].shape[0]
    columns = math.ceil(math.sqrt(len(tiles)))
    whole = np.zeros((math.ceil(len(tiles) / columns) * side, columns * side, 3), dtype=np.uint8)
    for i, tile in enumerate(tiles):
        top, left = side * (i // columns), side * (i % columns)
        whole[top : top + side, left : left + side] = tile
    buffer = io.BytesIO()
    Image.fromarray(whole).save(buffer, format="JPEG", quality=QUALITY, subsampling="4:4:4", optimize=True)
    return Sheet(jpeg=buffer.getvalue(), tile=side, columns=columns)


PICTURES = 24  # of each kind
THUMBNAIL = 96  # their side at most


class Ranked(NamedTuple):
    """A set with a number for each image, (N,)."""

    pictures: PictureSet
    values: Tensor


def gallery(test: Ranked, strange: list[Ranked]) -> dict[str, np.ndarray]:
    """The ends of the test images by uncertainty, and the first of each out-of-distribution set by strangeness."""
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


DIRECTIONS = 30  # principal directions that t-SNE starts from: of more it becomes slow, not different
PERPLEXITY = 30.0
STEPS = 750  # a quarter less time than scikit-learn's thousand; the map keeps as many neighbours
FEWEST = 12  # points below which t-SNE has nothing to arrange


def planar_map(features: Tensor, *, seed: int) -> np.ndarray:
    """Features (N, D) -> points (N, 2) in the unit square: t-SNE of the normalised features, started from their PCA.

    About 3 s for 1,500 points on one core. Fewer than a dozen points, and features that are all alike, stay as the
    PCA has them.
    """
    normal = F.normalize(features.double(), dim=1)
    centred = normal - normal.mean(0)
    left, sizes, _ = torch.linalg.svd(centred, full_matrices=False)
    main = F.pad(left * sizes, (0, max(0, 2 - len(sizes))))[:, :DIRECTIONS].numpy()  # (N, up to DIRECTIONS)
    spread = float(main[:, 0].std())
    if len(main) < FEWEST or spread < 1e-6:
        return _in_unit_square(main[:, :2])
    from sklearn.manifold import TSNE  # a second to import, and nothing else of an evaluation needs it

    tsne = TSNE(
        n_components=2,
        perplexity=min(PERPLEXITY, (len(main) - 1) / 3),
        init=(1e-4 / spread * main[:, :2]).astype(np.float32),
        max_iter=STEPS,
        random_state=seed,
    )
    return _in_unit_square(tsne.fit_transform(main.astype(np.float32)))


def kept_neighbours(features: Tensor, points: np.ndarray, *, k: int) -> float:
    """The share of the k nearest images by features that are among the k nearest points of a map too."""
    normal = F.normalize(features.double(), dim=1)
    plane = torch.from_numpy(points).double()
    nearest = []
    for distances in (-normal @ normal.T, torch.cdist(plane, plane)):
        distances.fill_diagonal_(torch.inf)
        nearest.append(distances.topk(k, largest=False).indices)
    return (nearest[0][:, :, None] == nearest[1][:, None, :]).any(2).double().mean().item()


def _in_unit_square(points: np.ndarray) -> np.ndarray:
    """Moved and scaled, the same in both directions; points that are all one end in the middle."""
    low, high = points.min(0), points.max(0)
    span = float((high - low).max())
    return ((points - (low + high) / 2) / span + 0.5 if span > 0 else np.full_like(points, 0.5)).astype(np.float32)
