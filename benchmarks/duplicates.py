"""How many copies of images are found, by kind of copy, and how many different images are taken for copies?

    python benchmarks/duplicates.py --data DIR --out benchmarks/results/duplicates-cpu.json

DIR holds flowers102-test.parquet and imagenette160/train-*.parquet (column image). Of each set 2,000 images are the
folder; of 200 of them one copy is added, a kind at a time, and then all kinds at once. A copy counts as found if it is
in the group of its original. The thresholds were chosen on other images: flowers102-train, the first file of
Imagenette, CIFAR-10 and SVHN; Imagenette's last two files are used here. Groups of originals were looked at: those
of `COPIES_BY_EYE` are copies in the published set itself, all others are false.
"""

import argparse
import hashlib
import io
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from prosmin.data.decode import bounded, decode
from prosmin.encoder import load
from prosmin.encoder.neighbours import pixel_hash
from prosmin.inspect.duplicates import DuplicateGroup, find_duplicates
from prosmin.inspect.fingerprint import fingerprint
from prosmin.machine import describe_machine

ENCODER, ORIGINALS, COPIED = "cifar10-vit", 2_000, 200
SETS = {"flowers102-test": "flowers102-test.parquet", "imagenette160": "imagenette160/train-0000[23]-*.parquet"}
COPIES_BY_EYE: dict[str, set[tuple[int, ...]]] = {
    "flowers102-test": {(343, 666), (736, 1311), (1037, 1108), (1164, 1656), (1186, 1995)},
    "imagenette160": set(),
}

Change = Callable[[Image.Image, random.Random], bytes]


def encoded(image: Image.Image, kind: str = "JPEG", **options: int) -> bytes:
    """The bytes of a file; a JPEG of quality 90 by default, as programs write them after a change."""
    data = io.BytesIO()
    image.save(data, kind, **({"quality": 90} | options if kind == "JPEG" else options))
    return data.getvalue()


def resized(factor: float) -> Change:
    """Both sides times the factor."""
    return lambda image, _: encoded(
        image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.BICUBIC)
    )


def cropped(share: float) -> Change:
    """A share of each side, anywhere in the image."""

    def crop(image: Image.Image, rng: random.Random) -> bytes:
        width, height = round(image.width * share), round(image.height * share)
        left, top = rng.randint(0, image.width - width), rng.randint(0, image.height - height)
        return encoded(image.crop((left, top, left + width, top + height)))

    return crop


def brightened(factor: float) -> Change:
    """All values times the factor."""
    return lambda image, _: encoded(ImageEnhance.Brightness(image).enhance(factor))


