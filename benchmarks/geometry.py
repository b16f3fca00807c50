"""In which space should images be compared? OOD detection, errors predicted and false alarms, by score; no labels.

    python benchmarks/geometry.py cifar10-vit --data DIR --out benchmarks/results/geometry-cifar10-vit-cpu.json

DIR holds the parquet files named in TRAIN and TEST (columns image and label). The encoder is a run folder or a name.

- `chosen`: every candidate score with every reference, on training images and made-up images alone. The default was
  chosen here: by the mean AUROC over references and OOD sets, and by the mean over references of the worst set.
- `among_themselves`: intruders hidden in a folder that is its own reference: the share of them among the 5 % with the
  highest scores, by the number of neighbours. Training images alone.
- `judged`: the default and the plain distance of the literature, on test images.
- `uncertainty`: R-AUROC on CIFAR-10's test images by the default and its rivals, references and queries apart.
- `false_alarms`: the share of images like the reference that is flagged when 5 % is asked for, over 50 draws.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prosmin.data.image_sets import load_pictures
from prosmin.embed import reference as references
from prosmin.encoder import Encoder, load
from prosmin.encoder.background import make_background
from prosmin.encoder.detectors import fit_knn_distance, fit_mahalanobis
from prosmin.encoder.neighbourhood import Neighbourhood
from prosmin.encoder.space import Space, fit_space
from prosmin.evaluation.metrics.ranking import auroc
from prosmin.evaluation.metrics.retrieval import r_auroc, right_neighbours
from prosmin.machine import describe_machine

TRAIN = {
    "cifar10": ("cifar10-train.parquet", 15_000),
    "cifar100": ("cifar100-train.parquet", 2_000),
    "flowers": ("flowers102-train.parquet", 1_020),
    "imagenette": ("imagenette160@train", 3_000),
}
TEST = {
    "cifar10": ("cifar10-test.parquet", 10_000),
    "cifar100": ("cifar100-test.parquet", 3_000),
    "svhn": ("svhn-test10k.parquet", 3_000),
    "flowers": ("flowers102-test.parquet", 3_000),
    "imagenette": ("imagenette160@val", 3_000),
}
"""Set -> file and number of images."""

MADE_UP, OUTSIDE = 500, 1_500
SIZES = (20, 100, 500, 5_000)
DRAWS, ASKED = 50, 0.05
RESAMPLES = 1_000

Score = Callable[[Tensor], Tensor]


class Seen:
    """What an encoder says of a set: features (N, D), mean log scales (N,) if it has any, and labels (N,)."""

    def __init__(self, encoder: Encoder, spec: str, count: int, *, shuffle: bool = False) -> None:
        pictures = load_pictures(spec)
        order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(0))
        pictures = pictures.subset((order if shuffle else order.sort().values)[:count])
        found = encoder(pictures)
        self.features = found.features
        self.log_scale = None if found.scale is None else found.scale.log().mean(1)
        assert pictures.labels is not None
        self.labels = pictures.labels
        print(f"{spec.rpartition('/')[2]}: {len(pictures)} images", flush=True)


def made_up(encoder: Encoder) -> dict[str, Tensor]:
    """Features of noise, of one grey, and of one colour with a little noise."""
    random = torch.Generator().manual_seed(0)
    noise = torch.randint(256, (MADE_UP, 3, 32, 32), generator=random)
    grey = torch.randint(256, (MADE_UP, 1, 1, 1), generator=random).expand(-1, 3, 32, 32)
    colour = torch.randint(256, (MADE_UP, 3, 1, 1), generator=random)
    flat = (colour + 5 * torch.randn(MADE_UP, 3, 32, 32, generator=random)).clamp(0, 255)
    return {name: encoder.features(x.byte()) for name, x in {"noise": noise, "grey": grey, "flat": flat}.items()}


def candidates(reference: Tensor, spaces: dict[str, Space]) -> dict[str, Score]:
    """Scores fitted on features of a reference (M, D)."""
    centre = reference.mean(0)
    plain, centred = fit_knn_distance(reference), fit_knn_distance(reference - centre)
    scores: dict[str, Score] = {
        "plain": plain,
        "Mahalanobis after normalising": fit_mahalanobis(reference),
        "centred on the reference": lambda x: centred(x - centre),
    }
    for name, space in spaces.items():
        scores[f"half-whitened, {name}"] = Neighbourhood(features=reference, space=space)
    own = Neighbourhood(features=reference, space=fit_space(reference))
    scores["half-whitened, the reference"] = own
    default = Neighbourhood(features=reference, space=spaces[DEFAULT])
    scores["plain + default"] = _sum(reference, plain, default)
    scores["density ratio"] = _density_ratio(default)
    scores["uncertainty"] = default.uncertainty
    return scores


DEFAULT = "photographs and training"


def _sum(reference: Tensor, plain: Score, default: Neighbourhood) -> Score:
    """Two scores, each in standard deviations of the reference's images."""
    parts = [(score, values.mean(), values.std()) for score in (plain, default) for values in [score(reference)]]
    return lambda x: sum((score(x) - mean) / deviation for score, mean, deviation in parts)  # type: ignore[return-value]


