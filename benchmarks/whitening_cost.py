"""What does whitening cost? Time of a training step with and without it, and of one inverse root.

    python benchmarks/whitening_cost.py --out benchmarks/results/whitening-cost-h200.json
    python benchmarks/whitening_cost.py --tiny --out /tmp/cost.json      # any machine

Both steps have the same networks but for the ends: a projector that whitens its output and targets whitened by moving
averages, against BatchNorm without weights and centred targets. They take turns; the median of the rounds counts.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from evidence import WHITENED
from prosmin import config as configs
from prosmin.benchmark.measure import measure
from prosmin.benchmark.trainer import Trainer, release_memory
from prosmin.machine import describe_machine
from prosmin.models.whitening import inverse_root
from sections import Sections
from step_anatomy import random_views

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VARIANTS = {
    "whitened": WHITENED,
    "standardised": WHITENED | {"heads.last": "none", "target.whitening": "centre"},
}
TINY = {"heads.hidden": "64", "heads.predictor_hidden": "64", "heads.dim": "16", "training.batch_size": "32"}


def time_step(recipe: str, fields: dict[str, str]) -> dict[str, Any]:
    """Milliseconds of a step on ready views."""
    trainer = Trainer(configs.resolve(recipe=recipe, overrides=fields))
    views = random_views(trainer.config, pictures=trainer.config.training.batch_size, device=trainer.device)
    timing = measure(lambda: trainer.train([views]), trainer.device, warmup=6, repeats=5, seconds=0.5, limit=20)
    trainer.check()
    batch = trainer.config.training.batch_size
    trainer = views = None  # type: ignore[assignment]
    release_memory(HERE)
    return timing.row(batch)


def time_roots(size: int) -> dict[str, Any]:
    """Milliseconds of `inverse_root` forward, and forward and backward, recorded once and replayed on a GPU."""
    x = torch.randn(4 * size, size, dtype=torch.float64, device=HERE)
    covariance = (x.T @ x / len(x)).requires_grad_()

    def forward() -> None:
        inverse_root(covariance, eps=1e-3)

    def backward() -> None:
        torch.autograd.grad(inverse_root(covariance, eps=1e-3).sum(), covariance)

    found = {}
    for name, run in {"forward": forward, "forward and backward": backward}.items():
        call = run
        if HERE.type == "cuda":
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                run()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            call = graph.replay
        found[name] = round(1e3 * measure(call, HERE).median, 4)
    return found


def main() -> None:
    """Both recipes, round after round; the file is written after every step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipes", default="cifar10-resnet18,cifar10-vit")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--compile", default="none")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    head = {"hardware": describe_machine(HERE), "command": " ".join(["python", *sys.argv]), "compile": options.compile}
    sections = Sections(options.out, head)
    roots = (16,) if options.tiny else (128, 256, 512)
    sections.run("inverse root", lambda found: found.update({str(n): time_roots(n) for n in roots}), seconds=60)
    for recipe in options.recipes.split(","):

        def steps(found: dict[str, Any], recipe: str = recipe) -> None:
            rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
            for _ in range(options.rounds):
                for name, fields in VARIANTS.items():
                    more = {"compute.compile": options.compile} | (TINY if options.tiny else {})
                    rounds[name].append(time_step(recipe, fields | more))
            times = {name: statistics.median(row["ms"] for row in rows) for name, rows in rounds.items()}
            found |= {"rounds": rounds, "ms": times}
            found["share"] = round(times["whitened"] / times["standardised"] - 1.0, 4)

        sections.run(recipe, steps, seconds=240)
    print({name: found.get("share", found) for name, found in sections.document["sections"].items()}, flush=True)


if __name__ == "__main__":
    main()
