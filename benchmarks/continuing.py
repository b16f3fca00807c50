"""What does an encoder forget when it is trained further on other images, and what does training.guard keep?

    python benchmarks/continuing.py --data DIR --runs DIR --out benchmarks/results/continuing-cpu.json

DIR holds cifar10 and cifar100, train and test (.parquet, columns image and label). A small encoder is trained on
CIFAR-10, then continued on 5,000 images of CIFAR-100 in several ways. kNN on both sets, as `prosmin evaluate` does it,
with the first 10,000 training images as the bank, before and after, with the guard and without. For comparison with
the guard: the average of the starting and the last weights with the largest share of the last that keeps the limit, as
WiSE-FT does it (Wortsman et al., 2022).
"""

import argparse
import json
import subprocess
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file
from torch import Tensor

from prosmin import config as configs
from prosmin.data.image_sets import Pictures, load_pictures
from prosmin.encoder import Encoder, load
from prosmin.encoder.neighbours import knn_probabilities
from prosmin.machine import describe_machine
from prosmin.training.guard import START, linear_cka, neighbours_kept
from prosmin.training.pretrain import pretrain

IMAGES, BANK, EPOCHS, LIMIT = 5_000, 10_000, 30, 0.5
START_FIELDS = {
    "method.name": "mocov3",
    "backbone.name": "resnet8_cifar",
    "training.epochs": "4",
    "training.checkpoint_every": "500",
    "training.log_every": "20",
}
GENTLE = {"backbone.freeze_epochs": "3", "optimizer.layer_decay": "0.7", "optimizer.lr": "5e-4"}
WAYS = {
    "gentle": GENTLE,
    "plain": {},
    "high learning rate": {"optimizer.lr": "1e-2"},
}
"""Fields of a run that differ from those of the start: `plain` trains on as if from scratch."""
SHARES = [share / 10 for share in range(11)]


def continue_run(folder: Path, start: Path, images: str, way: dict[str, str], *, guard: float) -> Path:
    """Train or, if only the guard has changed since, choose the encoder again."""
    fields = START_FIELDS | {
        "data.spec": images,
        "backbone.weights": str(start),
        "training.epochs": str(EPOCHS),
        "training.guard": str(guard),
        **way,
    }
    (folder / "encoder.json").unlink(missing_ok=True)
    return pretrain(configs.resolve(recipe="demo", overrides=fields), folder)


def knn(encoder: Encoder, sets: dict[str, tuple[Pictures, Pictures]]) -> dict[str, float]:
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


def averaged(run: Path, start: dict[str, Tensor], share: float) -> Encoder:
    """The run's encoder with the average of the starting backbone and its own, of which it has this share."""
    encoder = load(run, device="cpu")
    backbone = encoder.method.get_submodule("online.backbone")
    mixed = {name: start[name].lerp(last, share) if last.is_floating_point() else last
             for name, last in backbone.state_dict().items()}  # fmt: skip
    backbone.load_state_dict(mixed)
    return encoder


def best_average(run: Path, start: Path, images: Pictures) -> tuple[float, Encoder]:
    """The largest share of the last weights that keeps the limit, and that encoder."""
    prefix = "online.backbone."
    first = {name.removeprefix(prefix): tensor for name, tensor in load_file(start / "encoder.safetensors").items()
             if name.startswith(prefix)}  # fmt: skip
    for share in reversed(SHARES):
        encoder = averaged(run, first, share)
        if compare(encoder, run, images)["neighbours"] >= LIMIT:
            return share, encoder
    raise AssertionError("the start keeps all its neighbours")


def judge(run: Path, start: Path, images: str, way: dict[str, str], sets: Any) -> dict[str, Any]:
    """One way to continue: the last step, the guard's choice, and the average."""
    began = time.process_time()
    continue_run(run, start, images, way, guard=LIMIT)
    seconds = time.process_time() - began
    pictures, card = load_pictures(images), partial(json.loads)
    describe = lambda encoder: {**knn(encoder, sets), **compare(encoder, run, pictures)}  # noqa: E731
    guarded = {"step": card((run / "encoder.json").read_text())["step"], **describe(load(run, device="cpu"))}
    continue_run(run, start, images, way, guard=0.0)
    last = {"step": card((run / "encoder.json").read_text())["step"], **describe(load(run, device="cpu"))}
    share, encoder = best_average(run, start, pictures)
    return {
        "fields": way,
        "guard off": last,
        "guard on": guarded,
        "average": {"share": share, **describe(encoder)},
        "cpu_seconds": round(seconds),
    }


def main() -> None:
    """The start, then every way to continue."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--runs", type=Path, required=True, metavar="DIR", help="where the runs are; they continue")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    options.runs.mkdir(parents=True, exist_ok=True)
    images = options.runs / "cifar100-5000.parquet"
    pq.write_table(pq.read_table(options.data / "cifar100-train.parquet").slice(0, IMAGES), images)

    fields = START_FIELDS | {"data.spec": f"parquet:{options.data / 'cifar10-train.parquet'}"}
    start = pretrain(configs.resolve(recipe="demo", overrides=fields), options.runs / "start")
    sets = {name: (load_pictures(f"parquet:{options.data / name}-train.parquet").subset(torch.arange(BANK)),
                   load_pictures(f"parquet:{options.data / name}-test.parquet"))
            for name in ("cifar10", "cifar100")}  # fmt: skip
    found: dict[str, Any] = {"before": knn(load(start, device="cpu"), sets), "ways": {}}
    for name, way in WAYS.items():
        found["ways"][name] = judge(options.runs / name.replace(" ", "-"), start, f"parquet:{images}", way, sets)
        print(name, json.dumps(found["ways"][name]), flush=True)
    told = {
        "meaning": "kNN top-1 % (k = 20, bank of 10,000); neighbours, cka: agreement with the start on the new images",
        "limit": LIMIT,
        "epochs": EPOCHS,
        "images": IMAGES,
        "start": START_FIELDS,
        **found,
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip(),
        "hardware": describe_machine(torch.device("cpu")),
        "torch": torch.__version__,
        "command": "python benchmarks/continuing.py --data DIR --runs DIR --out benchmarks/results/continuing-cpu.json",
    }
    options.out.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(found["before"]))


if __name__ == "__main__":
    main()