def _density_ratio(default: Neighbourhood) -> Score:
    """The distance to the neighbours over the nearest neighbour's own distance to the others."""
    rows = torch.arange(len(default.features))
    own = Neighbourhood(features=default.features, space=default.space, groups=rows)(default.features, rows)

    def score(x: Tensor) -> Tensor:
        row, _, distance = default.nearest(x)
        return distance / own[row].clamp_min(1e-6)

    return score


def table(scores: dict[str, Score], inside: Tensor, outside: dict[str, Tensor]) -> dict[str, dict[str, float]]:
    """Score -> OOD set -> AUROC in per cent."""
    found = {}
    for name, score in scores.items():
        own = score(inside)
        found[name] = {key: round(100 * auroc(own, score(x[:OUTSIDE])), 2) for key, x in outside.items()}
    return found


def chosen(sets: dict[str, Seen], made: dict[str, Tensor], spaces: dict[str, Space]) -> dict[str, Any]:
    """Every candidate with every reference."""
    cifar, labels = sets["cifar10"].features, sets["cifar10"].labels
    others = {name: seen.features for name, seen in sets.items()}

    def outside(*left_out: str) -> dict[str, Tensor]:
        return {name: x for name, x in others.items() if name not in left_out} | made

    rows: dict[str, dict[str, dict[str, float]]] = {}

    def add(name: str, reference: Tensor, inside: Tensor, strange: dict[str, Tensor]) -> None:
        rows[name] = table(candidates(reference, spaces), inside, strange)
        print(
            name, {score: round(statistics.fmean(each.values()), 1) for score, each in rows[name].items()}, flush=True
        )

    inside = cifar[-3_000:]
    for size in (20, 100, 500, 2_000, 10_000):
        add(f"{size} of CIFAR-10", cifar[:size], inside, outside("cifar10"))
    for label in (3, 6, 8):
        same, rest = cifar[labels == label], cifar[labels != label]
        add(f"500 of class {label}", same[:500], same[500:], {"other classes": rest} | outside("cifar10"))
    for size in (20, 100, 600):
        add(f"{size} flowers", others["flowers"][:size], others["flowers"][600:], outside("flowers"))
    for size in (100, 2_000):
        add(f"{size} of Imagenette", others["imagenette"][:size], others["imagenette"][2_000:], outside("imagenette"))
    photos, kinds = others["imagenette"], sets["imagenette"].labels
    for label in (1, 4):
        same, rest = photos[kinds == label], photos[kinds != label]
        add(
            f"150 of Imagenette's class {label}",
            same[:150],
            same[150:],
            {"other classes": rest} | outside("imagenette"),
        )
    summary = {}
    for score in next(iter(rows.values())):
        values = [list(row[score].values()) for row in rows.values()]
        summary[score] = {
            "mean": round(statistics.fmean(statistics.fmean(each) for each in values), 1),
            "mean_of_the_worst": round(statistics.fmean(min(each) for each in values), 1),
            "worst": min(min(each) for each in values),
        }
    return {"summary": summary, "auroc": rows}


