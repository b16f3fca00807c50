"""Is the report of a large run made within 20 s, and smaller than 15 MB?

    OMP_NUM_THREADS=1 python benchmarks/report.py --out benchmarks/results/report-cpu.json

The runs are those of the tests (tests/support/fake_run.py), as large as they get: 10,000 evaluated images, 1,500
of them with thumbnails of 64 px, and a log of 20,000 lines. One alone and four side by side; and the seconds the
map of 1,500 images takes, which `prosmin evaluate` spends once.
"""

import argparse
import importlib
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from prosmin.evaluation.protocols.gallery import LARGEST, planar_map
from prosmin.evaluation.protocols.pictures import SHOWN
from prosmin.report import write_report

EVALUATED, LINES, RUNS = 10_000, 20_000, 4
SECONDS, BYTES = 20.0, 15_000_000


def large_run(folder: Path, seed: int) -> Path:
    """A finished run of the largest size."""
    run = fake_run(folder, seed=seed, evaluated=EVALUATED, shown=SHOWN, side=LARGEST)
    lines = [{"step": step, "epoch": step / 100, "loss": 1 + 1 / step, "lr": 1e-3} for step in range(1, LINES + 1)]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return run


def fake_run(folder: Path, **options: Any) -> Path:
    """That of the tests, which are no package."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))
    return importlib.import_module("fake_run").fake_run(folder, **options)


def measured(runs: list[Path], out: Path) -> dict[str, float]:
    """Seconds and size of one page."""
    began = time.perf_counter()
    write_report(runs, out)
    return {"seconds": round(time.perf_counter() - began, 2), "megabytes": round(out.stat().st_size / 1e6, 2)}


def map_seconds() -> float:
    """Seconds of the map of as many images as are shown, features of a ViT-S in clusters."""
    random = torch.Generator().manual_seed(0)
    which = torch.randint(10, (SHOWN,), generator=random)
    features = torch.randn(10, 384, generator=random)[which] + torch.randn(SHOWN, 384, generator=random)
    began = time.perf_counter()
    planar_map(features, seed=0)
    return round(time.perf_counter() - began, 2)


def main() -> None:
    """Make, measure, write; status 1 above the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [large_run(Path(folder) / f"run-{seed}", seed) for seed in range(RUNS)]
        pages = {
            "one run": measured(runs[:1], Path(folder) / "one.html"),
            f"{RUNS} runs": measured(runs, Path(folder) / "all.html"),
        }
    result = {
        "command": " ".join(["python", *sys.argv]),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "evaluated": EVALUATED,
        "thumbnails": SHOWN,
        "limits": {"seconds": SECONDS, "megabytes": BYTES / 1e6},
        "pages": pages,
        "map_seconds": map_seconds(),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    if pages["one run"]["seconds"] > SECONDS or pages["one run"]["megabytes"] * 1e6 > BYTES:
        sys.exit("the report of one run is over its limits")


if __name__ == "__main__":
    main()
