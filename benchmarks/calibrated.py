"""What do the forecast heads of `prosmin calibrate` give to encoders that were trained without them?

    python benchmarks/calibrated.py --data DIR --runs DIR --out benchmarks/results/calibrated-cpu.json

DIR holds cifar10-train and cifar10-test (.parquet, columns image and label). The encoders: the shipped ViT, and small
ResNets that DINO and MoCo v3 train here for a few epochs, far from converged. Each is calibrated on the first 5,000
training images. Judged on 3,000 test images: coverage, and how well each ranking finds images whose nearest neighbour
has another class (R-AUROC). Rankings that need no training are compared with those of the forecast, and with both
together; which forecast to add is chosen on 2,000 further training images.
"""

import argparse
import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import Tensor

from prosmin import config as configs
from prosmin.calibrate import Request, calibrate
from prosmin.data.image_sets import Pictures
from prosmin.encoder import Encoder, load
from prosmin.encoder.detectors import fit_knn_distance
from prosmin.encoder.neighbourhood import NEIGHBOURS, Neighbourhood
from prosmin.encoder.space import fit_space
from prosmin.evaluation.forecasts import make_forecasts, radius_forecasts
from prosmin.evaluation.metrics.bootstrap import interval
from prosmin.evaluation.metrics.coverage import judge_coverage
from prosmin.evaluation.metrics.retrieval import r_auroc, right_neighbours
from prosmin.machine import describe_machine
from prosmin.training.pretrain import pretrain

IMAGES, CHOICE, TEST = 5_000, 2_000, 3_000
DRAWS = 500
SHIPPED = "cifar10-vit"
TRAINED = {"dino": "DINO", "mocov3": "MoCo v3"}


def trained(method: str, data: Path, runs: Path, *, epochs: int) -> Path:
    """A small ResNet, trained on all CIFAR-10 training images."""
    fields = {
        "data.spec": f"parquet:{data / 'cifar10-train.parquet'}",
        "method.name": method,
        "training.epochs": str(epochs),
        "training.checkpoint_every": "200",
    }
    return pretrain(configs.resolve(recipe="demo", overrides=fields), runs / f"{method}-{epochs}")


