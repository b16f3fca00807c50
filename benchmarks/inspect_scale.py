"""How long does `prosmin inspect` take on a large folder, and does its memory grow with the number of images?

    python benchmarks/inspect_scale.py --images 5000 20000 --out benchmarks/results/inspect-scale-cpu.json

For each number of images: a folder of different synthetic JPEGs of 64 x 64 pixels (random colours at 8 x 8 points,
enlarged), then the command as a person starts it, in a process of its own, and the same command again, which has
nothing new to compute: its time is that of comparing the images and of writing the files and the page. Peak memory is
that of the process. The JSON is written after every row.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from prosmin.files import write_text
from prosmin.machine import describe_machine

PEAK = """
import sys
from prosmin.cli import main
status = main(sys.argv[1:])
# Not ru_maxrss, which begins at what the process had that started this one.
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
sys.exit(status)
"""
SIDE, FOLDER = 64, 1000
"""Pixels, and images in a subfolder."""


def write_folder(folder: Path, count: int) -> None:
    """`count` different images."""
    random = np.random.default_rng(0)
    for i in range(count):
        colours = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        path = folder / f"{i // FOLDER:03d}" / f"{i:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(colours).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path, quality=85)


def run(folder: Path, out: Path, encoder: str) -> tuple[float, float]:
    """Seconds of one command, and its peak memory in MiB."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", PEAK, "inspect", str(folder), "--out", str(out), "--encoder", encoder],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return time.perf_counter() - began, int(done.stdout.split()[-1]) / 1024


def measure(count: int, encoder: str, *, once: bool) -> dict[str, float]:
    """One row of the table; with `once` the command is not repeated."""
    with tempfile.TemporaryDirectory() as place:
        folder, out = Path(place) / "images", Path(place) / "out"
        write_folder(folder, count)
        first, peak = run(folder, out, encoder)
        repeated = {}
        if not once:
            again, peak_again = run(folder, out, encoder)
            repeated = {"seconds_again": round(again, 1), "peak_mib_again": round(peak_again)}
        sizes = {path.name: path.stat().st_size for path in out.iterdir()}
    return {
        "images": count,
        "seconds": round(first, 1),
        "images_per_second": round(count / first, 1),
        "peak_mib": round(peak),
        "images_parquet_mb": round(sizes["images.parquet"] / 1e6, 1),
        "page_mb": round(sizes["index.html"] / 1e6, 1),
        **repeated,
    }


def main() -> None:
    """Every number of images in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[5_000, 20_000, 100_000], metavar="N")
    parser.add_argument("--encoder", default="cifar10-vit", metavar="RUN")
    parser.add_argument("--once", action="store_true", help="do not repeat the command")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    command = [
        "python",
        "benchmarks/inspect_scale.py",
        "--images",
        *map(str, options.images),
        *(["--once"] if options.once else []),
        "--out",
        str(options.out),
    ]
    rows: list[dict[str, float]] = []
    for count in options.images:
        rows.append(measure(count, options.encoder, once=options.once))
        print(rows[-1], flush=True)
        found = {
            "command": " ".join(command),
            "hardware": describe_machine(torch.device("cpu")),
            "encoder": options.encoder,
            "rows": rows,
        }
        write_text(options.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
