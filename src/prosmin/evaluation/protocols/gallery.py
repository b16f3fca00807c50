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
BLOCK = 8  # a JPEG compresses squares of 8 px: tiles that are multiples do not affect each other
QUALITY = 70


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """Tiles of one size in rows of `columns`, from the top left: the bytes of a JPEG."""

    jpeg: bytes
    tile: int
    columns: int


def tile_side(pictures: Pictures) -> int:
    """The side of a tile: about that of the images, at most LARGEST."""
    middle = float(pictures.sizes.amin(1).float().median())
    return min(LARGEST, BLOCK * math.ceil(middle / BLOCK))


def square(pictures: Pictures, i: int, side: int) -> np.ndarray:
    """The centred square of an image, resized: (side, side, 3) uint8."""
    height, width = (int(n) for n in pictures.sizes[i])
    short = min(height, width)
    top, left = (height - short) // 2, (width - short) // 2
    pixels = pictures.images[i, :, top : top + short, left : left + short].permute(1, 2, 0).cpu().numpy()
    if short == side:
        return pixels
    # Reduced in two steps: a millisecond per image, even for large ones.
    return np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC, reducing_gap=2.0))


def label_of(pictures: PictureSet, i: int) -> str:
    """The name of an image's class; empty if there is none."""
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


PICTURES = 24  # images of each kind
THUMBNAIL = 96  # their largest side


class Ranked(NamedTuple):
    """A set and the values (N,) that its images are ordered by."""

    pictures: PictureSet
    values: Tensor


def gallery(test: Ranked, ood: list[Ranked]) -> dict[str, np.ndarray]:
    """The most and the least certain test images, and the images of each OOD set that are furthest from train."""
    order = test.values.argsort()
    ranks = [("certain", test, order[:PICTURES]), ("uncertain", test, order.flip(0)[:PICTURES])]
    ranks += [("ood", ranked, ranked.values.argsort(descending=True)[:PICTURES]) for ranked in ood]
    rows = [(kind, in_memory(pool.subset(chosen)), values[chosen]) for kind, (pool, values), chosen in ranks]
    shown = [(kind, pool, i) for kind, pool, _ in rows for i in range(len(pool))]
    side = min(THUMBNAIL, max(int(pool.sizes[i].min()) for _, pool, i in shown))  # one size, since they share an array
    return {
        "thumbnails": np.stack([square(pool, i, side) for _, pool, i in shown]),
        "thumbnail_uncertainty": np.concatenate([values.numpy() for _, _, values in rows]),
        "thumbnail_kind": np.array([kind for kind, _, _ in shown]),
        "thumbnail_label": np.array([label_of(pool, i) for _, pool, i in shown]),
        "thumbnail_key": np.array([pool.keys[i] for _, pool, i in shown]),
        "thumbnail_set": np.array([pool.spec if kind == "ood" else "test" for kind, pool, _ in shown]),
    }


DIRECTIONS = 30  # principal directions given to t-SNE: more make it slow and change little
PERPLEXITY = 30.0
STEPS = 750  # as good as scikit-learn's default of 1000, in less time
FEWEST = 12  # points that t-SNE needs


def planar_map(features: Tensor, *, seed: int) -> np.ndarray:
    """Features (N, D) -> points (N, 2) in the unit square: t-SNE of the normalised features, started from their PCA.

    About 3 s for 1,500 points on one core. Fewer than FEWEST points, and features that are all equal, are shown by
    their PCA.
    """
    normal = F.normalize(features.double(), dim=1)
    centred = normal - normal.mean(0)
    left, sizes, _ = torch.linalg.svd(centred, full_matrices=False)
    main = F.pad(left * sizes, (0, max(0, 2 - len(sizes))))[:, :DIRECTIONS].numpy()  # (N, up to DIRECTIONS)
    spread = float(main[:, 0].std())
    if len(main) < FEWEST or spread < 1e-6:
        return _in_unit_square(main[:, :2])
    from sklearn.manifold import TSNE  # takes a second to import

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
    """Shifted and scaled, by one factor in both directions; points that are all equal end in the middle."""
    low, high = points.min(0), points.max(0)
    span = float((high - low).max())
    return ((points - (low + high) / 2) / span + 0.5 if span > 0 else np.full_like(points, 0.5)).astype(np.float32)
