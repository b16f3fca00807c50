"""What does an encoder forget when it is trained further on other images, and what does training.guard keep?

    OMP_NUM_THREADS=1 python benchmarks/continuing.py --data DIR --runs DIR \
        --out benchmarks/results/continuing-cpu.json

DIR holds cifar10 and cifar100, train and test (.parquet, columns image and label). Two small encoders are trained on
CIFAR-10, one with MoCo v3 and one as a classifier, which has more to forget. Both are continued with MoCo v3 on 5,000
images of CIFAR-100. kNN on both sets, as `prosmin evaluate` does it, with the first 10,000 training images as the bank,
before and after, with the guard and without. The file is written after every way to continue; a second call goes on.
"""

import argparse
import json
import subprocess
import time
import warnings
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from prosmin import config as configs
from prosmin.data.image_sets import Pictures, load_pictures
from prosmin.encoder import Encoder, load, save_encoder
from prosmin.encoder.file import read_card
from prosmin.encoder.neighbours import knn_probabilities
from prosmin.machine import describe_machine
from prosmin.methods import build_method
from prosmin.training.guard import START, linear_cka, neighbours_kept
from prosmin.training.pretrain import pretrain

IMAGES, BANK, EPOCHS, LIMIT = 5_000, 10_000, 30, 0.5
FIELDS = {
    "method.name": "mocov3",
    "backbone.name": "resnet8_cifar",
    "training.checkpoint_every": "500",
    "training.log_every": "20",
}
EPOCHS_OF_START, CLASSIFIER_EPOCHS, CLASSIFIER_RATE, BATCH = 4, 4, 0.01, 128
GENTLE = {"backbone.freeze_epochs": "3", "optimizer.layer_decay": "0.7", "optimizer.lr": "5e-4"}
WAYS: dict[str, dict[str, dict[str, str]]] = {
    "MoCo v3": {"gentle": GENTLE, "plain": {}, "high learning rate": {"optimizer.lr": "1e-2"}},
    "classifier": {"plain": {}},
}
"""Fields of a run that differ from those of the start, by start: `plain` trains on as if from scratch."""
Sets = dict[str, tuple[Pictures, Pictures]]


def train_start(data: Path, folder: Path) -> Path:
    """MoCo v3 on CIFAR-10."""
    own = {"data.spec": f"parquet:{data / 'cifar10-train.parquet'}", "training.epochs": str(EPOCHS_OF_START)}
    return pretrain(configs.resolve(recipe="demo", overrides=FIELDS | own), folder)


def train_classifier(data: Path, folder: Path) -> Path:
    """The same network with a linear layer on the labels of CIFAR-10; its heads for MoCo v3 stay untrained."""
    if (folder / "encoder.json").exists():
        return folder
    pictures = load_pictures(f"parquet:{data / 'cifar10-train.parquet'}")
    assert isinstance(pictures, Pictures)
    assert pictures.labels is not None
    config = configs.resolve(recipe="demo", overrides=FIELDS)
    torch.manual_seed(0)
    method = build_method(config).train()
    backbone = method.get_submodule("online.backbone")
    model = nn.Sequential(backbone, nn.Linear(backbone.num_features, len(pictures.classes)))  # type: ignore[arg-type]
    steps = CLASSIFIER_EPOCHS * (len(pictures) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=CLASSIFIER_RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, CLASSIFIER_RATE, total_steps=steps)
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (config.views.mean, config.views.std))
    for _ in range(steps):
        drawn = torch.randint(len(pictures), (BATCH,))
        loss = F.cross_entropy(model((shifted(pictures.images[drawn]) / 255 - mean) / std), pictures.labels[drawn])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    folder.mkdir(parents=True, exist_ok=True)
    save_encoder(method, config, folder, step=steps, steps=steps, trained=steps)
    return folder


def shifted(images: Tensor) -> Tensor:
    """A batch, moved by up to four pixels and perhaps mirrored."""
    size = images.shape[-1]
    top, left = torch.randint(9, (2,)).tolist()
    moved = F.pad(images, (4, 4, 4, 4))[..., top : top + size, left : left + size]
    return torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, moved.flip(-1), moved)


