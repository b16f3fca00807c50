"""Which label-free score detects OOD images best, with which reference? AUROC by score; no test image is read.

    python benchmarks/strangeness.py cifar10-vit --data DIR --out benchmarks/results/strangeness-cifar10-vit-cpu.json

DIR holds cifar10-train.parquet, cifar100-train.parquet and flowers102-train.parquet (columns image and label). The
encoder is a run folder or a name; it learned from CIFAR-10's training images, of which references and images to be
judged are drawn apart. Strange are the other sets, made-up images and, where the reference is one class, the other
nine classes. Where the flowers are the reference, CIFAR's images are the strange ones. Means over the classes and
over three draws of the reference.
"""

import argparse
import json
import statistics
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from neighbours import BELONGING, DRAWS, STRANGE, spread
from prosmin.data.image_sets import load_pictures
from prosmin.data.inputs import Images
from prosmin.encoder import Encoder, load
from prosmin.encoder.detectors import fit_knn_distance, mean_log_scale
from prosmin.evaluation.metrics.ranking import auroc
from prosmin.machine import describe_machine

MADE_UP = 500
SIZES, CLASS_SIZES, FLOWERS = (500, 2_000, 10_000), (100, 500), 600
"""References of all classes, of one class alone, and of flowers."""


@dataclass(frozen=True)
class Seen:
    """What an encoder says of N images: features (N, D) and mean log scales (N,), None of an encoder without any."""

    features: Tensor
    log_scale: Tensor | None

    def __getitem__(self, rows: Tensor | slice) -> "Seen":
        return Seen(self.features[rows], None if self.log_scale is None else self.log_scale[rows])


def see(encoder: Encoder, pictures: Images) -> Seen:
    """Features and scales of images."""
    found = encoder(pictures)
    return Seen(found.features, None if found.scale is None else mean_log_scale(found.scale[None]))


def made_up() -> dict[str, Tensor]:
    """Images of nothing: noise, and one colour with a little noise, uint8 (N, 3, 32, 32)."""
    random = torch.Generator().manual_seed(0)
    colour = torch.randint(256, (MADE_UP, 3, 1, 1), generator=random)
    grain = 5 * torch.randn(MADE_UP, 3, 32, 32, generator=random)
    noise = torch.randint(256, (MADE_UP, 3, 32, 32), generator=random)
    return {"noise": noise.byte(), "flat": (colour + grain).clamp(0, 255).byte()}


class Scores:
    """Scores fitted on a reference, each a part in deviations of the reference's own images, or a sum of parts."""

    def __init__(self, reference: Seen) -> None:
        self.centre = reference.features.mean(0)
        shifts = {"distance": torch.zeros_like(self.centre), "centred": self.centre}
        self.shifts = shifts
        self.knn = {name: fit_knn_distance(reference.features - shift) for name, shift in shifts.items()}
        self.moments: dict[str, tuple[Tensor, Tensor]] = {}
        for name, knn in self.knn.items():
            rows = torch.arange(len(knn.bank))
            own = replace(knn, groups=rows)(reference.features - shifts[name], rows)
            self.moments[name] = (own.mean(), own.std())
        if reference.log_scale is not None:
            self.moments["scale"] = (reference.log_scale.mean(), reference.log_scale.std())

    def __call__(self, seen: Seen) -> dict[str, Tensor]:
        """Score -> values (N,), higher is stranger."""
        raw = {name: knn(seen.features - self.shifts[name]) for name, knn in self.knn.items()}
        if seen.log_scale is not None:
            raw["scale"] = seen.log_scale
        part = {name: (values - self.moments[name][0]) / self.moments[name][1] for name, values in raw.items()}
        part["both"] = part["distance"] + part["centred"]
        if "scale" in part:
            excess = part["scale"].clamp_min(0)  # surer than the images that belong is no strangeness, nor the opposite
            part["distance_and_scale"] = part["distance"] + part["scale"]
            part["distance_and_excess"] = part["distance"] + excess
            part["both_and_excess"] = part["both"] + excess
        return part


def compare(reference: Seen, inside: Seen, outside: dict[str, Seen]) -> dict[str, dict[str, float]]:
    """Strange set -> score -> AUROC."""
    scores = Scores(reference)
    own = scores(inside)
    return {
        name: {score: auroc(own[score], values) for score, values in scores(seen).items()}
        for name, seen in outside.items()
    }


def mean(rows: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Over draws and classes."""
    return {
        name: {score: round(statistics.fmean(row[name][score] for row in rows), 4) for score in rows[0][name]}
        for name in rows[0]
    }


def main() -> None:
    """Every image is embedded once; then every reference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder", metavar="RUN")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    encoder = load(options.encoder)
    sets = {
        name: load_pictures(f"parquet:{options.data}/{name}-train.parquet")
        for name in ("cifar10", "cifar100", "flowers102")
    }
    pictures = spread(sets.pop("cifar10"), BELONGING)
    assert pictures.labels is not None
    own, labels = see(encoder, pictures), pictures.labels
    strange = {name: see(encoder, spread(each, STRANGE)) for name, each in sets.items()}
    strange |= {name: see(encoder, each) for name, each in made_up().items()}
    orders = [torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)) for seed in range(DRAWS)]
    found = {
        f"{size} of all classes": mean([compare(own[o[:size]], own[o[-STRANGE:]], strange) for o in orders])
        for size in SIZES
    }
    for size in CLASS_SIZES:
        rows = []
        for order in orders:
            for label in range(int(labels.max()) + 1):
                same, others = order[labels[order] == label], order[labels[order] != label][:STRANGE]
                rows.append(compare(own[same[:size]], own[same[size:]], {"other classes": own[others], **strange}))
        found[f"{size} of one class"] = mean(rows)
    flowers, rows = strange["flowers102"], []
    for seed in range(DRAWS):
        order = torch.randperm(len(flowers.features), generator=torch.Generator().manual_seed(seed))
        outside = {"cifar10": own[:STRANGE], "cifar100": strange["cifar100"]}
        rows.append(compare(flowers[order[:FLOWERS]], flowers[order[FLOWERS:]], outside))
    found[f"{FLOWERS} flowers"] = mean(rows)
    told = {
        "meaning": "AUROC: reference -> strange set -> score",
        "encoder": Path(options.encoder).name,
        "hash": encoder.card["hash"],
        "auroc": found,
        "hardware": describe_machine(encoder.device),
        "command": f"python benchmarks/strangeness.py {Path(options.encoder).name} --data DIR --out {options.out}",
    }
    options.out.write_text(json.dumps(told, indent=1) + "\n")
    for reference, rows_ in found.items():
        for name, row in rows_.items():
            print(f"{reference:22s} {name:14s}", {score: round(100 * value, 1) for score, value in row.items()})


if __name__ == "__main__":
    main()
