"""How much do processes send each other in a step, and what does that mean for many GPUs?

    python benchmarks/scaling.py --count      # two processes on this machine: benchmarks/results/traffic.json
    python benchmarks/scaling.py              # the table of docs/scaling.md, from results alone

The count runs one step of the recipe in two gloo processes with two images each; what is sent does not depend on the
number of images, but for MoCo v3's keys. The calculation takes the measured step of one GPU
(benchmarks/results/methods-h200.json) and adds the time of a ring all-reduce, 2 (n - 1) / n of the bytes over one link,
as if nothing of it were hidden behind the backward pass. Links are nominal: see LINKS.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TRAFFIC, STEPS = ROOT / "benchmarks/results/traffic.json", ROOT / "benchmarks/results/methods-h200.json"
DOCS = ROOT / "docs/scaling.md"
START, END = "<!-- calculated:start -->\n", "<!-- calculated:end -->"
RECIPE = "imagenet-vit-small"
WORLDS = (1, 8, 64)
LINKS = {1: (1.0, ""), 8: (450e9, "NVLink, 450 GB/s"), 64: (50e9, "400 Gbit/s a GPU between nodes")}


def count() -> None:
    """Two processes, one step of every method: the bytes each of them sends."""
    methods = ("prosmin", "dino", "ibot", "mocov3")
    traffic: dict[str, Any] = {"recipe": RECIPE, "command": "python benchmarks/scaling.py --count", "methods": {}}
    for method in methods:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "bytes.json"
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
            subprocess.run(
                [*command, __file__, "--worker", method, str(out)],
                check=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            traffic["methods"][method] = json.loads(out.read_text())
            print(method, traffic["methods"][method], flush=True)
    TRAFFIC.write_text(json.dumps(traffic, indent=1) + "\n")


def worker(method: str, out: Path) -> None:
    """One of the two processes: counts what goes through torch.distributed."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from prosmin import config as configs
    from prosmin.training.pretrain import pretrain

    sent: dict[str, int] = {"gradients": 0, "other": 0, "calls": 0}
    reduce, gather = dist.all_reduce, dist.all_gather

    def counted_reduce(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        sent["other"] += tensor.numel() * tensor.element_size()
        sent["calls"] += 1
        return reduce(tensor, *arguments, **options)

    def counted_gather(parts: list[torch.Tensor], tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        sent["other"] += tensor.numel() * tensor.element_size()
        sent["calls"] += 1
        return gather(parts, tensor, *arguments, **options)

    def hook(state: object, bucket: Any) -> Any:
        buffer = bucket.buffer()
        sent["gradients"] += buffer.numel() * buffer.element_size()
        sent["calls"] += 1
        work = reduce(buffer.div_(dist.get_world_size()), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    hook.__annotations__ = {}  # DDP accepts its own type names or none
    construct = DistributedDataParallel.__init__

    def hooked(self: Any, *arguments: Any, **options: Any) -> None:
        construct(self, *arguments, **options)
        self.register_comm_hook(None, hook)

    dist.all_reduce, dist.all_gather = counted_reduce, counted_gather  # type: ignore[assignment]
    DistributedDataParallel.__init__ = hooked  # type: ignore[method-assign]
    fields = {
        "method.name": method, "data.spec": "photos", "compute.accelerator": "cpu", "compute.precision": "32-true",
        "compute.compile": "none", "training.batch_size": 4, "training.max_steps": 1, "training.log_every": 10**6,
        "optimizer.lr": 0.0,
    }  # fmt: skip
    config = configs.resolve(recipe=RECIPE, overrides=fields)
    pretrain(config, out.parent / "run")
    if int(os.environ["RANK"]) == 0:
        out.write_text(json.dumps(sent))


def table() -> str:
    """The calculation, as Markdown."""
    traffic, measured = json.loads(TRAFFIC.read_text()), json.loads(STEPS.read_text())
    lines = [
        "| method | gradients | other | " + " | ".join(f"{n} GPU{'s' * (n > 1)}, img/s" for n in WORLDS) + " |",
        "|---" * (3 + len(WORLDS)) + "|",
    ]
    steps = {row["method"]: row for row in measured["table"] if row["recipe"] == RECIPE}
    for method, sent in traffic["methods"].items():
        step = steps[method]["ms"] / 1e3
        batch = round(steps[method]["images_per_second"] * step)
        rates = []
        for n in WORLDS:
            reduce = 2 * (n - 1) / n * (sent["gradients"] + sent["other"]) / LINKS[n][0] if n > 1 else 0.0
            rates.append(f"{n * batch / (step + reduce):,.0f}")
        amounts = f"{sent['gradients'] / 1e6:.1f} MB | {sent['other'] / 1e3:.1f} kB"
        lines.append(f"| {method} | {amounts} | " + " | ".join(rates) + " |")
    return "\n".join(lines) + "\n"


def rewritten() -> str:
    """docs/scaling.md with its table made anew."""
    before, rest = DOCS.read_text().split(START)
    return before + START + table() + END + rest.split(END)[1]


def main() -> None:
    """Count, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--worker", nargs=2, metavar=("METHOD", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker[0], Path(options.worker[1]))
    elif options.count:
        count()
    else:
        DOCS.write_text(rewritten())


if __name__ == "__main__":
    main()
