"""What `prosmin embed` costs beside the encoder itself, and whether its memory grows with the set.

    python benchmarks/embed.py --out benchmarks/results/embed-cpu.json
    python benchmarks/embed.py --recipe demo --data photos --out benchmarks/results/embed-photos-cpu.json

JPEG files, cut from the embedded photographs, go through the whole command: reading, decoding, views, networks, file.
Beside it, in the same run and in turns, the same networks see the same pictures already decoded in memory. The encoder
is untrained, which costs the same. The memory is the peak of a process of its own, for a set and for a larger one.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from prosmin import config as configs
from prosmin.benchmark.machine import describe_machine
from prosmin.benchmark.timing import synchronise
from prosmin.data.feed import Batch
from prosmin.data.given import picture_batches
from prosmin.data.photos import load_photograph, photograph_files
from prosmin.data.pictures import load_pictures
from prosmin.embed import embed
from prosmin.embed.request import Request
from prosmin.encoder import Encoder, load, untrained
from prosmin.files import write_text

PEAK = """
import resource, sys
from prosmin.cli import main
status = main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
sys.exit(status)
"""


def write_pictures(folder: Path, count: int, *, size: tuple[int, int]) -> str:
    """JPEG files of one size (width, height), each another piece of a photograph; the SPEC comes back."""
    folder.mkdir()
    photographs = [load_photograph(path) for path in photograph_files().values()]
    random = torch.Generator().manual_seed(0)
    for i in range(count):
        photograph = photographs[i % len(photographs)]
        height, width = photograph.shape[1:]
        top, left = (int(torch.randint(0, side // 2, (), generator=random)) for side in (height, width))
        piece = photograph[:, top : top + height // 2, left : left + width // 2]
        Image.fromarray(piece.permute(1, 2, 0).numpy()).resize(size).save(folder / f"{i:06d}.jpg", quality=90)
    return f"folder:{folder}"


def forward(encoder: Encoder, batches: list[Batch], *, views: int) -> float:
    """Seconds of the networks alone."""
    began = time.perf_counter()
    for batch in batches:
        encoder.summarise(batch, views=views)
    synchronise(encoder.device)
    return time.perf_counter() - began


def whole(encoder: Path, spec: str, out: Path, *, views: int) -> float:
    """Seconds of the command, the loading of the encoder included."""
    out.unlink(missing_ok=True)
    began = time.perf_counter()
    embed(encoder, Request(data=spec, out=out, reference="none", views=views))
    return time.perf_counter() - began


def compare(folder: Path, spec: str, *, views: int, repeats: int) -> dict[str, Any]:
    """Pictures a second of both, taken in turns, and their ratio."""
    encoder = load(folder)
    pictures = load_pictures(spec)
    batches = list(picture_batches(pictures, size=encoder.batch_size, device=encoder.device))
    forward(encoder, batches[:2], views=views)
    rows = [
        (forward(encoder, batches, views=views), whole(folder, spec, folder / "x.parquet", views=views))
        for _ in range(repeats)
    ]
    ratios = [alone / all_of_it for alone, all_of_it in rows]
    alone, all_of_it = (statistics.median(column) for column in zip(*rows, strict=True))
    return {
        "views": views,
        "pictures": len(pictures),
        "batch_size": encoder.batch_size,
        "networks_images_per_second": round(len(pictures) / alone, 1),
        "embed_images_per_second": round(len(pictures) / all_of_it, 1),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def peak_mib(encoder: Path, spec: str, out: Path) -> int:
    """Peak memory of a process that embeds the set."""
    arguments = ["embed", str(encoder), "--data", spec, "--out", str(out), "--reference", "none", "--views", "0"]
    done = subprocess.run([sys.executable, "-c", PEAK, *arguments], check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1]) // 1024


def main() -> None:
    """Make pictures, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipe", default="imagenet-vit-small")
    parser.add_argument("--pictures", type=int, default=1024)
    parser.add_argument("--data", metavar="SPEC", help="other pictures than these JPEG files, for the speed")
    parser.add_argument("--size", type=int, nargs=2, default=(500, 375), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--views", type=int, nargs="+", default=(0, 2))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        encoder = untrained(configs.resolve(recipe=options.recipe)).save(work / "encoder")
        spec = options.data or write_pictures(work / "pictures", options.pictures, size=tuple(options.size))
        larger = write_pictures(work / "larger", 4 * options.pictures, size=(64, 48))
        smaller = write_pictures(work / "smaller", options.pictures, size=(64, 48))
        report = {
            "command": " ".join(["python", *sys.argv]),
            "machine": describe_machine(load(encoder).device),
            "recipe": options.recipe,
            "data": options.data or f"JPEG files of {options.size[0]} x {options.size[1]}",
            "speed": [compare(encoder, spec, views=views, repeats=options.repeats) for views in options.views],
            "peak_mib": {
                f"{count} pictures": peak_mib(encoder, set_spec, work / f"{count}.parquet")
                for count, set_spec in ((options.pictures, smaller), (4 * options.pictures, larger))
            },
        }
    write_text(options.out, json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
