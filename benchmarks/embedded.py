"""Does every method learn on the embedded photographs? Three seeds, on a CPU.

    python benchmarks/embedded.py --out benchmarks/results/embedded-cpu.jsonl

Recipes `demo` (ResNet) and `demo-vit`, four epochs. kNN (k 20) of a held-out tenth of train, whole blocks of the
photographs, beside the same network untrained and, where it has BatchNorm, with its statistics set. Runs found in the
file are not repeated; test images are never read.
"""

import argparse
import os
import platform
import tempfile
import time
import warnings
from pathlib import Path

import torch

from prosmin import config as configs
from prosmin.data.image_sets import load_pictures
from prosmin.encoder import has_batchnorm, load, set_statistics
from prosmin.evaluation.probes.held_out import held_out_knn
from prosmin.training.pretrain import pretrain
from sections import append_missing

RUNS = [("demo", method) for method in ("prosmin", "dino", "mocov3")]
RUNS += [("demo-vit", method) for method in ("prosmin", "dino", "ibot", "mocov3")]


def judge(recipe: str, method: str, seed: int, epochs: int) -> dict[str, object]:
    """One run and the rest of its line."""
    fields = {"method.name": method, "training.seed": str(seed), "training.epochs": str(epochs)}
    config = configs.resolve(recipe=recipe, overrides=fields | {"compute.accelerator": "cpu"})
    pictures = load_pictures(config.data.spec)
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        run = pretrain(config, Path(folder) / "run")
        seconds = time.monotonic() - began
        encoder = load(run)
    fresh = encoder.untrained()
    line: dict[str, object] = {"knn_trained": held_out_knn(encoder, pictures)["knn_top1"]}
    line |= {"knn_untrained": held_out_knn(fresh, pictures)["knn_top1"]}
    if has_batchnorm(fresh):
        line |= {"knn_untrained_batchnorm_set": held_out_knn(set_statistics(fresh, pictures), pictures)["knn_top1"]}
    return line | {
        "seconds": round(seconds, 1),
        "fingerprint": configs.fingerprint(config),
        "hardware": f"CPU, {platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "command": "python benchmarks/embedded.py --out benchmarks/results/embedded-cpu.jsonl",
    }


def main() -> None:
    """The runs that are missing, one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    jobs = [{"recipe": recipe, "method": method, "seed": seed, "epochs": options.epochs}
            for seed in range(options.seeds) for recipe, method in RUNS]  # fmt: skip
    append_missing(options.out, jobs, judge)


if __name__ == "__main__":
    main()
