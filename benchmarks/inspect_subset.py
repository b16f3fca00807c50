"""Which images should be labelled first? Accuracy of the nearest labelled image, by how those were chosen.

    python benchmarks/inspect_subset.py --data DIR --out benchmarks/results/inspect-subset-cpu.json

DIR holds cifar10-train.parquet and imagenette160/train-*.parquet (columns image and label). The shipped encoder
cifar10-vit gives the features; it has learned from CIFAR-10 without labels. Of 5,000 images some are chosen and
labelled, and all others get the label of the most similar one, by the cosine of centred features. Means over draws of
the 5,000 images, with the standard error.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from prosmin.data.image_sets import load_pictures
from prosmin.encoder import load
from prosmin.files import write_text
from prosmin.inspect.subset import representative
from prosmin.machine import describe_machine

ENCODER = "cifar10-vit"
SETS = {"cifar10": "cifar10-train.parquet", "imagenette": "imagenette160@train"}
IMAGES, COUNTS, DRAWS = 5_000, (20, 50, 100), 5
"""Images of a draw, numbers of labelled ones, and draws."""
Features = NDArray[np.float32]


def normalised(features: Features) -> Features:
    """Centred, of length 1."""
    centred = features - features.mean(axis=0)
    return centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)


def at_random(features: Features, count: int) -> list[int]:
    """The baseline; rows are in random order already."""
    return list(range(count))


def k_centre(features: Features, count: int) -> list[int]:
    """The image farthest from all chosen ones next, from the one nearest to the mean on (Gonzalez, 1985)."""
    points = normalised(features)
    chosen = [int(np.linalg.norm(features - features.mean(axis=0), axis=1).argmin())]
    nearest = points @ points[chosen[0]]
    while len(chosen) < count:
        chosen.append(int(nearest.argmin()))
        nearest = np.maximum(nearest, points @ points[chosen[-1]])
    return chosen


CHOICES: dict[str, Callable[[Features, int], list[int]]] = {
    "random": at_random,
    "k-centre": k_centre,
    "facility location": representative,
}


def accuracy(features: Features, labels: NDArray[np.int64], chosen: list[int]) -> float:
    """Share of the images that are not chosen whose nearest chosen image has their label."""
    points = normalised(features)
    guess = labels[chosen][(points @ points[chosen].T).argmax(axis=1)]
    others = np.setdiff1d(np.arange(len(labels)), chosen)
    return float(np.mean(guess[others] == labels[others]))


def main() -> None:
    """Features once, then every draw, count and choice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    encoder = load(ENCODER)
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for name, place in SETS.items():
        pictures = load_pictures(f"parquet:{options.data}/{place}")
        kept = torch.linspace(0, len(pictures) - 1, min(len(pictures), 2 * IMAGES)).long()
        pictures = pictures.subset(kept)
        assert pictures.labels is not None
        features, labels = encoder.features(pictures).numpy(), pictures.labels.numpy()
        orders = [np.random.default_rng(seed).permutation(len(labels))[:IMAGES] for seed in range(DRAWS)]
        found[name] = {
            str(count): {
                choice: summary([accuracy(features[o], labels[o], choose(features[o], count)) for o in orders])
                for choice, choose in CHOICES.items()
            }
            for count in COUNTS
        }
        print(name, json.dumps(found[name], indent=1), flush=True)
    told = {
        "meaning": "images -> labelled images -> choice: accuracy of the others by 1-NN, mean and standard error",
        "encoder": {"name": ENCODER, "hash": encoder.card.get("hash")},
        "accuracy": found,
        "hardware": describe_machine(encoder.device),
        "command": "python benchmarks/inspect_subset.py --data DIR --out benchmarks/results/inspect-subset-cpu.json",
    }
    write_text(options.out, json.dumps(told, indent=1) + "\n")


def summary(values: list[float]) -> list[float]:
    """Mean and standard error."""
    return [round(statistics.fmean(values), 4), round(statistics.stdev(values) / len(values) ** 0.5, 4)]


if __name__ == "__main__":
    main()
