"""How much time does the training loop cost beyond forward, backward and optimizer?

    python benchmarks/engine.py --out benchmarks/results/engine-cpu.json
    python benchmarks/engine.py --data parquet:cifar10-train.parquet --recipes cifar10-resnet18,cifar10-vit \
        --out benchmarks/results/engine-h200.json

The real `prosmin pretrain` runs with its logging and checkpoints. On a CPU, the time outside of forward, backward and
optimizer, to which the clipping of the gradient belongs, is what is left of the wall clock. On a GPU, the share of time
in which no kernel runs is read from a trace of the device over steps in the middle of the run. A kernel that is in the
queue already begins about a microsecond after the one before it, a hundred thousand times a second: pauses of less than
LAUNCH are that, longer ones are the device waiting for the loop, and the longest are told with the kernel after them.
"""

import argparse
import json
import os
import platform
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch.optim import AdamW
from torch.profiler import ProfilerActivity, profile

from prosmin import config as configs
from prosmin.data import views
from prosmin.methods import METHODS
from prosmin.training import health
from prosmin.training.checkpoint import Saver
from prosmin.training.pretrain import pretrain
from prosmin.training.step import TrainingStep

LAUNCH = 10e-6
"""Seconds between two kernels that are both in the queue, at most."""


@contextmanager
def timed(owner: Any, name: str, spent: Counter[str], label: str) -> Iterator[None]:
    """Add the time of every call of `owner.name` to `spent[label]`."""
    real: Callable[..., Any] = getattr(owner, name)

    def measured(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return real(*arguments, **options)
        finally:
            spent[label] += time.perf_counter() - began  # type: ignore[assignment]

    setattr(owner, name, measured)
    try:
        yield
    finally:
        setattr(owner, name, real)


def on_cpu(config: configs.Config, run: Path, *, warm_up: int) -> dict[str, Any]:
    """Seconds a step, and where they go."""
    spent: Counter[str] = Counter()
    marks: list[float] = []
    step = TrainingStep.__call__

    def counted(*arguments: Any, **options: Any) -> Any:
        if len(marks) == warm_up:
            spent.clear()  # the first steps pay for memory and threads
        marks.append(time.perf_counter())
        return step(*arguments, **options)

    TrainingStep.__call__ = counted  # type: ignore[method-assign]
    try:
        with (
            timed(METHODS[config.method.name], "forward", spent, "forward"),
            timed(Fabric, "backward", spent, "backward"),
            timed(AdamW, "step", spent, "optimizer"),
            timed(torch.nn.utils, "clip_grad_norm_", spent, "clipping"),
            timed(views, "render", spent, "views"),
            timed(METHODS[config.method.name], "update", spent, "target"),
            timed(Saver, "save", spent, "checkpoints"),
            timed(health, "numbers", spent, "health numbers"),
        ):
            pretrain(config, run)
            end = time.perf_counter()
    finally:
        TrainingStep.__call__ = step  # type: ignore[method-assign]
    # The last step's own time is not between two marks: what follows it is the saving of the encoder.
    wall = end - marks[warm_up]
    steps = len(marks) - warm_up
    learning = spent["forward"] + spent["backward"] + spent["optimizer"] + spent["clipping"]
    return {
        "steps": steps,
        "ms_a_step": round(1e3 * wall / steps, 2),
        "share": {name: round(seconds / wall, 4) for name, seconds in spent.most_common()},
        "outside_share": round(1 - learning / wall, 4),
    }


def on_gpu(config: configs.Config, run: Path, *, warm_up: int) -> dict[str, Any]:
    """Milliseconds a step, and the share of them in which no kernel runs."""
    calls, found = 0, {}
    step = TrainingStep.__call__
    trace = profile(activities=[ProfilerActivity.CUDA])

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == warm_up:
            torch.cuda.synchronize()
            trace.start()
            found["began"] = time.perf_counter()
        if calls == config.training.max_steps:
            torch.cuda.synchronize()
            found["wall"] = time.perf_counter() - found["began"]
            trace.stop()
        return step(*arguments, **options)

    TrainingStep.__call__ = counted  # type: ignore[method-assign]
    try:
        pretrain(config, run)
    finally:
        TrainingStep.__call__ = step  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    spans = sorted((e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e.get("cat") in kinds)
    steps = (config.training.max_steps or 0) - warm_up
    return {"steps": steps} | pauses(spans, found["wall"], steps=steps)


def pauses(spans: list[tuple[float, float, str]], wall: float, *, steps: int) -> dict[str, Any]:
    """What (start, end, name) of kernels, in microseconds and in order, say of a time of `wall` seconds."""
    gaps: list[tuple[float, str]] = []
    busy, until = 0.0, spans[0][0]
    for start, end, name in spans:
        if start > until:
            gaps.append((1e-6 * (start - until), name))
        busy += 1e-6 * max(0.0, end - max(start, until))
        until = max(until, end)
    short = sum(seconds for seconds, _ in gaps if seconds < LAUNCH)
    return {
        "ms_a_step": round(1e3 * wall / steps, 3),
        "kernels_a_step": round(len(spans) / steps),
        "between_kernels_share": round(short / wall, 4),
        "waiting_share": round(1 - (busy + short) / wall, 4),
        "longest_pauses_ms": [[round(1e3 * seconds, 3), name[:60]] for seconds, name in sorted(gaps)[:-13:-1]],
    }


def main() -> None:
    """Every recipe in turn; the file is written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", default="demo")
    parser.add_argument("--data", help="in place of the recipe's")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--fields", nargs="*", default=[], metavar="GROUP.FIELD=VALUE")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    cuda = torch.cuda.is_available()
    results: dict[str, Any] = {
        "hardware": torch.cuda.get_device_name() if cuda else f"CPU, {platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "command": f"python benchmarks/engine.py --recipes {options.recipes} --steps {options.steps} "
        + " ".join(["--fields", *options.fields] if options.fields else []),
    }
    for recipe in options.recipes.split(","):
        fields = dict(field.split("=", 1) for field in options.fields)
        fields |= {"training.max_steps": str(options.steps)} | ({"data.spec": options.data} if options.data else {})
        config = configs.resolve(recipe=recipe, overrides=fields)
        with tempfile.TemporaryDirectory() as folder:
            measure = on_gpu if cuda else on_cpu
            results[recipe] = measure(config, Path(folder) / "run", warm_up=options.warm_up)
        print(recipe, results[recipe], flush=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
