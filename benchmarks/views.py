"""Are our views made faster than torchvision's transforms of the same recipe, on a CPU with two threads?

    python benchmarks/views.py --out benchmarks/results/views-cpu.json

torchvision runs in the ways people run it: one process with two threads and two processes with one thread each (a
loader's workers, their results not sent anywhere), colours on bytes and on floats. The ratio is to the fastest of them.
Rounds alternate between the rivals; medians are reported. benchmarks/throughput.py times the views on a GPU.
"""

import argparse
import dataclasses
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import v2

from prosmin.config import ViewsConfig
from prosmin.data.augment import colour
from prosmin.data.views import make_views
from prosmin.machine import describe_machine

THREADS = 2
CASES = {
    "2x32 + 2x16 from 32x32": (ViewsConfig(), (32, 32), 256),
    "2x224 + 2x96 from 300x400": (ViewsConfig(global_size=224, local_size=96), (300, 400), 16),
}


def pictures(batch: int, size: tuple[int, int]) -> Tensor:
    """Smooth coloured images: the values do not change the work, but hues and clamps see a usual mix."""
    coarse = torch.rand(batch, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.interpolate(coarse, size=size, mode="bicubic").clamp(0, 1)
    return (smooth * 255).to(torch.uint8)


def reference_transforms(config: ViewsConfig, *, floats: bool) -> list[Callable[[Tensor], Tensor]]:
    """torchvision's transform for each of the V views, colours computed on bytes or on floats."""
    names = ["first", "second"] + ["local"] * config.local
    return [_reference_transform(config, name, floats=floats) for name in names]


def _reference_transform(config: ViewsConfig, name: str, *, floats: bool) -> Callable[[Tensor], Tensor]:
    size, scale = config.global_size, config.global_scale
    if name == "local":
        size, scale = config.local_size, config.local_scale
    blur = dict(zip(("first", "second", "local"), config.blur, strict=True))[name]
    solarise = dict(zip(("first", "second", "local"), config.solarise, strict=True))[name]
    mode = v2.InterpolationMode(config.interpolation)
    to_float = v2.ToDtype(torch.float32, scale=True)
    kernel = 2 * colour.blur_radius(config.blur_sigma[1], size) + 1
    steps = [
        v2.RandomResizedCrop(size, scale=scale, ratio=config.ratio, interpolation=mode, antialias=True),
        v2.RandomHorizontalFlip(config.flip),
        *([to_float] if floats else []),
        v2.RandomApply([v2.ColorJitter(*config.jitter)], config.jitter_p),
        v2.RandomGrayscale(config.grey),
        v2.RandomApply([v2.GaussianBlur(kernel, config.blur_sigma)], blur),
        v2.RandomSolarize(0.5 if floats else 128, solarise),
        *([] if floats else [to_float]),
        v2.Normalize(list(config.mean), list(config.std)),
    ]
    return v2.Compose(steps)


def run_reference(images: Tensor, config: ViewsConfig, *, floats: bool) -> None:
    """All views of all images, an image and a view at a time."""
    transforms = reference_transforms(config, floats=floats)
    for image in images:
        for transform in transforms:
            transform(image)


def _worker(images: Tensor, config: ViewsConfig, floats: bool, start: Any, done: Any) -> None:
    """Half of the batch each time the barrier opens, on one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    while True:
        start.wait()
        run_reference(images, config, floats=floats)
        done.wait()


class Workers:
    """Two processes that each make the views of half of the images."""

    def __init__(self, images: Tensor, config: ViewsConfig, *, floats: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.start, self.done = context.Barrier(THREADS + 1), context.Barrier(THREADS + 1)
        halves = [half.numpy().copy() for half in images.chunk(THREADS)]
        args = [(torch.from_numpy(half), config, floats, self.start, self.done) for half in halves]
        self.processes = [context.Process(target=_worker, args=a, daemon=True) for a in args]
        for process in self.processes:
            process.start()

    def run(self) -> None:
        """One batch; a worker that died is noticed."""
        self.start.wait(timeout=120)
        self.done.wait(timeout=120)

    def stop(self) -> None:
        """End both processes."""
        for process in self.processes:
            process.terminate()
            process.join()


def seconds(run: Callable[[], object]) -> float:
    """The wall-clock time of one call."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def compare(config: ViewsConfig, size: tuple[int, int], batch: int, *, rounds: int) -> dict[str, Any]:
    """Medians over rounds in which the rivals take turns."""
    images, sizes, positions = pictures(batch, size), torch.tensor([size] * batch), torch.arange(batch)
    workers = {floats: Workers(images, config, floats=floats) for floats in (False, True)}
    rivals: dict[str, Callable[[], object]] = {
        "prosmin": lambda: make_views(images, sizes, config, seed=0, step=0, positions=positions),
        "torchvision, bytes, 1 process of 2 threads": lambda: run_reference(images, config, floats=False),
        "torchvision, floats, 1 process of 2 threads": lambda: run_reference(images, config, floats=True),
        "torchvision, bytes, 2 processes of 1 thread": workers[False].run,
        "torchvision, floats, 2 processes of 1 thread": workers[True].run,
    }
    for run in rivals.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, run in rivals.items():
            times[name].append(seconds(run))
    for pair in workers.values():
        pair.stop()
    medians = {name: statistics.median(values) for name, values in times.items()}
    fastest = min((name for name in medians if name != "prosmin"), key=medians.__getitem__)
    return {
        "batch": batch,
        "rounds": rounds,
        "milliseconds": {name: round(1e3 * value, 2) for name, value in medians.items()},
        "pictures_per_second": {name: round(batch / value, 1) for name, value in medians.items()},
        "fastest_reference": fastest,
        "ratio": round(medians[fastest] / medians["prosmin"], 2),
    }


def processor_time(config: ViewsConfig, size: tuple[int, int], batch: int, *, rounds: int) -> dict[str, float]:
    """Milliseconds of one processor for an image, on one thread: other work on the machine hardly moves them."""
    torch.set_num_threads(1)
    images, sizes, positions = pictures(batch, size), torch.tensor([size] * batch), torch.arange(batch)
    rivals: dict[str, Callable[[], object]] = {
        "prosmin": lambda: make_views(images, sizes, config, seed=0, step=0, positions=positions),
        "torchvision, bytes": lambda: run_reference(images, config, floats=False),
        "torchvision, floats": lambda: run_reference(images, config, floats=True),
    }
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, run in rivals.items():
            begin = time.process_time()
            run()
            times[name].append(1e3 * (time.process_time() - begin) / batch)
    torch.set_num_threads(THREADS)
    return {name: round(statistics.median(values), 3) for name, values in times.items()}


def main() -> None:
    """Run, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    machine = describe_machine(torch.device("cpu"))  # with its load: other work makes two threads wait for one another
    results = {}
    for name, (config, size, batch) in CASES.items():
        spent = processor_time(config, size, batch, rounds=min(args.rounds, 5))
        case = {"processor_milliseconds_a_picture": spent}
        case |= compare(config, size, batch, rounds=args.rounds)
        results[name] = {"views": dataclasses.asdict(config), **case}
        print(f"{name}: {json.dumps(case, indent=2)}", flush=True)
    document = {"command": " ".join(["python", *sys.argv]), "hardware": machine, "results": results}
    args.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
