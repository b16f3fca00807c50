"""Does the quality check of `prosmin inspect` find damaged images, and does cleanvision find them better?

    pip install cleanvision
    python benchmarks/inspect_quality.py --data DIR --out benchmarks/results/inspect-quality-cpu.json

DIR holds flowers102-test.parquet, imagenette160/val-*.parquet, cifar10-test.parquet and photos64.parquet, each with a
column image. The limits of src/prosmin/inspect/quality.py were chosen on the training files of the first three sets and
on photos64. After a first trial on the first 1,000 images of the files above, whose false alarms were looked at, the
measures of brightness and sharpness were changed. So the 1,000 images after those are judged here; they played no part.
The 64 photographs did: all were used when the measures were chosen, and their figures are not independent.

Images of each set are damaged in every way of DAMAGES and saved as JPEG. prosmin judges a folder of the clean images
with at most 5 % damaged ones, damaged in one way. cleanvision's limits do not depend on the folder except for the size,
so it judges all files at once: with its own limits, and with limits at which it flags 1 % of these clean images, the
best that a choice of limits could do for it. Recall is the share of damaged images with the issue, false alarms the
share of clean images with it. Clean images are as published: some are truly dark, blurred or grey. Seconds are those of
one thread.
"""

import argparse
import contextlib
import io
import json
import os
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image, ImageFilter

from prosmin.data.decode import decode_bounded
from prosmin.files import write_text
from prosmin.inspect.quality import find_quality_issues, measure
from prosmin.machine import describe_machine

SETS = {
    "flowers102, 64 px": "flowers102-test.parquet",
    "imagenette, 160 px": "imagenette160/val-*.parquet",
    "cifar10, 32 px": "cifar10-test.parquet",
    "photographs, 500 px": "photos64.parquet",
}
SEEN, CLEAN, DAMAGED = 1_000, 1_000, 60
"""Images of a set that were looked at before, clean images after those, and how many are also damaged in each way."""
TUNED = 0.01
"""False alarms of cleanvision with limits of our choice."""
SHARE = 20
"""One of so many images of a folder is damaged."""
NAMES = {"bright": "light", "greyscale": "grayscale"}
"""Kinds that cleanvision calls otherwise."""

Damage = Callable[[Image.Image, np.random.Generator], Image.Image]


def curve(change: Callable[[np.ndarray], np.ndarray]) -> Damage:
    """Changes the brightness, from 0 to 1, of every pixel."""

    def damaged(image: Image.Image, _: np.random.Generator) -> Image.Image:
        return Image.fromarray(np.uint8(np.clip(change(np.asarray(image) / 255), 0, 1) * 255 + 0.5))

    return damaged


def blurred(radius: float) -> Damage:
    """By a Gaussian of this standard deviation in pixels."""
    return lambda image, _: image.filter(ImageFilter.GaussianBlur(radius))


def one_colour(noise: float) -> Damage:
    """A random colour with noise of this standard deviation in grey levels."""

    def damaged(image: Image.Image, rng: np.random.Generator) -> Image.Image:
        pixels = rng.normal(rng.integers(20, 236, 3), noise, (image.height, image.width, 3))
        return Image.fromarray(np.uint8(np.clip(pixels, 0, 255) + 0.5))

    return damaged


def resized(factor: float) -> Damage:
    """Both sides by this factor."""
    return lambda image, _: image.resize((max(1, int(image.width * factor)), max(1, int(image.height * factor))))


