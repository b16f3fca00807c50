"""Do more views of an image, or the error of its own forecast, help to find OOD images and wrong neighbours?

    python benchmarks/more_views.py cifar10-vit --data DIR --share 0.5 --out FILE

DIR holds the parquet files named in SETS (columns image and label). The encoder is a run folder or a name. Only
training images are used, since this chooses. The reference is 4,000 images of CIFAR-10, or a share of them; the queries
are 2,000 others.
For each score: AUROC in per cent against images of other sets and made-up ones, its mean and its lowest value, and
R-AUROC on the queries. `+ default` adds the default OOD score (for AUROC) or the default uncertainty (for R-AUROC),
each in standard deviations of the queries.
"""

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from geometry import MADE_UP
from prosmin.data.image_sets import Pictures, load_pictures
from prosmin.encoder import Encoder, load
from prosmin.encoder.neighbourhood import Neighbourhood
from prosmin.evaluation.forecasts import view_scores
from prosmin.evaluation.metrics.ranking import auroc
from prosmin.evaluation.metrics.retrieval import r_auroc, right_neighbours
from prosmin.machine import describe_machine

SETS = {
    "reference": ("cifar10-train.parquet", 0, 4_000),
    "queries": ("cifar10-train.parquet", 6_000, 8_000),
    "cifar100": ("cifar100-train.parquet", 0, 1_000),
    "flowers": ("flowers102-train.parquet", 0, 1_000),
    "imagenette": ("imagenette160@train", 0, 1_000),
}
"""Set -> file, first and last row of a random order."""
VIEWS = 4


@dataclass(frozen=True)
class Seen:
    """Features (N, D) of the evaluation view, of its mirror image and of VIEWS random views, and scores (N,)."""

    plain: Tensor
    mirrored: Tensor
    views: list[Tensor]
    scores: dict[str, Tensor]
    labels: Tensor | None


def see(encoder: Encoder, pictures: Pictures) -> Seen:
    """Every view once, and once more for the scores."""
    return Seen(
        encoder(pictures).features,
        encoder(mirrored(pictures)).features,
        [view.features for view in encoder.views(pictures, count=VIEWS, seed=0)],
        view_scores(encoder, pictures, seed=0, count=VIEWS),
        pictures.labels,
    )


def mirrored(pictures: Pictures) -> list[Tensor]:
    """The images without their padding, seen in a mirror."""
    sizes = pictures.sizes.tolist()
    return [image[:, :height, :width].flip(-1) for image, (height, width) in zip(pictures.images, sizes, strict=True)]


def read(file: str, first: int, last: int) -> Pictures:
    """Rows of a file in a random order, the same for every encoder."""
    pictures = load_pictures(f"parquet:{file}")
    order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(0))
    return pictures.subset(order[first:last])


def made_up() -> dict[str, Pictures]:
    """Noise, one grey, and one colour with a little noise."""
    random = torch.Generator().manual_seed(0)
    noise = torch.randint(256, (MADE_UP, 3, 32, 32), generator=random)
    grey = torch.randint(256, (MADE_UP, 1, 1, 1), generator=random).expand(-1, 3, 32, 32)
    colour = torch.randint(256, (MADE_UP, 3, 1, 1), generator=random)
    flat = (colour + 5 * torch.randn(MADE_UP, 3, 32, 32, generator=random)).clamp(0, 255)
    sizes = torch.full((MADE_UP, 2), 32)
    keys = tuple(map(str, range(MADE_UP)))
    return {
        name: Pictures(images=x.byte(), sizes=sizes, labels=None, classes=(), keys=keys, spec=name)
        for name, x in {"noise": noise, "grey": grey, "flat": flat}.items()
    }


def average(*parts: Tensor) -> Tensor:
    """The mean feature."""
    return torch.stack(parts).mean(0)


def measured(sets: dict[str, Seen], space: Any) -> dict[str, tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Score -> its values by set, for OOD detection and as an uncertainty."""
    reference = sets["reference"]
    known = {
        "plain": Neighbourhood(features=reference.plain, space=space),
        "mirrored": Neighbourhood(features=average(reference.plain, reference.mirrored), space=space),
        "views": Neighbourhood(features=average(reference.plain, *reference.views), space=space),
    }
    found: dict[str, tuple[dict[str, Tensor], dict[str, Tensor]]] = {}

    def add(name: str, ood: Any, uncertainty: Any) -> None:
        found[name] = tuple({key: f(seen) for key, seen in sets.items()} for f in (ood, uncertainty))  # type: ignore[assignment]

    def both(around: Neighbourhood, features: Any) -> tuple[Any, Any]:
        return lambda seen: around(features(seen)), lambda seen: around.uncertainty(features(seen))

    add("default", *both(known["plain"], lambda seen: seen.plain))
    add(
        "mean feature of image and mirror image",
        *both(known["mirrored"], lambda seen: average(seen.plain, seen.mirrored)),
    )
    add(
        f"mean feature of image and {VIEWS} random views",
        *both(known["views"], lambda seen: average(seen.plain, *seen.views)),
    )
    mean = lambda f: lambda seen: torch.stack([f(view) for view in (seen.plain, *seen.views)]).mean(0)  # noqa: E731
    add(
        f"mean score of image and {VIEWS} random views",
        mean(known["plain"]),
        mean(known["plain"].uncertainty),
    )
    for name in sets["queries"].scores:
        own = lambda seen, name=name: seen.scores[name]  # noqa: E731
        add(name, own, own)
    for name in list(found)[1:]:
        found[f"{name} + default"] = tuple(map(_sum, found[name], found["default"]))  # type: ignore[assignment]
    return found


def _sum(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, Tensor]:
    parts = [
        {name: (x - each["queries"].mean()) / each["queries"].std() for name, x in each.items()}
        for each in (one, other)
    ]
    return {name: parts[0][name] + parts[1][name] for name in one}


def main() -> None:
    """All sets, then all scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder", metavar="RUN")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--share", type=float, default=1.0, help="of the images of each set")
    options = parser.parse_args()
    encoder = load(options.encoder)
    pictures = {
        name: read(f"{options.data}/{file}", first, first + int(options.share * (last - first)))
        for name, (file, first, last) in SETS.items()
    } | made_up()
    sets = {name: see(encoder, images) for name, images in pictures.items()}
    queries = sets["queries"]
    assert queries.labels is not None
    right = right_neighbours(queries.plain, queries.labels)
    rows: dict[str, Any] = {}
    for name, (ood, uncertainty) in measured(sets, encoder.background.space).items():
        against = {
            key: round(100 * auroc(ood["queries"], values), 2)
            for key, values in ood.items()
            if key not in ("reference", "queries")
        }
        rows[name] = {
            "mean": round(statistics.fmean(against.values()), 2),
            "lowest": min(against.values()),
            "auroc": against,
            "r_auroc": round(100 * r_auroc(right, uncertainty["queries"]), 2),
        }
        print(name, rows[name], flush=True)
    told = {
        "encoder": Path(options.encoder).name,
        "hash": encoder.card["hash"],
        "scores": rows,
        "hardware": describe_machine(encoder.device),
        "command": f"python benchmarks/more_views.py {Path(options.encoder).name} --data DIR --share {options.share} "
        "--out FILE",
    }
    options.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