def among_themselves(sets: dict[str, Seen], made: dict[str, Tensor], space: Space) -> dict[str, dict[str, float]]:
    """Score -> per cent of the intruders found, mean over folders and kinds of intruders, and of the worst kind."""
    cifar, photos, flowers = sets["cifar10"], sets["imagenette"], sets["flowers"].features
    folders = {"flowers": (flowers, ("cifar10", "cifar100", "imagenette"))}
    folders |= {
        f"class {label}": (cifar.features[:8_000][cifar.labels[:8_000] == label], ("cifar100", "flowers", "imagenette"))
        for label in (3, 5, 8)
    }
    folders |= {
        f"Imagenette {label}": (photos.features[photos.labels == label], ("cifar10", "cifar100", "flowers"))
        for label in (1, 4, 7)
    }
    shares: dict[str, list[list[float]]] = {}
    for home, kinds in folders.values():
        intruders = {kind: sets[kind].features for kind in kinds} | {"flat": made["flat"]}
        for share in (0.003, 0.006, 0.012):  # of the folder, for each kind
            count = max(1, round(share * len(home)))
            features = torch.cat([home, *(x[-count:] for x in intruders.values())])
            rows = torch.arange(len(features))
            scores = {"plain, k = 2": replace(fit_knn_distance(features, k=2), groups=rows)(features, rows)}
            for k in (10, 20, 50, 100):
                around = Neighbourhood(features=features, space=space, groups=rows, neighbours=k)
                scores[f"half-whitened, {k} neighbours"] = around(features, rows)
            for name, values in scores.items():
                flagged = torch.zeros(len(features), dtype=torch.bool)
                flagged[values.argsort(descending=True)[: int(0.05 * len(features))]] = True
                hit = flagged[len(home) :].view(len(intruders), count).double().mean(1)
                shares.setdefault(name, []).append((100 * hit).tolist())
    return {
        name: {
            "found": round(statistics.fmean(statistics.fmean(row) for row in rows), 1),
            "of_the_worst_kind": round(statistics.fmean(min(row) for row in rows), 1),
        }
        for name, rows in shares.items()
    }


def judged(sets: dict[str, Seen], train: Tensor, made: dict[str, Tensor], space: Space) -> dict[str, Any]:
    """The default and the plain distance on test images, by reference."""
    test = {name: seen.features for name, seen in sets.items()}

    def row(reference: Tensor, inside: Tensor, *left_out: str) -> dict[str, dict[str, float]]:
        outside = {name: x for name, x in test.items() if name not in left_out} | made
        default = Neighbourhood(features=reference, space=space)
        return table({"plain": fit_knn_distance(reference), "default": default}, inside, outside)

    found = {f"{size} of CIFAR-10": row(train[:size], test["cifar10"], "cifar10") for size in (*SIZES, 15_000)}
    for name in ("flowers", "imagenette"):
        for size in SIZES[:3]:
            found[f"{size} of {name}"] = row(test[name][:size], test[name][1_000:], name)
    return found


