"""A tiny encoder shipped by benchmarks/ship.py, with its run, its results and labelled images."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from coloured import coloured
from embedding import encoded
from prosmin import config as configs
from prosmin.encoder import load, save_encoder
from prosmin.encoder.background import make_background, write_background
from prosmin.methods import build_method
from tiny_methods import tiny_method

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # scripts, not a package

import ship  # noqa: E402

NAME = "tiny-vit"
FILES = ["CARD.md", "background.safetensors", "card.json", "encoder.json", "encoder.safetensors"]


def make_run(folder: Path, *, steps: int = 8, **changes: str) -> Path:
    """The folder of a run, as if trained on a machine whose data lie elsewhere."""
    config = tiny_method("prosmin", vit=True, data__spec="parquet:/far/away/cifar10-train.parquet", **changes)
    method = build_method(config)
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=random))
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(configs.to_yaml(config))
    save_encoder(method, config, folder, step=steps, steps=8, trained=steps)
    encoder = load(folder, device="cpu")
    sample = encoder.features(coloured(20, seed=4, side=16).images)
    write_background(folder, make_background(encoder.features, sample), encoder=encoder.card["hash"])
    return folder


def make_evidence(config: configs.Config) -> dict:
    """A file of evidence.py with round numbers; its kNN is that of four right labels in five."""
    tree = configs.to_tree(config)
    tree["data"]["spec"] = "parquet:cifar10-train.parquet"
    scores = {"knn_distance": {"auroc": 0.71}, "mean_log_scale": {"auroc": 0.93}, "residual": {"auroc": None}}
    results = {
        "knn": {
            "metrics": {"top1": 0.8},
            "baselines": {"untrained": {"top1": 0.31}, "raw pixels": {"top1": 0.42}},
            "settings": {"k": 20},
        },
        "linear": {"metrics": {"top1": 0.85, "nll": 0.4567, "ece": 0.021, "ece_floor": 0.011}},
        "ood": {"sets": {"parquet:svhn-test10k.parquet": scores}, "settings": {"default_score": "knn_distance"}},
        "corruption": {"metrics": {"mean_error": 0.29, "clean_error": 0.15}},
        "uncertainty": {
            "metrics": {"r_auroc": 0.66, "recall_at_1": None},
            "settings": {"uncertainty": "mean log scale"},
        },
    }
    return {
        "recipe": "cifar10-vit",
        "overrides": {"training.epochs": "100"},
        "epochs": 100,
        "seed": 0,
        "training_seconds": 600.0,
        "hardware": {"device": "NVIDIA H200", "torch": "2.11.0"},
        "health": {"verdict": "healthy: target std 0.060"},
        "chosen_on": "a held-out tenth of train",
        "results": results,
        "configuration": tree,
    }


def write_parquet(file: Path, count: int, *, seed: int) -> None:
    """Coloured images, every fifth with a wrong label: a vote of 20 neighbours is far from a tie."""
    pictures = coloured(count, seed=seed, side=16)
    labels = [(int(label) + (i % 5 == 0)) % 3 for i, label in enumerate(pictures.labels)]
    pq.write_table(pa.table({"image": [encoded(image) for image in pictures.images], "label": labels}), file)


def ship_tiny(root: Path) -> Path:
    """A run, its evidence, labelled images, and the run's encoder shipped."""
    run = make_run(root / "run")
    (root / "evidence-s0.json").write_text(json.dumps(make_evidence(load(run).config)))
    (root / "data").mkdir()
    write_parquet(root / "data/cifar10-train.parquet", 150, seed=0)
    write_parquet(root / "data/cifar10-test.parquet", 50, seed=1)
    words = [str(run), NAME, "--results", str(root / "evidence-s0.json"), "--to", str(root / "encoders")]
    assert ship.main(words) == 0
    return root
