"""Which ranking by the neighbours of an image predicts that its nearest neighbour is of another class?

    python benchmarks/disagreement.py cifar10-vit --data DIR --out benchmarks/results/disagreement-cifar10-vit-cpu.json

DIR holds the parquet files named in SETS (columns image and label). The encoder is a run folder or a name. Only
training images are used: the numbers of prosmin/encoder/neighbourhood.py were chosen by this table, and geometry.py
judges the choice on test images. R-AUROC in per cent by reference and queries and its mean, and by reference the AUROC
of made-up images (noise, one grey, one colour) against the queries.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from geometry import Seen, made_up
from prosmin.encoder import load, neighbourhood
from prosmin.encoder.neighbourhood import Neighbourhood
from prosmin.encoder.space import Space
from prosmin.evaluation.metrics.ranking import auroc
from prosmin.evaluation.metrics.retrieval import r_auroc, right_neighbours
from prosmin.machine import describe_machine

SETS = {
    "cifar10": ("parquet:{}/cifar10-train.parquet", 18_000),
    "cifar100": ("parquet:{}/cifar100-train.parquet", 6_000),
    "flowers": ("parquet:{}/flowers102-train.parquet", 1_020),
    "flowers, others": ("parquet:{}/flowers102-val.parquet", 1_020),
    "imagenette": ("parquet:{}/imagenette160@train", 6_000),
}
"""Set -> SPEC and number of images, the first ones or, of a set in the order of its classes, random ones."""

SETTINGS: dict[str, tuple[str, int, int, str, int, int]] = {
    "10,000 of CIFAR-10": ("cifar10", 0, 10_000, "cifar10", 14_000, 18_000),
    "4,000 of CIFAR-10": ("cifar10", 4_000, 8_000, "cifar10", 0, 4_000),
    "1,000 of CIFAR-10": ("cifar10", 0, 1_000, "cifar10", 14_000, 18_000),
    "4,000 of CIFAR-100": ("cifar100", 0, 4_000, "cifar100", 4_000, 6_000),
    "1,020 flowers": ("flowers", 0, 1_020, "flowers, others", 0, 1_020),
    "3,000 of Imagenette": ("imagenette", 0, 3_000, "imagenette", 3_000, 6_000),
}
"""Reference -> its set, first and last row; the same of the queries."""

Ranking = Callable[[Neighbourhood, Tensor], Tensor]


@contextmanager
def numbers(**changes: Any) -> Iterator[None]:
    """Within the block the module's numbers have other values."""
    before = {name: getattr(neighbourhood, name) for name in changes}
    for name, value in changes.items():
        setattr(neighbourhood, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(neighbourhood, name, value)


def larger_of_both(around: Neighbourhood, features: Tensor) -> Tensor:
    """The default before: the OOD score or the dispersion, each in standard deviations."""
    rows = torch.arange(len(around.features))
    each = Neighbourhood(features=around.features, space=around.space, groups=rows)
    parts = []
    for values in (each, each.dispersion):
        own = values(around.features, rows)
        parts.append((values(features) - own.mean()) / own.std(correction=0))
    return torch.maximum(*parts)


RANKINGS: dict[str, tuple[Ranking, dict[str, Any]]] = {
    "default": (Neighbourhood.uncertainty, {}),
    "no image counts as far": (Neighbourhood.uncertainty, {"BELONGS": 1.0}),
    **{f"{share:.0%} belong": (Neighbourhood.uncertainty, {"BELONGS": share}) for share in (0.8, 0.95, 0.99)},
    **{f"{rounds} rounds of smoothing": (Neighbourhood.uncertainty, {"ROUNDS": rounds}) for rounds in (0, 1, 3, 5)},
    **{
        f"{', '.join(map(str, around))} neighbours": (Neighbourhood.uncertainty, {"AROUND": around})
        for around in ((5,), (10,), (20,), (3, 6, 12), (5, 10, 20, 40))
    },
    "the larger of distance and dispersion (the default before)": (larger_of_both, {}),
    "dispersion": (Neighbourhood.dispersion, {}),
    "half-whitened distance": (Neighbourhood.__call__, {}),
}


def main() -> None:
    """Every ranking in every setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder", metavar="RUN")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    encoder = load(options.encoder)
    sets = {
        name: Seen(encoder, spec.format(options.data), count, shuffle=name == "imagenette")
        for name, (spec, count) in SETS.items()
    }
    space, made = encoder.background.space, made_up(encoder)
    rows: dict[str, dict[str, Any]] = {}
    for name, (ranking, changes) in RANKINGS.items():
        with numbers(**changes):
            rows[name] = row(ranking, sets, made, space)
        print(name, rows[name], flush=True)
    told = {
        "meaning": __doc__.split("\n\n")[2].replace("\n", " ") if __doc__ else "",
        "rankings": rows,
        "hardware": describe_machine(torch.device("cpu")),
        "command": "python benchmarks/disagreement.py RUN --data DIR --out FILE",
    }
    options.out.write_text(json.dumps(told, indent=1) + "\n")


def row(ranking: Ranking, sets: dict[str, Seen], made: dict[str, Tensor], space: Space) -> dict[str, Any]:
    """R-AUROC in each setting, its mean, and the AUROC of each kind of made-up images."""
    found: dict[str, float] = {}
    against: dict[str, dict[str, float]] = {}
    for name, (of, first, last, queries, start, stop) in SETTINGS.items():
        around = Neighbourhood(features=sets[of].features[first:last], space=space)
        features, labels = sets[queries].features[start:stop], sets[queries].labels[start:stop]
        values = ranking(around, features)
        found[name] = round(100 * r_auroc(right_neighbours(features, labels), values), 2)
        against[name] = {kind: round(100 * auroc(values, ranking(around, those)), 2) for kind, those in made.items()}
    return {"r_auroc": found, "mean": round(statistics.fmean(found.values()), 2), "made_up_auroc": against}


if __name__ == "__main__":
    main()
