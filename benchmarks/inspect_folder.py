"""What does `prosmin inspect` find in a folder of flowers with intruders, copies, damaged and broken files?

    python benchmarks/inspect_folder.py --data DIR --out benchmarks/results/inspect-folder-cpu.json [--encoder NAME ...]

DIR holds flowers102-test, flowers102-train, cifar10-test, svhn-test10k (.parquet) and imagenette160/val-*.parquet, with
a column image. The folder is made anew in a temporary directory:

- 2,000 flowers of 64 px, some under odd names
- 25 intruders from each of four sets: house numbers, CIFAR-10, Imagenette, and pages drawn here. All are 64 px and
  JPEG as the flowers are, so neither size nor codec gives them away. They are 4 to 5 % of the folder: even a perfect
  score leaves few other images among the flagged 5 %.
- 40 copies of each kind of COPIES, each of another flower of the folder
- 20 blurred and 20 dark flowers that are not in the folder otherwise
- 5 files that are no image

It is inspected once with the folder as its own reference and once with 1,020 other flowers. A copy counts as found if
it is in a group with its original. A group is false if it contains flowers that are not copies made here. Flowers-102
itself has some duplicates, so `false_groups` lists the files. An encoder may be timm:NAME@FILE.
"""

import argparse
import io
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageOps

from prosmin.files import write_text
from prosmin.inspect import inspect
from prosmin.inspect.findings import Findings
from prosmin.machine import describe_machine

FLOWERS, INTRUDERS, COPIED, DAMAGED, SIDE = 2_000, 25, 40, 20, 64
INTRUDER_SETS = {"svhn": "svhn-test10k.parquet", "cifar10": "cifar10-test.parquet", "imagenette": "imagenette160/val-*"}
ODD_NAMES = (
    "with space.jpg",
    'it\'s "quoted".jpg',
    "-rf.jpg",
    "花 für ñ.jpg",
    "new\nline.jpg",
    "$(id).jpg",
    "=1+1.jpg",
)
Change = Callable[[Image.Image, np.random.Generator], Image.Image]


