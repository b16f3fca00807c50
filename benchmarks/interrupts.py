"""Does Ctrl-C, at any moment of any command, end it in one message and leave what the same command continues?

    python benchmarks/interrupts.py --out benchmarks/results/interrupts-cpu.json

Each command is interrupted at 50 random moments of the time it takes, as a terminal does it: SIGINT to the process
group. Every tenth time Ctrl-C is pressed twice. After each interrupt the same command starts again; every fifth time it
may finish, and its files are compared with those of an undisturbed command.

What is checked after each interrupt: status 130, one message and no other error; all processes have ended; no temporary
file is left (unless Ctrl-C came twice); every finished part is still there. A command that had already finished has
status 0.

Most commands are forked from a process that has imported torch, so that a start takes no seconds; every fifth start,
and every start of a command with several processes, is that of a shell. Signals are sent from the moment when the
program handles them: what comes before is Python's own start. Without work and not here: recipes, and
explore, which replaces itself by another program.
"""

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported; forked processes have no other threads

import numpy as np
import torch
from PIL import Image

from interrupted import Case, Seen, Trial, start
from prosmin import calibrate, embed, export, inspect, report, search  # noqa: F401  (for the forked processes)
from prosmin.ablation import run as _ablation  # noqa: F401
from prosmin.doctor import selftest  # noqa: F401
from prosmin.evaluation import run as _evaluation  # noqa: F401
from prosmin.training import pretrain  # noqa: F401

COMMAND = "python benchmarks/interrupts.py --out benchmarks/results/interrupts-cpu.json"
TINY = {
    "backbone.name": "resnet8_cifar", "heads.hidden": 32, "heads.bottleneck": 16, "heads.dim": 24,
    "heads.predictor_hidden": 32, "views.local": 1, "training.batch_size": 16, "training.epochs": 1,
    "training.log_every": 1, "training.checkpoint_every": 2, "training.max_steps": 10, "training.knn_every": 5,
    "training.knn_pictures": 100, "compute.accelerator": "cpu",
}  # fmt: skip
OPTIONS = tuple(f"--{name}={value}" for name, value in TINY.items())
EMBED = ("embed", "../run", "--data", "photos@ood", "--reference", "photos@test", "--views=0", "--out", "x.parquet")
PRETRAIN = ("pretrain", "--recipe", "demo", "--out", "new", *OPTIONS)
EVALUATE = ("evaluate", "run", "--data", "folder:../images", "--protocols")
CORRUPTION = (
    "corruption", "--corruptions=fog,frost", "--severities=1,3", "--corruption-generator=imagecorruptions",
    "--corruption-parameters=imagenet-c",
)  # fmt: skip
RESULT = "run/results/*.json"
CHECKPOINT = "new/checkpoints/step-*"
PART = "x.parquet.parts/*-*"
ENCODER = ("new/encoder.safetensors",)
CASES = (
    Case("embed", EMBED, PART, ("x.parquet",)),
    Case("embed --processes 2", (*EMBED, "--processes=2"), PART, several=True),
    Case("pretrain", PRETRAIN, CHECKPOINT, ENCODER),
    Case("pretrain, 2 processes", (*PRETRAIN, "--compute.devices=2"), CHECKPOINT, ENCODER, several=True),
    Case("evaluate", (*EVALUATE, "knn,linear,uncertainty", "--baselines=none"), RESULT, uses=("run",)),
    Case("evaluate corruption", (*EVALUATE, *CORRUPTION), RESULT, several=True, uses=("run",)),
    Case("calibrate", ("calibrate", "../run", "--data=photos@test", "--out=new"), "new/views.parts/*-*"),
    Case("inspect", ("inspect", "../images", "--encoder", "../run", "--out", "found"), "found/.parts/**/*.parquet"),
    Case("report", ("report", "run"), same=("run/report.html",), uses=("run",)),
    Case("export onnx", ("export", "../run", "--format=onnx", "--out", "encoder.onnx")),
    Case("export safetensors", ("export", "../run", "--format=safetensors", "--out", "encoder")),
    Case("search", ("search", "../images/test/red/000.png", "--in", "../x.parquet")),
    Case("views", ("views", "--out", "views.png"), same=("views.png",)),
    Case("doctor", ("doctor",)),
    Case("demo", ("demo", "--out", "new", *OPTIONS), CHECKPOINT, ENCODER),
    Case("ablate", ("ablate", "--over", "training.seed=0,1", "--out", "grid", *OPTIONS), "grid/*/checkpoints/step-*"),
    Case("benchmark", ("benchmark", "--out", "speed.json", *OPTIONS)),
)


def measure(case: Case, root: Path, count: int) -> dict[str, object]:
    """Interrupt one command `count` times."""
    moments, seen, began = random.Random(case.name), Seen(), time.monotonic()
    shutil.rmtree(root / "undisturbed", ignore_errors=True)
    trial = Trial(case, root, seen)
    takes = {shell: trial.finish(shell=shell) for shell in ((True,) if case.several else (False, True))}
    since, starts = 0, 0
    while seen.counts["interrupted"] < count and len(seen.failures) < 10:
        starts += 1
        shell = case.several or starts % 5 == 0
        again = moments.random() * 0.2 if starts % 10 == 0 else None
        since = since + 1 if trial.interrupt(moments.random() * takes[shell], again, shell=shell) else 0
        if since == 5:
            trial.finish(shell=shell)
            since = 0
    ordered = sorted(seen.seconds)
    return {
        **seen.counts,
        "failures": seen.failures,
        "median seconds to the end": round(statistics.median(ordered), 3),
        "largest": round(ordered[-1], 3),
        "seconds of an undisturbed command": {"shell" if k else "forked": round(v, 2) for k, v in takes.items()},
        "seconds": round(time.monotonic() - began),
    }


def make_images(folder: Path) -> None:
    """600 small images of two classes, in two splits."""
    values = np.random.default_rng(0)
    for i in range(600):
        label = i % 2
        pixels = values.integers(0, 150, (32, 32, 3), dtype=np.uint8)
        pixels[:, :, 2 * label] += 100
        path = folder / ("test" if i < 200 else "train") / ("red", "blue")[label] / f"{i:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)


def prepare(root: Path) -> None:
    """The images, a run and a file of embeddings that the commands use."""
    make_images(root / "images")
    (root / "setup.tmp").mkdir()
    (root / "setup").mkdir()
    for words in (
        ("pretrain", "--recipe", "demo", "--out", "../run", *OPTIONS),
        ("embed", "../run", "--data", "folder:../images", "--reference=none", "--views=0", "--out", "../x.parquet"),
    ):
        if os.waitpid(start(words, root / "setup", shell=False), 0)[1]:
            raise SystemExit((root / "setup.log").read_text())


def main() -> None:
    """All commands, or those asked for; one result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interrupts", type=int, default=50, help="for each command")
    parser.add_argument("--only", action="append", metavar="NAME", help="these commands; others in the file stay")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    results: dict[str, object] = json.loads(options.out.read_text()) if options.only and options.out.exists() else {}
    results |= {
        "interrupts": options.interrupts,
        "hardware": f"CPU, {platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "command": COMMAND,
    }
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        for case in CASES:
            if options.only and case.name not in options.only:
                continue
            results[case.name] = measure(case, Path(folder), options.interrupts)
            print(case.name, results[case.name], flush=True)
            options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