def strip(ratio: int) -> Damage:
    """The middle of the image, so many times as wide as it is high."""

    def damaged(image: Image.Image, _: np.random.Generator) -> Image.Image:
        height = max(1, image.width // ratio)
        top = (image.height - height) // 2
        return image.crop((0, top, image.width, top + height))

    return damaged


DAMAGES: dict[str, dict[str, Damage]] = {
    "dark": {
        **{f"times {scale}": curve(lambda x, scale=scale: x * scale) for scale in (0.3, 0.2, 0.1, 0.05)},  # type: ignore[misc]
        **{f"gamma {gamma}": curve(lambda x, gamma=gamma: x**gamma) for gamma in (4, 8)},  # type: ignore[misc]
    },
    "bright": {
        **{f"times {scale}": curve(lambda x, scale=scale: x * scale) for scale in (4, 8)},  # type: ignore[misc]
        **{f"faded to {share}": curve(lambda x, share=share: 1 - (1 - x) * share) for share in (0.3, 0.1)},  # type: ignore[misc]
    },
    "blurry": {f"radius {radius} px": blurred(radius) for radius in (1, 1.5, 2, 3, 4, 6)},
    "low_information": {f"one colour, noise {noise}": one_colour(noise) for noise in (0, 2, 4, 6)},
    "greyscale": {
        "stored as grey": lambda image, _: image.convert("L"),
        "stored as RGB": lambda image, _: image.convert("L").convert("RGB"),
    },
    "odd_size": {f"times {factor}": resized(factor) for factor in (0.2, 0.4, 3)},
    "odd_aspect_ratio": {f"{ratio} to 1": strip(ratio) for ratio in (3, 5)},
}
Files = dict[str, list[Path]]  # "clean", or "kind: level" -> files


def encoded_images(data: Path, pattern: str) -> list[bytes]:
    """The images of a set that are judged."""
    files = sorted(data.glob(pattern))
    images = [row.as_py() for file in files for row in pq.read_table(file, columns=["image"])["image"]]
    return images[SEEN : SEEN + CLEAN] or images  # the photographs are too few to leave any out


def write_files(images: list[bytes], folder: Path) -> Files:
    """The clean images and the damaged ones."""
    rng = np.random.default_rng(0)
    files: Files = {"clean": [folder / f"clean-{i:04d}.jpg" for i in range(len(images))]}
    for file, image in zip(files["clean"], images, strict=True):
        file.write_bytes(image)
    sources = [Image.open(io.BytesIO(image)).convert("RGB") for image in images[:DAMAGED]]
    for kind, levels in DAMAGES.items():
        for number, (level, damage) in enumerate(levels.items()):
            written = [folder / f"{kind}-{number}-{i:02d}.jpg" for i in range(len(sources))]
            for file, source in zip(written, sources, strict=True):
                damage(source, rng).save(file, quality=90)
            files[f"{kind}: {level}"] = written
    return files


def with_prosmin(files: Files) -> dict[str, set[Path]]:
    """Kind -> files that have the issue; damaged files are judged in small portions beside the clean ones."""
    measured, sizes = {}, {}
    for file in (file for paths in files.values() for file in paths):
        picture = decode_bounded(file.read_bytes())
        measured[file], sizes[file] = measure(picture), Image.open(file).size[::-1]
    flagged: dict[str, set[Path]] = {kind: set() for kind in DAMAGES}
    clean = files["clean"]
    portion = max(1, len(clean) // SHARE)
    for name, paths in files.items():
        for first in range(0, len(paths), portion):
            judged = clean if name == "clean" else paths[first : first + portion]
            folder = clean if name == "clean" else clean + judged
            columns = {key: np.array([measured[file][key] for file in folder]) for key in measured[folder[0]]}
            found = find_quality_issues(columns, np.array([sizes[file] for file in folder]))
            for row, kind, _ in found:
                if folder[row] in set(judged):
                    flagged[kind].add(folder[row])
    return flagged


def with_cleanvision(folder: Path) -> dict[str, tuple[set[Path], dict[Path, float]]]:
    """Kind -> files that have the issue, and the score of every file, lower is worse."""
    imagelab = import_module("cleanvision").Imagelab  # no part of the development environment
    names = {kind: NAMES.get(kind, kind) for kind in DAMAGES}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        lab = imagelab(data_path=str(folder))
        lab.find_issues({name: {} for name in names.values()}, n_jobs=1, verbose=False)
    table = lab.issues.set_index(lab.issues.index.map(Path))
    return {
        kind: (set(table.index[table[f"is_{name}_issue"]]), table[f"{name}_score"].to_dict())
        for kind, name in names.items()
    }


def tuned(scores: dict[Path, float], clean: list[Path]) -> set[Path]:
    """Files below the limit at which a hundredth of the clean ones are flagged."""
    limit = float(np.quantile([scores[file] for file in clean], TUNED))
    return {file for file, score in scores.items() if score < limit}


def judged(flagged: dict[str, set[Path]], files: Files) -> dict[str, dict[str, float]]:
    """Recall of each way of damage, and false alarms of each kind on the clean images."""

    def share(kind: str, paths: list[Path]) -> float:
        return round(sum(file in flagged[kind] for file in paths) / len(paths), 4)

    recall = {name: share(name.partition(":")[0], paths) for name, paths in files.items() if name != "clean"}
    return {"recall": recall, "false_alarms": {kind: share(kind, files["clean"]) for kind in DAMAGES}}


def seconds_per_thousand(clean: list[Path], folder: Path) -> dict[str, float]:
    """Time of one thread; in an inspection the images are decoded anyway."""
    started = time.perf_counter()
    pictures = [decode_bounded(file.read_bytes()) for file in clean]
    decoded = time.perf_counter()
    for picture in pictures:
        measure(picture)
    measured = time.perf_counter()
    with_cleanvision(folder)
    ended = time.perf_counter()
    spans = {"decoding": decoded - started, "prosmin": measured - decoded, "cleanvision": ended - measured}
    return {name: round(span * 1_000 / len(clean), 2) for name, span in spans.items()}


def main() -> None:
    """Every set, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="link the clean images that are flagged here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for name, pattern in SETS.items():
        images = encoded_images(options.data, pattern)
        with tempfile.TemporaryDirectory() as folder:
            files = write_files(images, Path(folder))
            theirs = with_cleanvision(Path(folder))
            flagged = {
                "prosmin": with_prosmin(files),
                "cleanvision": {kind: found for kind, (found, _) in theirs.items()},
                "cleanvision_tuned": {kind: tuned(scores, files["clean"]) for kind, (_, scores) in theirs.items()},
            }
            if options.keep is not None:
                _keep(flagged["prosmin"], set(files["clean"]), options.keep / pattern.split("/")[0])
            for file in (file for key, paths in files.items() if key != "clean" for file in paths):
                file.unlink()
            results[name] = {
                "clean": len(images),
                "damaged": min(DAMAGED, len(images)),
                **{program: judged(found, files) for program, found in flagged.items()},
                "seconds_per_1000": seconds_per_thousand(files["clean"], Path(folder)),
            }
        print(name, json.dumps(results[name], indent=1), flush=True)
    told = {
        "meaning": "recall: share of damaged images with the issue; false_alarms: share of clean images with it",
        "sets": results,
        "cleanvision": version("cleanvision"),
        "hardware": describe_machine(torch.device("cpu")),
        "command": "python benchmarks/inspect_quality.py --data DIR --out benchmarks/results/inspect-quality-cpu.json",
    }
    write_text(options.out, json.dumps(told, indent=1) + "\n")


def _keep(flagged: dict[str, set[Path]], clean: set[Path], folder: Path) -> None:
    for kind, paths in flagged.items():
        for file in paths & clean:
            (folder / kind).mkdir(parents=True, exist_ok=True)
            os.link(file, folder / kind / file.name)


if __name__ == "__main__":
    main()
