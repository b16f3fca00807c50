"""Where does the time of a step go, from JPEG bytes to the updated target? With the usual Pillow loader beside it.

    python benchmarks/throughput.py --data parquet:photos64.parquet --cifar parquet:cifar10-train.parquet \
        --out benchmarks/results/throughput-h200.json
    python benchmarks/throughput.py --tiny --data folder:DIR --out /tmp/throughput.json      # any machine, a minute

ViT-S/16, 2 views of 224 px and 16 of 96 px, bf16, compiled, always decoded while it is used: the few images of --data
stand for `--rows` by number, so that every decode is a real one and no disk is measured. Sections, each with a bound on
its time (`--sections a,b` for some): flops, step, decode, views, whole, plain (whole without the quick change of
threads), rival (lightly's DINOTransform in worker processes, the same step), anatomy (the step in pieces), profile (the
kernels of a step and its views), cifar (seconds an epoch of ResNet-18, two views). `share` is the part of the step's
time. The file is written after every section.
"""

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prosmin import config as configs
from prosmin.benchmark.measure import describe_views, elapsed, measure, summarise
from prosmin.benchmark.trainer import Trainer, random_orders, release_memory
from prosmin.config import Config
from prosmin.data.order import Order
from prosmin.data.sources import Source, open_source
from prosmin.data.stream import AHEAD, Stream, open_feed
from prosmin.data.unreadable import CheckedSource
from prosmin.data.views import Views
from prosmin.machine import describe_machine
from rival_loader import EncodedPictures, endless, to_views
from sections import Sections
from step_anatomy import count_flops, kernels, pieces_of_a_step, random_views

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PEAK = 798e12
"""bf16 operations a second of a large product on an H200, measured."""

LIMITS = {
    "flops": 60, "step": 240, "decode": 60, "views": 120, "whole": 120, "plain": 30,
    "rival": 180, "anatomy": 60, "profile": 60, "cifar": 180,
}  # fmt: skip
"""The sections in their order, and their seconds."""

TINY = {
    "views.global_size": "32", "views.local_size": "16", "views.local": "2", "backbone.patch_size": "8",
    "backbone.width": "24", "backbone.depth": "2", "backbone.heads": "3", "heads.hidden": "32", "heads.dim": "24",
    "heads.bottleneck": "16", "heads.predictor_hidden": "32",
    "compute.compile": "none", "compute.precision": "32-true",
}  # fmt: skip
TINY_CIFAR = {
    "backbone.name": "resnet8_cifar", "compute.precision": "32-true", "compute.compile": "none",
    "training.batch_size": "64",
}  # fmt: skip


@dataclass(frozen=True)
class Repeated:
    """The few images of a source under many numbers, without a copy."""

    inner: Source
    rows: int
    labels: None = None
    classes: tuple[str, ...] = ()

    @property
    def spec(self) -> str:
        """The SPEC of the images."""
        return self.inner.spec

    def __len__(self) -> int:
        return self.rows

    def key(self, i: int) -> str:
        """The name of the image behind the number."""
        return self.inner.key(i % len(self.inner))

    def read(self, i: int) -> bytes | Tensor:
        """The image behind the number."""
        return self.inner.read(i % len(self.inner))


