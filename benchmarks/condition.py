"""Are forecasts better that know which view they forecast? The recipe `demo` with `heads.condition`, on a CPU.

    OMP_NUM_THREADS=1 python benchmarks/condition.py --runs runs/condition --out benchmarks/results/condition-cpu.jsonl

Three seeds with and without. kNN (k 20), coverage of 90 % intervals, skill and R-AUROC of the mean log scale are those
of `prosmin evaluate` on the test blocks. `overlap` splits the forecasts of all test images by what the two views have
in common, relative to both, into thirds: mean coverage and mean CRPS of each, the hardest first. `typical` is the
coverage of what a user gets: the forecast from the evaluation view, compared with the typical view. Lines found in the
file are not made again, finished runs not repeated.
"""

import argparse
import dataclasses
import os
import platform
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch

from prosmin import config as configs
from prosmin.data.image_sets import Pictures, load_pictures
from prosmin.data.views import draws_of_step, view_parameters
from prosmin.encoder import Encoder, load
from prosmin.evaluation.forecasts import Forecasts, make_forecasts
from prosmin.evaluation.metrics.coverage import standardised
from prosmin.evaluation.run import evaluate
from prosmin.models.condition import condition
from prosmin.scoring import gaussian_crps
from prosmin.training.pretrain import pretrain
from sections import append_missing

SEEDS, VALUES = range(3), ("false", "true")
WIDTH = 1.6448536  # half the width of the 90 % interval, in scales
THIRDS = 3
COMMON = 6  # place in a condition of the common area as a share of both views'


def coverage(forecasts: Forecasts) -> torch.Tensor:
    """Share of each forecast's coordinates within their 90 % intervals, (V, N)."""
    return (standardised(forecasts).abs() <= WIDTH).double().mean(-1)


def overlap(encoder: Encoder, pictures: Pictures) -> dict[str, list[float]]:
    """Mean of each third of the forecasts by the common area of given and forecast view, the smallest first."""
    forecasts = make_forecasts(encoder, pictures, seed=0)
    config = dataclasses.replace(encoder.config.views, local=0)
    draws = draws_of_step(config, seed=0, step=0, positions=torch.arange(len(pictures)))
    given = view_parameters(pictures.sizes, config, draws)
    common = condition(given, given.flip(0))[..., COMMON]
    each = {"common": common, "coverage_90": coverage(forecasts), "crps": gaussian_crps(*forecasts)}
    thirds = common.flatten().argsort().chunk(THIRDS)
    return {name: [x.flatten()[part].mean().item() for part in thirds] for name, x in each.items()}


def typical(encoder: Encoder, pictures: Pictures) -> float:
    """Coverage of the typical view by the forecast that a user gets."""
    found = encoder(pictures)
    assert found.scale is not None
    return coverage(Forecasts(found.mean[None], found.scale[None], encoder.observe(pictures)[None])).mean().item()


def judge(value: str, seed: int, *, runs: Path) -> dict[str, Any]:
    """One run and the rest of its line."""
    fields = {"heads.condition": value, "training.seed": str(seed), "compute.accelerator": "cpu"}
    config = configs.resolve(recipe="demo", overrides=fields)
    run = pretrain(config, runs / f"{'told' if value == 'true' else 'plain'}-s{seed}")
    rows = evaluate(run, protocols=["knn", "uncertainty"])
    encoder, test = load(run, device="cpu"), load_pictures(f"{config.data.spec}@test")
    uncertainty = rows["uncertainty"]["metrics"]
    names = ("coverage_90", "joint_coverage_90", "joint_coverage_90_radius", "energy_skill_climatology", "pit_distance")
    with torch.inference_mode():
        measured = {
            "knn": rows["knn"]["metrics"]["top1"],
            **{name: uncertainty[name] for name in names},
            "r_auroc_scale": rows["uncertainty"]["sets"]["test"]["mean_log_scale"]["r_auroc"],
            "overlap": overlap(encoder, test),
            "typical": typical(encoder, test),
        }
    return measured | {
        "threads": torch.get_num_threads(),
        "fingerprint": configs.fingerprint(config),
        "hardware": f"CPU, {platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "command": "OMP_NUM_THREADS=1 python benchmarks/condition.py --runs runs/condition "
        "--out benchmarks/results/condition-cpu.jsonl",
    }


def main() -> None:
    """The lines that are missing, one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    jobs = [{"value": value, "seed": seed} for seed in SEEDS for value in VALUES]
    append_missing(options.out, jobs, partial(judge, runs=options.runs))


if __name__ == "__main__":
    main()
