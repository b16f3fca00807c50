"""Which differences between methods are larger than chance? Mean and sd over seeds, and pairwise tests.

    python benchmarks/evidence.py --data DIR --runs RUNS --stage seeds --seeds 0,1,2
    python benchmarks/seeds.py --out benchmarks/results/seeds-cifar10.json

The first trains and judges what is missing and continues what was stopped; the second reads its files. Every pair of
methods of one recipe is compared in kNN, linear top-1 and NLL, over seeds and test images (outcomes.py). `p_holm` is
adjusted for the number of pairs of that recipe and measure (Holm).
"""

import argparse
import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import evidence
from outcomes import compare, unpack
from prosmin.files import write_text

MEASURES = {"knn": ("knn", "correct"), "linear": ("linear", "correct"), "nll": ("linear", "nll")}
METRICS = ("knn.top1", "linear.top1", "linear.nll", "linear.ece", "ood.near_auroc", "ood.far_auroc",
           "uncertainty.r_auroc")  # fmt: skip


def read(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The files of the stage by run, one per seed, in the order of the stage."""
    found = {}
    for run in evidence.STAGES["seeds"]:
        paths = sorted(folder.glob(f"{run.name}-s[0-9]*.json"))
        if paths:
            found[run.name] = [json.loads(path.read_text()) for path in paths]
    return found


def summary(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over the seeds; sd is None for one seed."""
    told: dict[str, Any] = {"seeds": [document["seed"] for document in documents]}
    for path in METRICS:
        protocol, _, metric = path.partition(".")
        values = [row for d in documents if (row := d["results"].get(protocol, {}).get("metrics", {}).get(metric))]
        if values:
            sd = statistics.stdev(values) if len(values) > 1 else None
            told[path] = {"mean": statistics.fmean(values), "sd": sd, "seeds": len(values)}
    return told


def pairwise(runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Every pair of runs of one recipe in every measure."""
    rows = []
    by_recipe: dict[str, list[str]] = defaultdict(list)
    for name, documents in runs.items():
        by_recipe[documents[0]["recipe"]].append(name)
    for recipe, (measure, (protocol, array)) in itertools.product(by_recipe, MEASURES.items()):
        values = {name: [unpack(d["outcomes"][protocol][array], d["outcomes"]["images"]) for d in runs[name]]
                  for name in by_recipe[recipe]}  # fmt: skip
        family = [
            {"recipe": recipe, "measure": measure, "one": one, "two": two} | vars(compare(values[one], values[two]))
            for one, two in itertools.combinations(values, 2)
        ]
        for row, adjusted in zip(family, holm([row["p"] for row in family]), strict=True):
            row["p_holm"] = adjusted
        rows += family
    return rows


def holm(values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given."""
    adjusted, highest = [0.0] * len(values), 0.0
    for rank, place in enumerate(np.argsort(values, kind="stable")):
        highest = max(highest, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = highest
    return adjusted


def main() -> None:
    """Read, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=evidence.RESULTS, help="where the files of evidence.py are")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    runs = read(options.results)
    missing = [run.name for run in evidence.STAGES["seeds"] if run.name not in runs]
    if not runs:
        parser.error(f"{options.results} has no file of the stage seeds: run evidence.py --stage seeds first.")
    document: dict[str, Any] = {
        "runs": {name: summary(documents) for name, documents in runs.items()},
        "missing": missing,
        "pairs": pairwise(runs),
        "command": f"python benchmarks/seeds.py --out benchmarks/results/{options.out.name}",
    }
    write_text(options.out, json.dumps(document, indent=1) + "\n")
    for name, told in document["runs"].items():
        print(name, json.dumps({key: value for key, value in told.items() if key in ("seeds", "knn.top1")}))


if __name__ == "__main__":
    main()
