"""Which ranking by the neighbours of an image predicts that its nearest neighbour is of another class?

    python benchmarks/disagreement.py cifar10-vit --data DIR --out benchmarks/results/disagreement-cifar10-vit-cpu.json
    prosmin pretrain --recipe demo --out runs/demo
    python benchmarks/disagreement.py runs/demo --data DIR --out benchmarks/results/disagreement-demo-cpu.json

DIR holds the parquet files named in SETS (columns image and label). The encoder is a run folder or a name: a good one
and a weak one. Only training images are used: the numbers of prosmin/encoder/neighbourhood.py were chosen by these
tables, and geometry.py judges the choice on test images. `rankings`: R-AUROC in per cent by reference and queries and
its mean, and by reference the AUROC of made-up images (noise, one grey, one colour) against the queries. `small`: for
references of few images, means over DRAWS of them: R-AUROC, and the AUROC of noise and of another set against queries.
`with_scale`: R-AUROC of the mean log scale, in standard deviations of the reference, and of sums with the default.
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

SMALL = {"cifar10": "flowers", "flowers": "cifar10", "imagenette": "cifar10"}
"""Set of small references and of the queries -> the other set."""

COUNTS, DRAWS, QUERIES, OTHERS = (10, 20, 40, 100, 300), 8, 1_000, 300

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


def disagreement_first(around: Neighbourhood, features: Tensor) -> Tensor:
    """The default after it: the disagreement; the distance counts only for images that are far."""
    score = around(features)
    return torch.where(score > around._usual.limit, 2 + score, around.disagreement(features))  # at most about 1


def weighted(weight: float) -> Ranking:
    """The default with another weight of the distance in large references."""

    def ranking(around: Neighbourhood, features: Tensor) -> Tensor:
        found = around.locate(features)
        unclear = found.disagreement + (weight + neighbourhood.FEW / len(around.features)) * found.score
        return torch.where(found.score > around._usual.limit, 1_000 + found.score, unclear)

    return ranking


RANKINGS: dict[str, tuple[Ranking, dict[str, Any]]] = {
    "default": (Neighbourhood.uncertainty, {}),
    "no image counts as far": (Neighbourhood.uncertainty, {"BELONGS": 1.0}),
    **{f"{share:.0%} belong": (Neighbourhood.uncertainty, {"BELONGS": share}) for share in (0.8, 0.95, 0.99)},
    **{f"{rounds} rounds of smoothing": (Neighbourhood.uncertainty, {"ROUNDS": rounds}) for rounds in (0, 1, 3, 5)},
    **{
        f"{', '.join(map(str, around))} neighbours": (Neighbourhood.uncertainty, {"AROUND": around})
        for around in ((5,), (10,), (20,), (3, 6, 12), (5, 10, 20, 40))
    },
    **{f"distance counts {weight} + 100 / M times": (weighted(weight), {}) for weight in (0.5, 1, 2, 4)},
    **{f"distance counts 1 + {few} / M times": (Neighbourhood.uncertainty, {"FEW": few}) for few in (0, 30, 300)},
    "disagreement": (Neighbourhood.disagreement, {}),
    "disagreement first": (disagreement_first, {}),
    "the larger of distance and dispersion": (larger_of_both, {}),
    "dispersion": (Neighbourhood.dispersion, {}),
    "half-whitened distance": (Neighbourhood.__call__, {}),
}


FEW_IMAGES = (
    "default",
    "distance counts 1 + 0 / M times",
    "distance counts 1 + 30 / M times",
    "distance counts 1 + 300 / M times",
    "disagreement first",
    "the larger of distance and dispersion",
    "half-whitened distance",
)
"""The rankings that are compared with few images."""


WEIGHTS = (0.25, 0.5, 1, 2, 4)
"""How often the learned scale counts beside the default."""


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
        "with_scale": with_scale(sets, space),
        "small": {name: of_few(*RANKINGS[name], sets, made["noise"], space) for name in FEW_IMAGES},
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


def with_scale(sets: dict[str, Seen], space: Space) -> dict[str, dict[str, float]]:
    """Ranking -> R-AUROC in each setting, and its mean; nothing for an encoder without a scale."""
    found: dict[str, dict[str, float]] = {}
    for name, (of, first, last, queries, start, stop) in SETTINGS.items():
        known, told = sets[of].log_scale, sets[queries].log_scale
        if known is None or told is None:
            return {}
        around = Neighbourhood(features=sets[of].features[first:last], space=space)
        features = sets[queries].features[start:stop]
        right = right_neighbours(features, sets[queries].labels[start:stop])
        default = around.uncertainty(features)
        scale = (told[start:stop] - known[first:last].mean()) / known[first:last].std()
        rankings = {"default": default, "mean log scale": scale}
        rankings |= {f"default + {weight} times the scale": default + weight * scale for weight in WEIGHTS}
        for ranking, values in rankings.items():
            found.setdefault(ranking, {})[name] = round(100 * r_auroc(right, values), 2)
    return {name: {**row, "mean": round(statistics.fmean(row.values()), 2)} for name, row in found.items()}


def of_few(
    ranking: Ranking, changes: dict[str, Any], sets: dict[str, Seen], noise: Tensor, space: Space
) -> dict[str, dict[str, list[float]]]:
    """Set -> number of images -> R-AUROC, AUROC of noise, AUROC of another set; means over DRAWS references."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, other in SMALL.items():
        features, labels, strange = sets[name].features, sets[name].labels, sets[other].features[:OTHERS]
        for count in COUNTS:
            of_draws = []
            for draw in range(DRAWS):
                order = torch.randperm(len(features), generator=torch.Generator().manual_seed(draw))
                around, queries = Neighbourhood(features=features[order[:count]], space=space), order[count:][:QUERIES]
                with numbers(**changes):
                    own, outside, noisy = (ranking(around, x) for x in (features[queries], strange, noise))
                right = right_neighbours(features[queries], labels[queries])
                of_draws.append([r_auroc(right, own), auroc(own, noisy), auroc(own, outside)])
            means = (100 * torch.tensor(of_draws).mean(0)).tolist()
            found.setdefault(name, {})[str(count)] = [round(value, 1) for value in means]
    return found


if __name__ == "__main__":
    main()
