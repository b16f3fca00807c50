"""Which neighbour should the default out-of-distribution score look at? AUROC by size of the reference and k.

    python benchmarks/neighbours.py --data DIR --out benchmarks/results/neighbours-cpu.json

DIR holds cifar10-train.parquet, cifar100-train.parquet and flowers102-train.parquet (columns image and label): no
test image is read. The shipped encoder cifar10-vit gives the features. What belongs is drawn from CIFAR-10's
training images, which the encoder learned from, references and images to be judged apart; strange are those of
the other two sets or, where the reference is one class alone, those of the other nine. Means over the classes and
over three draws of the reference.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch
from torch import Tensor

from prosmin.data.image_sets import Pictures, load_pictures
from prosmin.encoder import load
from prosmin.encoder.detectors import fit_knn_distance
from prosmin.evaluation.metrics.ranking import auroc
from prosmin.machine import describe_machine

ENCODER = "cifar10-vit"
BELONGING, STRANGE, DRAWS = 12_000, 2_000, 3
"""Images of CIFAR-10 whose features are taken, at most so many of each other set, and draws of a reference."""
SIZES, NEIGHBOURS = (100, 500, 2_000, 10_000), (1, 2, 5, 10, 50)
CLASS_SIZES = (50, 200, 500)
"""References of all classes, and of one class alone."""


def spread(pictures: Pictures, count: int) -> Pictures:
    """So many images, evenly over the set."""
    return pictures.subset(torch.linspace(0, len(pictures) - 1, min(count, len(pictures))).long())


def by_neighbour(reference: Tensor, inside: Tensor, outside: Tensor) -> dict[str, float]:
    """AUROC of every k that is less than the reference, of a tenth and of what the default takes."""
    default = fit_knn_distance(reference).k
    found = {}
    for k in sorted({*NEIGHBOURS, len(reference) // 10, default}):
        if k < len(reference):
            distance = fit_knn_distance(reference, k=k)
            found[str(k)] = auroc(distance(inside), distance(outside))
    return found


def mean(rows: list[dict[str, float]]) -> dict[str, float]:
    """Of each k over the draws, and over the classes where there are some."""
    return {k: round(statistics.fmean(row[k] for row in rows), 4) for k in rows[0]}


def main() -> None:
    """Features once, then every reference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    encoder = load(ENCODER)
    sets = {
        name: load_pictures(f"parquet:{options.data}/{name}-train.parquet")
        for name in ("cifar10", "cifar100", "flowers102")
    }
    own = spread(sets.pop("cifar10"), BELONGING)
    assert own.labels is not None
    assert len(own) == BELONGING, "fewer pictures: references and what is judged by them would overlap"
    features, labels = encoder.features(own), own.labels
    strange = {name: encoder.features(spread(pictures, STRANGE)) for name, pictures in sets.items()}
    orders = [torch.randperm(len(features), generator=torch.Generator().manual_seed(seed)) for seed in range(DRAWS)]
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in (*strange, "one class")}
    for size in SIZES:
        for name, outside in strange.items():
            rows = [by_neighbour(features[o[:size]], features[o[-STRANGE:]], outside) for o in orders]
            found[name][str(size)] = mean(rows)
    for size in CLASS_SIZES:
        rows = []
        for order in orders:
            for label in range(int(labels.max()) + 1):
                same = order[labels[order] == label]
                others = order[labels[order] != label][:STRANGE]
                rows.append(by_neighbour(features[same[:size]], features[same[size:]], features[others]))
        found["one class"][str(size)] = mean(rows)
    told = {
        "meaning": "AUROC: strange set -> pictures in the reference -> k",
        "encoder": ENCODER,
        "auroc": found,
        "hardware": describe_machine(encoder.device),
        "command": "python benchmarks/neighbours.py --data DIR --out benchmarks/results/neighbours-cpu.json",
    }
    options.out.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