def cropped(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A window with 85 % of each side."""
    width, height = round(0.85 * image.width), round(0.85 * image.height)
    left, top = int(rng.integers(image.width - width + 1)), int(rng.integers(image.height - height + 1))
    return image.crop((left, top, left + width, top + height))


def resized(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """To between 0.5 and 2 times the size."""
    side = int(SIDE * rng.choice((0.5, 0.75, 1.5, 2.0)))
    return image.resize((side, side), Image.Resampling.BICUBIC)


COPIES: dict[str, tuple[Change | None, int]] = {
    "exact": (None, 0),
    "resized": (resized, 85),
    "re-encoded": (lambda image, _: image, 40),
    "mirrored": (lambda image, _: ImageOps.mirror(image), 85),
    "cropped": (cropped, 85),
}
"""What is done to a copy, and the quality of its JPEG; an exact copy has the same bytes."""


def darkened(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """To between a twentieth and a quarter of its brightness."""
    scale = rng.uniform(0.05, 0.25)
    return image.point([round(level * scale) for level in range(256)] * 3)


DAMAGES: dict[str, Change] = {
    "blurry": lambda image, rng: image.filter(ImageFilter.GaussianBlur(rng.uniform(1.2, 4))),
    "dark": darkened,
}
"""Kind of the issue -> how it is made."""


@dataclass
class Truth:
    """What the files of the folder are, by name."""

    flowers: list[str] = field(default_factory=list)
    intruders: dict[str, list[str]] = field(default_factory=dict)  # set -> names
    copies: dict[str, dict[str, str]] = field(default_factory=dict)  # kind -> copy -> original
    damaged: dict[str, list[str]] = field(default_factory=dict)  # kind -> names
    broken: list[str] = field(default_factory=list)


def encoded_images(data: Path, pattern: str, count: int) -> list[bytes]:
    """The first images of a set."""
    tables = (pq.read_table(file, columns=["image"])["image"] for file in sorted(data.glob(pattern)))
    return [row.as_py() for table in tables for row in table[:count]][:count]


def jpeg(image: Image.Image, quality: int = 80) -> bytes:
    """The image as a file."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()


def drawn_page(rng: np.random.Generator) -> Image.Image:
    """Lines of text, bars or a curve on white."""
    page = Image.new("RGB", (SIDE, SIDE), (255, 255, 255))
    draw = ImageDraw.Draw(page)
    ink = tuple(int(level) for level in rng.integers(0, 120, 3))
    kind = rng.integers(3)
    if kind == 0:
        for top in range(4, SIDE - 8, 10):
            draw.text((3, top), "".join(chr(97 + letter) for letter in rng.integers(0, 26, 9)), fill=ink)
    elif kind == 1:
        for left in range(6, SIDE - 6, 8):
            draw.rectangle((left, int(rng.integers(8, SIDE - 8)), left + 5, SIDE - 6), fill=ink)
    else:
        draw.line([(x, int(y)) for x, y in enumerate(SIDE / 2 + rng.normal(0, 2, SIDE).cumsum())], fill=ink, width=2)
        draw.rectangle((2, 2, SIDE - 3, SIDE - 3), outline=(0, 0, 0))
    return page


def build(folder: Path, data: Path) -> Truth:
    """Write the test folder."""
    rng, truth = np.random.default_rng(0), Truth()
    spare = FLOWERS + DAMAGED * len(DAMAGES)
    flowers = encoded_images(data, "flowers102-test.parquet", spare)
    for number, image in enumerate(flowers[:FLOWERS]):
        name = ODD_NAMES[number] if number < len(ODD_NAMES) else f"flower-{number:04d}.jpg"
        (folder / name).write_bytes(image)
        truth.flowers.append(name)
    pages = [jpeg(drawn_page(rng)) for _ in range(INTRUDERS)]
    intruders = {name: encoded_images(data, file, INTRUDERS) for name, file in INTRUDER_SETS.items()}
    for name, images in {**intruders, "drawn pages": pages}.items():
        truth.intruders[name] = [f"{name}-{number:02d}.jpg" for number in range(INTRUDERS)]
        for file, image in zip(truth.intruders[name], images, strict=True):
            fitted = ImageOps.fit(Image.open(io.BytesIO(image)).convert("RGB"), (SIDE, SIDE), Image.Resampling.BICUBIC)
            (folder / file).write_bytes(jpeg(fitted))
    chosen = rng.permutation(FLOWERS)
    for start, (kind, (change, quality)) in enumerate(COPIES.items()):
        truth.copies[kind] = {}
        for number in chosen[start * COPIED : (start + 1) * COPIED]:
            image, copy = flowers[number], f"copy-{kind}-{number:04d}.jpg"
            if change is not None:
                image = jpeg(change(Image.open(io.BytesIO(image)).convert("RGB"), rng), quality)
            (folder / copy).write_bytes(image)
            truth.copies[kind][copy] = truth.flowers[number]
    for start, (kind, change) in enumerate(DAMAGES.items()):
        truth.damaged[kind] = [f"{kind}-{number:02d}.jpg" for number in range(DAMAGED)]
        for file, image in zip(truth.damaged[kind], flowers[FLOWERS + start * DAMAGED :], strict=False):
            damaged = change(Image.open(io.BytesIO(image)).convert("RGB"), rng)
            (folder / file).write_bytes(jpeg(damaged, 90))
    broken = (b"", b"no image", flowers[0][:300], flowers[1][: len(flowers[1]) // 2], bytes(2_000))
    truth.broken = [f"broken-{number}.jpg" for number in range(len(broken))]
    for file, content in zip(truth.broken, broken, strict=True):
        (folder / file).write_bytes(content)
    return truth


def judge(findings: Findings, truth: Truth) -> dict[str, Any]:
    """The figures of one inspection."""
    kinds: dict[str, set[str]] = {}
    groups: dict[int, list[str]] = {}
    for issue in findings.issues:
        kinds.setdefault(issue.kind, set()).add(issue.name)
        if issue.kind in ("exact_duplicate", "near_duplicate", "leak") and issue.group is not None:
            groups.setdefault(issue.group, []).append(issue.name)
    group_of = {name: number for number, names in groups.items() for name in names}
    original = {copy: source for copies in truth.copies.values() for copy, source in copies.items()}
    false = [names for names in groups.values() if len({original.get(name, name) for name in names}) > 1]

    def found(kind: str, names: list[str]) -> float:
        return round(sum(name in kinds.get(kind, set()) for name in names) / len(names), 4)

    clean = [name for name in truth.flowers if name not in original.values()]
    return {
        "copies_grouped": {
            kind: sum(copy in group_of and group_of[copy] == group_of.get(source) for copy, source in copies.items())
            / len(copies)
            for kind, copies in truth.copies.items()
        },
        "groups": len(groups),
        "false_groups": sorted(sorted(names) for names in false),
        "flagged": len(kinds.get("ood", set())) / len(findings),
        "intruders_flagged": {name: found("ood", names) for name, names in truth.intruders.items()},
        "flowers_flagged": found("ood", truth.flowers),
        "damaged_found": {kind: found(kind, names) for kind, names in truth.damaged.items()},
        "quality_false_alarms": {
            kind: found(kind, clean)
            for kind in ("dark", "bright", "blurry", "low_information", "odd_size", "odd_aspect_ratio", "greyscale")
        },
        "broken_named": found("unreadable", truth.broken),
    }


def main() -> None:
    """Every encoder, with the folder and with other flowers as the reference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--encoder", nargs="+", default=["cifar10-vit"], metavar="NAME")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="make the folder and the pages here, and keep them")
    options = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        place = options.keep or Path(temporary)
        folder = place / "flowers"
        folder.mkdir(parents=True)
        truth = build(folder, options.data)
        references = {"folder itself": None, "other flowers": f"parquet:{options.data}/flowers102-train.parquet"}
        for number, encoder in enumerate(options.encoder):
            name = "@".join(part.rpartition("/")[2] for part in encoder.split("@"))
            results[name] = {}
            for title, reference in references.items():
                out = place / f"inspection-{number}-{title.replace(' ', '-')}"
                started = time.perf_counter()
                findings = inspect(folder, out, encoder=encoder, reference=reference)
                seconds = time.perf_counter() - started
                results[name][title] = {
                    **judge(findings, truth),
                    "images": len(findings),
                    "seconds": round(seconds, 1),
                    "images_per_second": round(len(findings) / seconds, 1),
                    "page_megabytes": round((out / "index.html").stat().st_size / 1e6, 2),
                }
                print(name, title, json.dumps(results[name][title], indent=1), flush=True)
    told = {
        "meaning": "encoder -> reference -> shares found in the test folder; seconds include the reference's images",
        "results": results,
        "hardware": describe_machine(torch.device("cpu")),
        "command": "python benchmarks/inspect_folder.py --data DIR --out benchmarks/results/inspect-folder-cpu.json "
        f"--encoder {' '.join(results)}",
    }
    write_text(options.out, json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
