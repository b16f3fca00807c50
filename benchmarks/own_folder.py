"""Does training on one's own folder help to find what does not belong in it? AUROC by encoder and score.

    python benchmarks/own_folder.py --data DIR --out benchmarks/results/own-folder-cpu.json

DIR holds flowers102-test, cifar10-test and svhn-test10k (.parquet, columns image and label). The folder has 1,500
flowers, and 10 each of CIFAR-10, SVHN, blurred flowers and dark flowers. The encoders: the shipped one, and one trained
on the folder with the default recipe, as README says. The folder is its own reference, each image compared with the
others, by the plain distance (k = 2) and as `prosmin inspect` does it; the uncertainty is the encoder's own.
"""

import argparse
import io
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from PIL import Image, ImageFilter

from prosmin import config as configs
from prosmin.encoder import Encoder, load
from prosmin.encoder.detectors import fit_knn_distance
from prosmin.encoder.neighbourhood import AMONG_THEMSELVES, Neighbourhood
from prosmin.evaluation.metrics.ranking import auroc
from prosmin.machine import describe_machine
from prosmin.training.pretrain import pretrain

FLOWERS, FEW, EPOCHS = 1_500, 10, 27


def make_folder(data: Path, folder: Path) -> dict[str, int]:
    """Write the images as 000000.jpg and so on; returns the kinds in order and how many images each has."""

    def read(name: str, count: int, first: int = 0) -> list[Image.Image]:
        rows = pq.read_table(data / f"{name}.parquet", columns=["image"])["image"][first : first + count]
        return [Image.open(io.BytesIO(row.as_py())).convert("RGB").resize((64, 64)) for row in rows]

    kinds = {
        "flowers": read("flowers102-test", FLOWERS),
        "cifar10": read("cifar10-test", FEW),
        "svhn": read("svhn-test10k", FEW),
        "blurred": [x.filter(ImageFilter.GaussianBlur(3)) for x in read("flowers102-test", FEW, FLOWERS)],
        "dark": [x.point(lambda level: level * 0.12) for x in read("flowers102-test", FEW, FLOWERS + FEW)],
    }
    folder.mkdir(parents=True)
    for number, image in enumerate(image for images in kinds.values() for image in images):
        image.save(folder / f"{number:06d}.jpg", quality=85)
    return {kind: len(images) for kind, images in kinds.items()}


def judge(encoder: Encoder, folder: Path, kinds: dict[str, int]) -> dict[str, dict[str, float]]:
    """Score -> kind -> AUROC against the flowers, in per cent."""
    features, rows = encoder.features(folder), torch.arange(sum(kinds.values()))
    around = Neighbourhood(
        features=features, space=encoder.background.space, groups=rows, neighbours=AMONG_THEMSELVES
    )  # fmt: skip
    scores = {
        "plain distance": replace(fit_knn_distance(features, k=2), groups=rows)(features, rows),
        "as inspect": around(features, rows),
        "uncertainty of inspect": around.uncertainty(features, rows),
        "mean log scale": encoder.forecast_uncertainty(folder),
    }
    found: dict[str, dict[str, float]] = {}
    for name, values in scores.items():
        parts = dict(zip(kinds, values.split(list(kinds.values())), strict=True))
        own = parts.pop("flowers")
        found[name] = {kind: round(100 * auroc(own, part), 1) for kind, part in parts.items()}
    return found


def main() -> None:
    """The folder, the training, both encoders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "images"
        kinds = make_folder(options.data, folder)
        found: dict[str, Any] = {"cifar10-vit": judge(load("cifar10-vit"), folder, kinds)}
        fields = {"data.spec": f"folder:{folder}", "training.epochs": str(EPOCHS)}
        run = pretrain(configs.resolve(recipe="demo", overrides=fields), Path(temporary) / "run")
        found[f"trained on the folder, {EPOCHS} epochs"] = judge(load(run), folder, kinds)
    told = {
        "meaning": "encoder -> score -> kind -> AUROC against the flowers, %",
        "auroc": found,
        "hardware": describe_machine(torch.device("cpu")),
        "command": "python benchmarks/own_folder.py --data DIR --out benchmarks/results/own-folder-cpu.json",
    }
    options.out.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