def predicted_errors(test: Seen, train: Tensor, space: Space) -> dict[str, Any]:
    """R-AUROC by ranking, with an interval for the difference between the default and each other ranking."""
    reference = train[:4_000]
    around, centre = Neighbourhood(features=reference, space=space), reference.mean(0)
    centred = fit_knn_distance(reference - centre)
    right = right_neighbours(test.features, test.labels)
    rankings = {
        "default": around.uncertainty(test.features),
        "dispersion of the neighbours": around.dispersion(test.features),
        "half-whitened distance": around(test.features),
        "centred distance": centred(test.features - centre),
        "plain distance": fit_knn_distance(reference)(test.features),
        "short features": -test.features.norm(dim=1),
    }
    if test.log_scale is not None:
        rankings["mean log scale"] = test.log_scale
        rankings["default + mean log scale"] = _standard(rankings["default"]) + _standard(test.log_scale)
    rows = {name: {"r_auroc": round(100 * r_auroc(right, values), 2)} for name, values in rankings.items()}
    random = torch.Generator().manual_seed(0)
    draws = [torch.randint(len(right), (len(right),), generator=random) for _ in range(RESAMPLES)]
    for name, values in rankings.items():
        if name != "default":
            apart = torch.tensor(
                [r_auroc(right[d], rankings["default"][d]) - r_auroc(right[d], values[d]) for d in draws]
            )
            low, high = (100 * apart.quantile(torch.tensor([0.025, 0.975]))).tolist()
            rows[name]["default_minus_this"] = [round(low, 2), round(high, 2)]  # type: ignore[assignment]
    return {"recall_at_1": round(100 * right.double().mean().item(), 2), "reference": len(reference), "rankings": rows}


def _standard(values: Tensor) -> Tensor:
    return (values - values.mean()) / values.std()


def false_alarms(sets: dict[str, Tensor], space: Space) -> dict[str, Any]:
    """Set -> size of the reference -> per cent flagged of other images of the set: mean over draws, lowest, highest."""
    found: dict[str, Any] = {}
    for name, features in sets.items():
        for size in (20, 50, 200, 1_000, 2_000):
            shares = []
            for draw in range(DRAWS):
                order = torch.randperm(len(features), generator=torch.Generator().manual_seed(draw))
                numbers = torch.arange(size)
                reference = references.fit(features[order[:size]], numbers, numbers, space=space)
                rate = references.possible_rate(size, ASKED)
                score = reference.images(features[order[size : size + 1_000]])
                shares.append(100 * (score.double() > reference.threshold(rate)).double().mean().item())
            row = {"mean": statistics.fmean(shares), "lowest": min(shares), "highest": max(shares)}
            found.setdefault(name, {})[str(size)] = {key: round(value, 2) for key, value in row.items()}
    return found


def main() -> None:
    """Every image is embedded once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder", metavar="RUN")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    encoder = load(options.encoder)

    def see(files: dict[str, tuple[str, int]]) -> dict[str, Seen]:
        return {name: Seen(encoder, f"parquet:{options.data}/{file}", count) for name, (file, count) in files.items()}

    train, test, made = see(TRAIN), see(TEST), made_up(encoder)
    space = encoder.background.space
    sample = encoder.background.sample
    spaces = {DEFAULT: space, "photographs": make_background(encoder.features, None).space}
    if sample is not None:
        spaces["training"] = fit_space(sample)
    cifar = train["cifar10"].features
    told = {
        "encoder": Path(options.encoder).name,
        "hash": encoder.card["hash"],
        "default": f"half-whitened, {DEFAULT}" if sample is not None else "half-whitened, photographs",
        "chosen": chosen(train, made, spaces),
        "among_themselves": among_themselves(train, made, space),
        "judged": judged(test, cifar, made, space),
        "uncertainty": predicted_errors(test["cifar10"], cifar, space),
        "false_alarms": false_alarms(
            {name: test[name].features for name in ("cifar10", "flowers", "imagenette")}, space
        ),
        "hardware": describe_machine(encoder.device),
        "command": f"python benchmarks/geometry.py {Path(options.encoder).name} --data DIR --out {options.out}",
    }
    options.out.write_text(json.dumps(told, indent=1) + "\n")
    for part in ("among_themselves", "judged", "uncertainty", "false_alarms"):
        print(part, json.dumps(told[part], indent=1))
    print(json.dumps(told["chosen"]["summary"], indent=1))


if __name__ == "__main__":
    main()