def continue_run(folder: Path, start: Path, images: str, way: dict[str, str], *, guard: float) -> Path:
    """Train or, if only the guard has changed since, choose the encoder again."""
    fields = FIELDS | {
        "data.spec": images,
        "backbone.weights": str(start),
        "training.epochs": str(EPOCHS),
        "training.guard": str(guard),
        **way,
    }
    (folder / "encoder.json").unlink(missing_ok=True)
    return pretrain(configs.resolve(recipe="demo", overrides=fields), folder)


def knn(encoder: Encoder, sets: Sets) -> dict[str, float]:
    """Top-1 of each set in per cent, k = 20."""
    found = {}
    for name, (bank, test) in sets.items():
        assert bank.labels is not None
        assert test.labels is not None
        votes = knn_probabilities(
            encoder.features(bank), bank.labels, encoder.features(test), classes=len(bank.classes), k=20
        )  # fmt: skip
        found[name] = round(100 * float(votes.argmax(1).cpu().eq(test.labels).double().mean()), 2)
    return found


def compare(encoder: Encoder, run: Path, images: Pictures) -> dict[str, float]:
    """The guard's numbers of an encoder."""
    stored = load_file(run / START)
    now = encoder.features(images.subset(stored["numbers"]))
    shares = {"neighbours": neighbours_kept(stored["features"], now), "cka": linear_cka(stored["features"], now)}
    return {name: round(float(value), 4) for name, value in shares.items()}


def judge(run: Path, start: Path, images: str, way: dict[str, str], sets: Sets) -> dict[str, Any]:
    """One way to continue, with the guard and without: training is the same, the encoder is not."""
    began = time.process_time()
    pictures = load_pictures(images)
    assert isinstance(pictures, Pictures)
    found: dict[str, Any] = {"fields": way}
    for name, guard in (("guard on", LIMIT), ("guard off", 0.0)):
        encoder = load(continue_run(run, start, images, way, guard=guard), device="cpu")
        share = read_card(run).get("trained_share", 1.0)
        found[name] = {"trained_share": share, **knn(encoder, sets), **compare(encoder, run, pictures)}
    return found | {"cpu_seconds": round(time.process_time() - began)}


def describe(starts: dict[str, Any]) -> dict[str, Any]:
    """The file: what was found so far, and how."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {
        "meaning": "kNN top-1 % (k = 20, bank of 10,000); neighbours, cka: agreement with the start on the new images",
        "limit": LIMIT,
        "epochs": EPOCHS,
        "images": IMAGES,
        "fields": FIELDS,
        "start_epochs": {"MoCo v3": EPOCHS_OF_START, "classifier": CLASSIFIER_EPOCHS},
        "starts": starts,
        "commit": commit.stdout.strip(),
        "hardware": describe_machine(torch.device("cpu")),
        "command": "OMP_NUM_THREADS=1 python benchmarks/continuing.py --data DIR --runs DIR --out FILE",
    }


def main() -> None:
    """Each start, then every way to continue it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--runs", type=Path, required=True, metavar="DIR", help="where the runs are; they continue")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    options.runs.mkdir(parents=True, exist_ok=True)
    images = options.runs / "cifar100-5000.parquet"
    pq.write_table(pq.read_table(options.data / "cifar100-train.parquet").slice(0, IMAGES), images)
    sets: Sets = {}
    for name in ("cifar10", "cifar100"):
        bank, test = (load_pictures(f"parquet:{options.data / name}-{part}.parquet") for part in ("train", "test"))
        assert isinstance(bank, Pictures)
        assert isinstance(test, Pictures)
        sets[name] = bank.subset(torch.arange(BANK)), test
    starts: dict[str, Any] = {}
    for name, train in (("MoCo v3", train_start), ("classifier", train_classifier)):
        folder = options.runs / name.lower().replace(" ", "-")
        start = train(options.data, folder / "start")
        starts[name] = {"before": knn(load(start, device="cpu"), sets), "ways": {}}
        print(name, json.dumps(starts[name]["before"]), flush=True)
        for title, way in WAYS[name].items():
            run = folder / title.replace(" ", "-")
            starts[name]["ways"][title] = judge(run, start, f"parquet:{images}", way, sets)
            print(title, json.dumps(starts[name]["ways"][title]), flush=True)
            options.out.write_text(json.dumps(describe(starts), indent=1) + "\n")


if __name__ == "__main__":
    main()
