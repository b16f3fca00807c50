"""What do `loss.identification` and `loss.same_view` do to features and forecast? Three seeds, on a CPU.

    python benchmarks/identification.py --out benchmarks/results/identification-cpu.jsonl

Four epochs of ProSMIN without either change, with identification, and with identification but no view scored against
the target's embedding of the same view; recipes `demo` (ResNet) and `demo-vit`. On held-out blocks of the training
photographs: kNN (k 20) and how well the forecasts of 200 images hold: coverage, squared error ratio, energy score
against the best constant scale and against a forecast that does not look. Runs found in the file are not repeated; test
images are never read.
"""

import argparse
import json
import os
import platform
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from demo_recipe import BEFORE
from prosmin import config as configs
from prosmin.data.image_sets import load_pictures
from prosmin.data.subsets import held_out_mask
from prosmin.encoder import load
from prosmin.evaluation.forecasts import make_forecasts
from prosmin.evaluation.metrics.coverage import judge_coverage
from prosmin.evaluation.metrics.skill import judge_skill
from prosmin.evaluation.probes.held_out import held_out_knn
from prosmin.training.pretrain import pretrain
from sections import append_missing

JUDGED, KNOWN = 200, 300
"""Images whose forecasts are judged, and images that the constant scale and the climatology are fitted on."""
VARIANTS = ((0.0, True), (0.5, True), (0.5, False))
"""Weight of identification; whether a view meets its own target."""
KEPT = (
    "coverage_50", "coverage_90", "coverage_95", "squared_error_ratio", "pit_distance", "energy_skill",
    "energy_skill_climatology",
)  # fmt: skip


def judge(recipe: str, identification: float, same_view: bool, seed: int, epochs: int) -> dict[str, Any]:
    """One run and the rest of its line."""
    form = BEFORE if recipe == "demo" else {}
    fields = form | {
        "loss.identification": str(identification),
        "loss.same_view": str(same_view).lower(),
        "training.seed": str(seed),
        "training.epochs": str(epochs),
    }
    config = configs.resolve(recipe=recipe, overrides=fields | {"compute.accelerator": "cpu"})
    pictures = load_pictures(config.data.spec)
    assert pictures.labels is not None
    with tempfile.TemporaryDirectory() as folder:
        run = pretrain(config, Path(folder) / "run")
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        encoder = load(run)
    held = held_out_mask(pictures.labels, pictures.keys, pictures.spec)
    judged, known = (
        make_forecasts(encoder, pictures.subset(places), seed=0)
        for places in (held.nonzero()[:JUDGED, 0], (~held).nonzero()[:KNOWN, 0])
    )
    found = judge_coverage(judged, seed=0)[0] | judge_skill(judged, known, seed=0)[0]
    return {
        "knn_top1": held_out_knn(encoder, pictures)["knn_top1"],
        "feature_rank": last["feature_rank"],
        **{name: found[name] for name in KEPT},
        "fingerprint": configs.fingerprint(config),
        "hardware": f"CPU, {platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "command": "python benchmarks/identification.py --out benchmarks/results/identification-cpu.jsonl",
    }


def main() -> None:
    """The runs that are missing, one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipes", default="demo,demo-vit")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    jobs = [{"recipe": recipe, "identification": weight, "same_view": same_view, "seed": seed, "epochs": options.epochs}
            for seed in range(options.seeds) for recipe in options.recipes.split(",")
            for weight, same_view in VARIANTS]  # fmt: skip
    append_missing(options.out, jobs, judge)


if __name__ == "__main__":
    main()
