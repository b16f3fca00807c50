"""Which settings make the scoring rule alone as good as identification in the recipe `demo`? On a CPU.

    python benchmarks/demo_recipe.py --stage choose --out benchmarks/results/demo-recipe-cpu.jsonl
    python benchmarks/demo_recipe.py --stage judge --out benchmarks/results/demo-recipe-cpu.jsonl \\
        --variants before,recipe

Both stages measure kNN (k 20) of a held-out tenth of train, whole blocks of the photographs. `choose` has seed 10 and
never reads test images; `judge` has seeds 0 to 2 and measures kNN and the linear probe of the test blocks too, for the
recipe as it was and the setting that was chosen. Runs found in the file are not repeated.
"""

import argparse
import os
import platform
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from prosmin import config as configs
from prosmin.data.image_sets import load_pictures
from prosmin.encoder import load
from prosmin.evaluation.probes.held_out import held_out_knn
from prosmin.evaluation.run import evaluate
from prosmin.training.pretrain import pretrain
from sections import append_missing

BEFORE = {
    "loss.identification": "0.5",
    "loss.beta": "1",
    "heads.last": "learned",
    "heads.dim": "1024",
    "heads.initial_scale": "0.05",
    "target.momentum": "0.97",
    "target.whitening": "centre",
    "target.normalise": "false",
    "optimizer.lr": "2e-3",
    "heads.radius": "false",
}
"""The recipe as it was, with identification."""

ALONE = {
    "loss.identification": "0",
    "loss.beta": "1.5",
    "heads.last": "whiten",
    "heads.initial_scale": "1",
    "heads.dim": "64",
    "target.momentum": "0.95",
    "target.whitening": "whiten",
    "target.normalise": "true",
    "optimizer.lr": "2e-3",
    "heads.radius": "false",
}
"""The scoring rule alone with whitened heads, as it learns best on CIFAR-10 (LOG.md), with K for a smaller batch."""

UNIT = ALONE | {"heads.radius": "true"}

VARIANTS: dict[str, dict[str, str]] = {
    "before": BEFORE,
    "alone": ALONE,
    "k128": ALONE | {"heads.dim": "128"},
    "m90": ALONE | {"target.momentum": "0.9"},
    "recipe": {"heads.dim": "128"},  # the recipe until embeddings had one length: k128 with heads.radius
    # Since embeddings have one length before the whitening layer:
    "unit-k128": UNIT | {"heads.dim": "128"},
    "unit-k64": UNIT,
    "unit-k32": UNIT | {"heads.dim": "32"},
    "unit-m97": UNIT | {"target.momentum": "0.97"},
    "unit-lr4": UNIT | {"optimizer.lr": "4e-3"},
}
CHOOSE, JUDGE = (10,), range(3)


def judge(stage: str, variant: str, seed: int) -> dict[str, Any]:
    """One run and the rest of its line."""
    fields = {"training.seed": str(seed), "compute.accelerator": "cpu"}
    config = configs.resolve(recipe="demo", overrides=VARIANTS[variant] | fields)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run = pretrain(config, Path(folder) / "run")
        seconds = time.monotonic() - began
        measured = {"held_out_knn": held_out_knn(load(run), load_pictures(config.data.spec))["knn_top1"]}
        if stage == "judge":
            rows = evaluate(run, protocols=["knn", "linear"])
            measured |= {name: rows[name]["metrics"]["top1"] for name in ("knn", "linear")}
    return measured | {
        "title": configs.method_title(configs.to_tree(config)),
        "overrides": VARIANTS[variant],
        "threads": torch.get_num_threads(),
        "seconds": round(seconds, 1),
        "fingerprint": configs.fingerprint(config),
        "hardware": f"CPU, {platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "command": f"python benchmarks/demo_recipe.py --stage {stage} --out benchmarks/results/demo-recipe-cpu.jsonl",
    }


def main() -> None:
    """The runs that are missing, one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stage", choices=["choose", "judge"], required=True)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    seeds = CHOOSE if options.stage == "choose" else JUDGE
    jobs = [{"variant": variant, "seed": seed} for seed in seeds for variant in options.variants.split(",")]
    append_missing(options.out, [{"stage": options.stage} | job for job in jobs], judge)


if __name__ == "__main__":
    main()