def read(file: Path, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Images (N, 3, H, W) and labels."""
    rows = pq.read_table(file, columns=["image", "label"]).slice(first, count)
    pixels = [np.asarray(Image.open(io.BytesIO(row.as_py())).convert("RGB")) for row in rows["image"]]
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous(), torch.tensor(rows["label"].to_pylist())


def rankings(encoder: Encoder, images: Tensor) -> dict[str, dict[str, Tensor]]:
    """Larger is less certain, one number per image: rankings without training, of the forecast, and the default."""
    sample = encoder.background.sample
    assert sample is not None
    found = encoder(images)
    features, mean, scale = found.features, found.mean, found.scale
    assert scale is not None
    centre = sample.mean(0)
    around = Neighbourhood(features=sample, space=encoder.background.space)
    views = torch.stack([view.features for view in encoder.views(images, count=4, seed=1)])
    method: Any = encoder.method
    known, _ = method.predictor(method.whiten(sample))
    of_means = Neighbourhood(features=known, space=fit_space(known))
    return {
        "rivals": {
            "distance": fit_knn_distance(sample, k=NEIGHBOURS)(features),
            "centred distance": fit_knn_distance(sample - centre, k=NEIGHBOURS)(features - centre),
            "half-whitened distance": around(features),
            "neighbour dispersion": around.dispersion(features),
            "variance between views": torch.nn.functional.normalize(views, dim=2).var(0).sum(1),
            "feature norm": -features.norm(dim=1),
        },
        "forecast": {
            "mean log scale": scale.log().mean(1),
            "unexplained": encoder.unexplained(images),
            "signal to noise": -mean.square().sum(1) / scale.square().sum(1),
            "distance of means": of_means(mean),
            "dispersion of means": of_means.dispersion(mean),
        },
        "default": {"uncertainty": around.uncertainty(features)},
    }


def typical_coverage(encoder: Encoder, images: Tensor) -> dict[str, float]:
    """Coverage of what users get, forecasts of the typical view: of 90 % intervals, and of joint 90 % regions."""
    _, mean, scale = encoder(images)
    assert scale is not None
    errors = (encoder.observe(images) - mean) / scale
    inside = errors.abs() <= torch.special.ndtri(torch.tensor(0.95))
    joint = errors.square().mean(1).sqrt() <= encoder.joint_radius(images, level=0.9)
    return {"coverage_90": inside.double().mean().item(), "joint_coverage_90": joint.double().mean().item()}


def standard(values: Tensor) -> Tensor:
    """Mean 0, standard deviation 1."""
    return (values - values.mean()) / values.std()


def contribution(right: Tensor, default: Tensor, added: Tensor, rival: Tensor) -> dict[str, Any]:
    """Points of R-AUROC that adding a ranking to the default gains, and the default's lead over a rival.

    With intervals of 95 % over resampled images.
    """
    together = standard(default) + standard(added)
    random = torch.Generator().manual_seed(0)
    gains, leads = [], []
    for _ in range(DRAWS):
        i = torch.randint(len(right), (len(right),), generator=random)
        own = r_auroc(right[i], default[i])
        gains.append(100 * (r_auroc(right[i], together[i]) - own))
        leads.append(100 * (own - r_auroc(right[i], rival[i])))
    return {
        "together": 100 * r_auroc(right, together),
        "gain": 100 * (r_auroc(right, together) - r_auroc(right, default)),
        "gain_interval": interval(torch.tensor(gains)),
        "lead": 100 * (r_auroc(right, default) - r_auroc(right, rival)),
        "lead_interval": interval(torch.tensor(leads)),
    }


def judge(encoder: Encoder, data: Path) -> dict[str, Any]:
    """Coverage and rankings on test images; what to add is chosen on training images."""
    images, labels = read(data / "cifar10-train.parquet", IMAGES, CHOICE)
    right, found = right_neighbours(encoder.features(images), labels), rankings(encoder, images)
    default = standard(found["default"]["uncertainty"])
    gains = {name: r_auroc(right, default + standard(values)) for name, values in found["forecast"].items()}
    added = max(gains, key=lambda name: gains[name])

    images, labels = read(data / "cifar10-test.parquet", 0, TEST)
    features = encoder.features(images)
    right, found = right_neighbours(features, labels), rankings(encoder, images)
    scores = {kind: {name: 100 * r_auroc(right, x) for name, x in some.items()} for kind, some in found.items()}
    rival = max(scores["rivals"], key=lambda name: scores["rivals"][name])
    sizes = torch.tensor(images.shape[2:]).expand(len(images), 2)
    keys = tuple(map(str, range(len(images))))
    pictures = Pictures(images=images, sizes=sizes, labels=labels, classes=(), keys=keys, spec="cifar10-test")
    forecasts = make_forecasts(encoder, pictures, seed=0)
    coverage, _ = judge_coverage(forecasts, seed=0, radius=radius_forecasts(encoder, forecasts))
    return {
        "recall_at_1": 100 * right.double().mean().item(),
        "coverage": coverage,
        "typical": typical_coverage(encoder, images),
        "r_auroc": scores,
        "best_rival": rival,
        "added": added,
        **contribution(right, found["default"]["uncertainty"], found["forecast"][added], found["rivals"][rival]),
    }


def main(arguments: list[str] | None = None) -> None:
    """Each encoder in turn; the file is written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--runs", type=Path, required=True, metavar="DIR", help="where runs go; finished ones are used")
    parser.add_argument("--epochs", type=int, default=3, metavar="N", help="of DINO and MoCo v3 (default: 3)")
    parser.add_argument("--only", metavar="NAME", help="one of the encoders")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    options.runs.mkdir(parents=True, exist_ok=True)
    first = options.runs / "first.parquet"
    if not first.exists():
        pq.write_table(pq.read_table(options.data / "cifar10-train.parquet").slice(0, IMAGES), first)
    told = json.loads(options.out.read_text()) if options.out.exists() else {"encoders": {}}
    for name in (SHIPPED, *TRAINED):
        title, epochs = TRAINED.get(name, name), None if name == SHIPPED else options.epochs
        if options.only not in (None, name) or told["encoders"].get(title, {"epochs": -1})["epochs"] == epochs:
            continue
        run = name if epochs is None else trained(name, options.data, options.runs, epochs=epochs)
        began = time.monotonic()
        out = options.runs / f"calibrated-{Path(run).name}"
        card = calibrate(run, Request(data=f"parquet:{first}", out=out))
        seconds = time.monotonic() - began
        row = {
            "seconds": round(seconds, 1),
            "threads": torch.get_num_threads(),
            "backbone": load(out).config.backbone.name,
            "epochs": epochs,
            "held_out": card["held_out"],
            **judge(load(out), options.data),
        }
        told["encoders"][title] = row
        told |= {
            "meaning": f"calibrated on {IMAGES} CIFAR-10 training images, judged on {TEST} test images; R-AUROC in %",
            "hardware": describe_machine(torch.device("cpu")),
            "command": f"python benchmarks/calibrated.py --data DIR --runs DIR --epochs {options.epochs} --out FILE",
        }
        options.out.write_text(json.dumps(told, indent=1) + "\n")
        print(json.dumps({name: row}, indent=1), flush=True)


if __name__ == "__main__":
    main()