KINDS: dict[str, Change] = {
    "other container (PNG)": lambda image, _: encoded(image, "PNG"),
    "resized x0.5": resized(0.5),
    "resized x0.75": resized(0.75),
    "resized x1.5": resized(1.5),
    "JPEG quality 30": lambda image, _: encoded(image, quality=30),
    "JPEG quality 50": lambda image, _: encoded(image, quality=50),
    "JPEG quality 75": lambda image, _: encoded(image, quality=75),
    "WebP": lambda image, _: encoded(image, "WEBP", quality=80),
    "mirrored": lambda image, _: encoded(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
    "cropped 90 %": cropped(0.9),
    "cropped 80 %": cropped(0.8),
    "cropped 70 %": cropped(0.7),
    "brightness -10 %": brightened(0.9),
    "brightness +10 %": brightened(1.1),
    "rotated 2 degrees": lambda image, _: encoded(image.rotate(2, Image.Resampling.BICUBIC)),
}


@dataclass(frozen=True)
class Folder:
    """The arguments of `find_duplicates` for N files."""

    content: NDArray[np.str_]
    pixels: NDArray[np.int64]
    fingerprints: NDArray[np.uint8]
    features: NDArray[np.float32]
    sizes: NDArray[np.int64]

    def groups(self, rows: NDArray[np.int64]) -> list[DuplicateGroup]:
        """Of some of the files; members are places in `rows`."""
        return find_duplicates(
            content=self.content[rows].tolist(),
            pixels=self.pixels[rows],
            fingerprints=self.fingerprints[rows],
            features=self.features[rows],
            sizes=self.sizes[rows],
            sharpness=np.zeros(len(rows)),
            links=np.zeros(len(rows), dtype=bool),
        )


def read(files: list[bytes], features: NDArray[np.float32]) -> Folder:
    """Hashes, fingerprints and sizes of files."""
    pictures = [bounded(decode(data)) for data in files]
    sizes = torch.tensor([picture.shape[1:] for picture in pictures])
    hashes = [pixel_hash(picture[None], size[None]) for picture, size in zip(pictures, sizes, strict=True)]
    return Folder(
        np.array([hashlib.blake2b(data, digest_size=16).hexdigest() for data in files]),
        torch.cat(hashes).numpy(),
        np.stack([fingerprint(picture) for picture in pictures]),
        features,
        sizes.numpy(),
    )


def images(data: Path, pattern: str) -> Iterator[bytes]:
    """The files of a set, in order."""
    for path in sorted(data.glob(pattern)):
        for row in pq.read_table(path, columns=["image"])["image"].to_pylist():
            yield row["bytes"] if isinstance(row, dict) else row


def measure(
    files: list[bytes], features: Callable[[list[bytes]], NDArray[np.float32]], by_eye: set[Any]
) -> dict[str, Any]:
    """Recall by kind of copy, and the groups of originals."""
    rng, count = random.Random(0), len(files)
    chosen = list(range(0, count, count // COPIED))[:COPIED]
    copies = {"same bytes": [files[row] for row in chosen]}
    for kind, change in KINDS.items():
        copies[kind] = [change(Image.open(io.BytesIO(files[row])).convert("RGB"), rng) for row in chosen]
    everything = files + [data for some in copies.values() for data in some]
    folder = read(everything, features(everything))

    def recall(groups: list[DuplicateGroup], first: int) -> float:
        of = {row: number for number, group in enumerate(groups) for row in group.members}
        return sum(row in of and of[row] == of.get(first + k) for k, row in enumerate(chosen)) / len(chosen)

    start = time.perf_counter()
    originals = folder.groups(np.arange(count))
    seconds = time.perf_counter() - start
    found = [{"rows": group.members, "score": round(group.score, 3), "notes": group.notes[1:]} for group in originals]
    alone = {
        kind: recall(folder.groups(np.r_[:count, count + k * COPIED : count + (k + 1) * COPIED]), count)
        for k, kind in enumerate(copies)
    }
    together = folder.groups(np.arange(len(everything)))
    return {
        "images": count,
        "recall": alone,
        "recall, all kinds in one folder": {
            kind: recall(together, count + k * COPIED) for k, kind in enumerate(copies)
        },
        "groups of originals": found,
        "copies in the set itself": sum(group.members in by_eye for group in originals),
        "false groups": sum(group.members not in by_eye for group in originals),
        "seconds for the originals": round(seconds, 2),
    }


def main() -> None:
    """Every file is embedded once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    encoder = load(ENCODER)
    found = {}
    for name, pattern in SETS.items():
        files = [data for data, _ in zip(images(options.data, pattern), range(ORIGINALS), strict=False)]
        found[name] = measure(files, lambda given: encoder.features(given).numpy(), COPIES_BY_EYE[name])
        print(json.dumps({name: found[name]}, indent=1))
    told = {
        "meaning": f"share of {COPIED} copies in the group of their original, by set and kind of copy",
        "encoder": ENCODER,
        "hash": encoder.card["hash"],
        "sets": found,
        "hardware": describe_machine(encoder.device),
        "command": "python benchmarks/duplicates.py --data DIR --out benchmarks/results/duplicates-cpu.json",
    }
    options.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
