"""Small pictures for a page: the centred square of each, and many of them as one JPEG."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from prosmin.data.pictures import Pictures
from prosmin.data.streamed import PictureSet

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
    """The side of a tile that shows what these pictures hold, and not more."""
    middle = float(pictures.sizes.amin(1).float().median())
    return min(LARGEST, BLOCK * math.ceil(middle / BLOCK))


def square(pictures: Pictures, i: int, side: int) -> np.ndarray:
    """The centred square of a picture, resized: (side, side, 3) uint8."""
    height, width = (int(n) for n in pictures.sizes[i])
    own = min(height, width)
    top, left = (height - own) // 2, (width - own) // 2
    pixels = pictures.images[i, :, top : top + own, left : left + own].permute(1, 2, 0).cpu().numpy()
    if own == side:
        return pixels
    # Reduced in two steps, so that the pictures of a large set cost a millisecond each.
    return np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC, reducing_gap=2.0))


def label_of(pictures: PictureSet, i: int) -> str:
    """The name of a picture's class; empty where there is none."""
    return pictures.classes[int(pictures.labels[i])] if pictures.labels is not None and pictures.classes else ""


def sheet(tiles: Sequence[np.ndarray]) -> Sheet:
    """Tiles (s, s, 3) uint8 as one picture, about square."""
    side = tiles[0].shape[0]
    columns = math.ceil(math.sqrt(len(tiles)))
    whole = np.zeros((math.ceil(len(tiles) / columns) * side, columns * side, 3), dtype=np.uint8)
    for i, tile in enumerate(tiles):
        top, left = side * (i // columns), side * (i % columns)
        whole[top : top + side, left : left + side] = tile
    buffer = io.BytesIO()
    Image.fromarray(whole).save(buffer, format="JPEG", quality=QUALITY, subsampling="4:4:4", optimize=True)
    return Sheet(jpeg=buffer.getvalue(), tile=side, columns=columns)
