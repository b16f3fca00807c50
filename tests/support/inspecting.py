"""Folders of small images that differ, for the tests of `prosmin inspect`, and a look into what it writes."""

import csv
import io
import json

import numpy as np
import pyarrow.parquet as pq
from PIL import Image


def picture(seed, *, side=24):
    """A smooth image of its own: random colours at 4 x 4 points, enlarged. As a Pillow image."""
    colours = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(colours).resize((side, side), Image.Resampling.BICUBIC)


def encoded(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def write_images(folder, names, *, seed=0):
    """One image for each name below the folder, all different."""
    for i, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture(1000 * seed + i)))
    return folder


def numbered(count):
    return [f"{i:03d}.png" for i in range(count)]


def rows(out):
    """The rows of images.parquet by their keys."""
    return {row["key"]: row for row in pq.read_table(out / "images.parquet").to_pylist()}


def listed(out):
    """The lines of issues.csv."""
    with (out / "issues.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def about(out, name="images.parquet"):
    return json.loads(pq.read_schema(out / name).metadata[b"prosmin"])