class Bench:
    """What the sections share: one trainer, compiled once, and its ready views."""

    def __init__(self, config: Config, source: Repeated, *, workers: int) -> None:
        self.config, self.source, self.workers = config, source, workers
        self.batch = config.training.batch_size
        self.step_ms: float | None = None
        self.flops: float | None = None

    @cached_property
    def trainer(self) -> Trainer:
        """The recipe's trainer."""
        return Trainer(self.config)

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.trainer.device

    @cached_property
    def views(self) -> Views:
        """The views of one batch, held."""
        return random_views(self.config, pictures=self.batch, device=self.device)

    def feed(self, *, nvjpeg: bool = False) -> Stream:
        """The images, decoded while they are used."""
        return Stream(CheckedSource(self.source, 0.0), device=self.device, nvjpeg=nvjpeg)

    @property
    def decoders(self) -> dict[str, bool]:
        """The ways to decode that this machine has."""
        return {"threads": False, "nvjpeg": True} if self.device.type == "cuda" else {"threads": False}

    def row(self, timing: Any) -> dict[str, Any]:
        """A timing's numbers with its share of the step."""
        row = timing.row(self.batch)
        if self.step_ms:
            row["share"] = round(row["ms"] / self.step_ms, 4)
        return row

    def of_peak(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row with the share of the arithmetic limit that its rate reaches."""
        if self.flops:
            row["share_of_peak"] = round(row["images_per_second"] * self.flops / PEAK, 4)
        return row


def decode(bench: Bench, found: dict[str, Any]) -> None:
    """Read, decode, pack and copy to the device, nothing else."""
    for name, nvjpeg in bench.decoders.items():
        with closing(bench.feed(nvjpeg=nvjpeg).batches(random_orders(len(bench.source), batch=bench.batch))) as batches:
            found[name] = bench.row(measure(lambda: next(batches), bench.device, warmup=AHEAD + 1, limit=15))


def flops(bench: Bench, found: dict[str, Any]) -> None:
    """Operations of one image's step, and the images a second that the arithmetic would allow."""
    bench.flops = count_flops(bench.config)
    found["gigaflop_a_picture"] = round(bench.flops / 1e9, 2)
    found["peak_tflops"] = PEAK / 1e12
    found["images_per_second_at_peak"] = round(PEAK / bench.flops)


def step(bench: Bench, found: dict[str, Any]) -> None:
    """Forward, backward, optimizer and target on ready views."""
    if bench.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    timing = measure(lambda: bench.trainer.train([bench.views]), bench.device, seconds=1.0, limit=20)
    bench.step_ms = 1e3 * timing.median
    found[bench.config.compute.compile] = bench.of_peak(bench.row(timing))
    if bench.device.type == "cuda":
        found["peak_memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    bench.trainer.check()


def views(bench: Bench, found: dict[str, Any]) -> None:
    """The views of one batch of real images, by this trainer's compiled function and eagerly."""
    from prosmin.data.views import make_views

    pictures = next(bench.feed().batches(random_orders(len(bench.source), batch=bench.batch)))
    found["canvas"] = list(pictures.images.shape[2:])
    positions = torch.arange(bench.batch, device=bench.device)

    def eagerly() -> None:
        make_views(pictures.images, pictures.sizes, bench.config.views, seed=0, step=0, positions=positions)

    found["eager"] = bench.row(measure(eagerly, bench.device, limit=15))
    if bench.config.compute.compile != "none":
        found["compiled"] = bench.row(measure(lambda: bench.trainer.views(pictures), bench.device, limit=15))


def whole(bench: Bench, found: dict[str, Any]) -> None:
    """End to end, as training does it."""
    for name, nvjpeg in bench.decoders.items():
        with closing(bench.feed(nvjpeg=nvjpeg).batches(random_orders(len(bench.source), batch=bench.batch))) as batches:
            run = measure(
                lambda: bench.trainer.train(next(batches)), bench.device, warmup=2 * AHEAD, seconds=2, limit=20
            )
            found[name] = bench.of_peak(bench.row(run))


def plain(bench: Bench, found: dict[str, Any]) -> None:
    """End to end again with Python's own 5 ms before a waiting thread is given its lock."""
    with closing(bench.feed().batches(random_orders(len(bench.source), batch=bench.batch))) as batches:
        next(batches)
        sys.setswitchinterval(0.005)
        run = measure(lambda: bench.trainer.train(next(batches)), bench.device, warmup=2 * AHEAD, seconds=2, limit=20)
        found["slow to switch threads"] = bench.row(run)


def rival(bench: Bench, found: dict[str, Any]) -> None:
    """The Pillow loader alone, then feeding the same step. Its workers deliver in bursts, so many rounds are timed."""
    data = [bench.source.inner.read(i) for i in range(len(bench.source.inner))]
    pictures = EncodedPictures([d for d in data if isinstance(d, bytes)], bench.config.views, rows=bench.source.rows)
    # Parts of a batch, joined on the device: whole batches of 18 views would fill the memory that processes share.
    part = min(64, bench.batch)
    parts = bench.batch // part
    found["workers"] = bench.workers
    batches = endless(pictures, batch=part, workers=bench.workers, pin=bench.device.type == "cuda")
    runs: dict[str, Callable[[], object]] = {
        "feeding alone": lambda: [next(batches) for _ in range(parts)],
        "end to end": lambda: bench.trainer.train([to_views([next(batches) for _ in range(parts)], bench.device)]),
    }
    for name, run in runs.items():
        a_round = max(1, bench.workers // parts)
        elapsed(run, bench.device, calls=a_round)
        seconds = elapsed(run, bench.device, calls=6 * a_round) / (6 * a_round)
        found[name] = bench.row(summarise([seconds], calls=6 * a_round))


def anatomy(bench: Bench, found: dict[str, Any]) -> None:
    """The step in pieces, each timed alone."""
    found |= {name: bench.row(timing) for name, timing in pieces_of_a_step(bench.trainer, bench.views).items()}


def profile(bench: Bench, found: dict[str, Any]) -> None:
    """The kernels of a step and its views, and how much of it the device is idle."""
    pictures = next(bench.feed().batches(random_orders(len(bench.source), batch=bench.batch)))
    found |= kernels(lambda: bench.trainer.train(pictures), bench.device, most=70)


def time_epoch(config: Config, *, tiny: bool) -> dict[str, Any]:
    """Seconds of whole epochs on images that live on the device."""
    trainer = Trainer(config)
    feed = open_feed(config.data.spec, device=trainer.device)
    order = Order(len(feed), batch_size=config.training.batch_size, seed=0)
    steps = 3 if tiny else order.steps_per_epoch
    batches = feed.batches(order(i) for i in count())
    for batch in islice(batches, 5):  # warm-up
        trainer.train(batch)
    times = [elapsed(lambda: trainer.train(next(batches)), trainer.device, calls=steps) for _ in range(3)]
    trainer.check()
    a_step = summarise([seconds / steps for seconds in times], calls=steps)
    seconds = round(a_step.median * order.steps_per_epoch, 3)
    return {"seconds_an_epoch": seconds, **a_step.row(config.training.batch_size)}


def cifar(spec: str, found: dict[str, Any], *, how: str, tiny: bool) -> None:
    """The CIFAR-10 recipe with two views and no local ones."""
    fields = {"data.spec": spec, "views.local": "0", "compute.compile": how} | (TINY_CIFAR if tiny else {})
    found[how] = time_epoch(configs.resolve(recipe="cifar10-resnet18", overrides=fields), tiny=tiny)


def main() -> None:
    """Run the sections, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="SPEC", help="some encoded pictures of natural size")
    parser.add_argument(
        "--cifar", metavar="SPEC", help="CIFAR-10's training pictures; without it that section is left out"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=20_000, help="numbers that the pictures stand for")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--local", type=int, default=16, help="local views")
    parser.add_argument("--workers", type=int, default=16, help="processes of the rival's loader")
    parser.add_argument("--sections", help=f"some of {','.join(LIMITS)}")
    parser.add_argument("--compile", default="blocks", choices=("none", "blocks", "whole"), help="as compute.compile")
    parser.add_argument("--fields", nargs="*", default=[], metavar="GROUP.FIELD=VALUE", help="as in `prosmin pretrain`")
    parser.add_argument("--tiny", action="store_true", help="a small network and small views, for a trial on a CPU")
    options = parser.parse_args()
    fields = {"views.local": str(options.local), "training.batch_size": str(options.batch)}
    fields |= {"compute.compile": options.compile}
    fields |= (TINY if options.tiny else {}) | dict(field.split("=", 1) for field in options.fields)
    config = configs.resolve(recipe="imagenet-vit-small", overrides=fields)
    bench = Bench(config, Repeated(open_source(options.data), options.rows), workers=options.workers)
    sections = Sections(
        options.out,
        {
            "command": "python " + " ".join(sys.argv),
            "hardware": describe_machine(HERE),
            "recipe": "imagenet-vit-small",
            "views": describe_views(config),
            "batch_size": options.batch,
            "fingerprint": configs.fingerprint(config),
            "configuration": configs.to_tree(config),
        },
        chosen=options.sections.split(",") if options.sections else None,
    )
    measures: dict[str, Callable[[Bench, dict[str, Any]], None]] = {
        "flops": flops, "step": step, "decode": decode, "views": views, "whole": whole, "plain": plain, "rival": rival,
        "anatomy": anatomy, "profile": profile,
    }  # fmt: skip
    for name, function in measures.items():
        sections.run(name, partial(function, bench), seconds=LIMITS[name])
    if options.cifar:
        bench.__dict__.clear()  # its networks make room
        release_memory(HERE)
        sections.run(
            "cifar", partial(cifar, options.cifar, how=options.compile, tiny=options.tiny), seconds=LIMITS["cifar"]
        )
    print(json.dumps({name: found for name, found in sections.document["sections"].items() if name != "profile"}))


if __name__ == "__main__":
    main()
