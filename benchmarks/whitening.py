"""Does the scoring rule alone keep its rank and learn, with and without whitened targets? On a CPU.

    python benchmarks/whitening.py --out benchmarks/results/whitening-cpu.jsonl

The recipe `demo` as it was (ProSMIN + identification), and the scoring rule alone with the heads of whitened targets:
centred and whitened. kNN (k 20) on a held-out tenth of train, whole blocks of the photographs, and the effective rank
of the features after each epoch. Runs found in the file are not repeated; test images are never read.
docs/figures/whitening.py draws the figure of docs/method.md from the file.
"""

import argparse
import json
import os
import platform
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from demo_recipe import BEFORE
from prosmin import config as configs
from prosmin.training.pretrain import pretrain
from sections import append_missing

ALONE = BEFORE | {
    "loss.identification": "0",
    "loss.beta": "1.5",
    "heads.last": "none",
    "heads.initial_scale": "1",
    "heads.dim": "128",
    "target.momentum": "0.99",
    "optimizer.lr": "1e-3",
}
"""The scoring rule alone, chosen on the held-out tenth: benchmarks/LOG.md."""

VARIANTS: dict[str, dict[str, str]] = {
    "whitened": ALONE | {"target.whitening": "whiten"},
    "centred": ALONE,
    "recipe": BEFORE,
}
STEPS_PER_EPOCH = 26
KEPT = ("step", "loss", "knn_top1", "feature_rank", "target_rank", "whitened_variance", "skill", "scale_mean")


def judge(variant: str, seed: int) -> dict[str, Any]:
    """One run and the rest of its line."""
    often = {"training.knn_every": str(STEPS_PER_EPOCH), "training.log_every": str(STEPS_PER_EPOCH)}
    fields = {"training.seed": str(seed), "compute.accelerator": "cpu", "training.checkpoint_every": "1000"}
    config = configs.resolve(recipe="demo", overrides=VARIANTS[variant] | often | fields)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run = pretrain(config, Path(folder) / "run")
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "title": configs.method_title(configs.to_tree(config)),
        "overrides": VARIANTS[variant],
        "epochs": [{name: row[name] for name in KEPT if name in row} for row in rows],
        "seconds": round(time.monotonic() - began, 1),
        "fingerprint": configs.fingerprint(config),
        "hardware": f"CPU, {platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "command": "python benchmarks/whitening.py --out benchmarks/results/whitening-cpu.jsonl",
    }


def main() -> None:
    """The runs that are missing, one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    names = options.variants.split(",")
    jobs = [{"variant": variant, "seed": seed} for seed in range(options.seeds) for variant in names]
    append_missing(options.out, jobs, judge)


if __name__ == "__main__":
    main()
