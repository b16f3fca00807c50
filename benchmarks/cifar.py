"""Which settings learn best on CIFAR-10? The tuning runs of benchmarks/LOG.md, judged on a held-out tenth of train.

    python benchmarks/cifar.py --train parquet:cifar10-train.parquet --out benchmarks/results/tuning.jsonl \
        --run base cifar10-resnet18 training.epochs=25 --run slow cifar10-resnet18 target.momentum=0.99

Every run appends one line: name, configuration hash, overrides, seconds, img/s, kNN and linear top-1, NLL and ECE on
the held-out tenth (the probe and the kNN bank see the other nine tenths), R-AUROC of the uncertainty there and of the
forecast's own rankings (scale, signal to noise, size of the error), how the forecasts of some of its images hold,
health numbers, hardware, command. Test images are never read here.
"""

import argparse
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
from torch import Tensor

from prosmin import config as configs
from prosmin.data.image_sets import Pictures, load_pictures
from prosmin.data.subsets import held_out_mask
from prosmin.encoder import Encoder, load
from prosmin.encoder.neighbours import nearest, vote
from prosmin.errors import Stopped
from prosmin.evaluation.forecasts import make_forecasts, no_forecasts, radius_forecasts
from prosmin.evaluation.metrics.calibration import classification_metrics
from prosmin.evaluation.metrics.coverage import judge_coverage
from prosmin.evaluation.metrics.retrieval import r_auroc, right_neighbours
from prosmin.evaluation.metrics.skill import judge_skill
from prosmin.evaluation.probes.linear import linear_probe
from prosmin.training.pretrain import pretrain

HEALTH = (
    "step",
    "loss",
    "target_std",
    "feature_rank",
    "target_rank",
    "whitened_variance",
    "skill",
    "scale_mean",
    "grad_norm",
)
FORECAST = 512
"""Images whose forecasts are judged, and as many that they are held against."""
KEPT = (
    "coverage_90",
    "joint_coverage_90",
    "joint_coverage_90_radius",
    "squared_error_ratio",
    "energy_skill",
    "energy_skill_coordinates",
    "energy_skill_climatology",
)


def judge(run: Path, train: Pictures, *, linear: bool) -> dict[str, float]:
    """kNN and, where asked, a linear probe from nine tenths of train to the held-out tenth."""
    encoder = load(run)
    features = encoder.features(train).to(encoder.device)
    assert train.labels is not None
    labels = train.labels.to(encoder.device)
    held = held_out_mask(train.labels, train.keys, train.spec).to(encoder.device)
    classes = len(train.classes)
    similarities, indices = nearest(features[~held], features[held], 200)
    found: dict[str, float] = {}
    for k in (20, 200):
        votes = vote(similarities[:, :k], labels[~held][indices[:, :k]], classes=classes)
        found[f"knn{k}_top1"] = float((votes.argmax(1) == labels[held]).double().mean())
    found |= _reliability(encoder, train.subset(held.cpu()), features[held].cpu(), train.subset(~held.cpu()))
    if not linear:
        return found
    probe = linear_probe(features[~held], labels[~held], classes=classes, seed=0)
    scores = classification_metrics(probe.probabilities(features[held]), labels[held], bootstrap=50)
    return found | {f"linear_{name}": scores[name] for name in ("top1", "nll", "ece", "ece_floor")}


def _reliability(encoder: Encoder, held: Pictures, features: Tensor, others: Pictures) -> dict[str, float]:
    """Whether the uncertainty foretells wrong neighbours among the held-out; whether forecasts hold, if there are."""
    assert held.labels is not None
    uncertainty = encoder.uncertainty(held)
    found = {"r_auroc": r_auroc(right_neighbours(features, held.labels), uncertainty)}
    scale = encoder(held.subset(torch.arange(2))).scale
    if no_forecasts(encoder, has_scale=scale is not None and bool((scale > 0).any())):
        return found
    judged, known = (
        make_forecasts(encoder, p.subset(torch.linspace(0, len(p) - 1, min(FORECAST, len(p))).long()), seed=0)
        for p in (held, others)
    )
    told_radius = radius_forecasts(encoder, judged)
    told = judge_coverage(judged, seed=0, radius=told_radius)[0]
    told |= judge_skill(judged, known, seed=0)[0]
    right = right_neighbours(features, held.labels)
    forecast = encoder(held)
    assert forecast.scale is not None
    rankings = {
        "scale": forecast.scale.log().mean(1),
        "signal": -forecast.mean.square().sum(1) / forecast.scale.square().sum(1),
    }
    if told_radius is not None:
        inputs = (forecast.mean.to(encoder.device), forecast.scale.to(encoder.device))
        centre = encoder.method.radius(*inputs)[0].cpu()  # type: ignore[operator]
        rankings["error"] = centre + forecast.scale.square().mean(1).log() / 2
    found |= {f"r_auroc_{name}": r_auroc(right, values) for name, values in rankings.items()}
    return found | {name: told[name] for name in KEPT if name in told}


def health_path(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """The health numbers of some eight rows of metrics.jsonl and of the last, to four digits."""
    some = rows[-1 :: -max(1, len(rows) // 8)][::-1]
    return [{key: float(f"{row[key]:.4g}") for key in HEALTH if key in row} for row in some]


def one(
    name: str, recipe: str, overrides: dict[str, str], train: Pictures, folder: Path, *, linear: bool
) -> dict[str, object]:
    """One run from start to its line."""
    config = configs.resolve(recipe=recipe, overrides={"data.spec": train.spec, **overrides})
    began = time.monotonic()
    run = pretrain(config, folder / name)
    seconds = time.monotonic() - began
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rates = sorted(row["images_per_second"] for row in rows[1:]) or [0.0]
    path = health_path(rows)
    began = time.monotonic()
    measured = judge(run, train, linear=linear)
    return {
        "name": name,
        "recipe": recipe,
        "overrides": overrides,
        "fingerprint": configs.fingerprint(config),
        "seconds": round(seconds, 1),
        "images_per_second": rates[len(rates) // 2],
        "judging_seconds": round(time.monotonic() - began, 1),
        **measured,
        "path": path,
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "command": " ".join(["python", *sys.argv]),
    }


def main() -> None:
    """Every run in turn; what fails is said and the next begins."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--run", nargs="+", action="append", required=True, metavar=("NAME RECIPE", "FIELD=VALUE"))
    parser.add_argument("--knn-only", action="store_true", help="leave the linear probe out")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    train = load_pictures(options.train)
    with tempfile.TemporaryDirectory() as folder:
        for name, recipe, *fields in options.run:
            overrides = dict(field.split("=", 1) for field in fields)
            try:
                line = one(name, recipe, overrides, train, Path(folder), linear=not options.knn_only)
            except Stopped:
                raise
            except Exception as error:
                line = {
                    "name": name,
                    "recipe": recipe,
                    "overrides": overrides,
                    "failed": f"{type(error).__name__}: {error}",
                }
            print(json.dumps(line), flush=True)
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
