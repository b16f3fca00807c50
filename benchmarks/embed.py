"""What does `prosmin embed` cost beyond the networks and beyond decoding, and does its memory grow with the set?

    python benchmarks/embed.py --out benchmarks/results/embed-cpu.json
    python benchmarks/embed.py --jpeg parquet:photos64.parquet --processes 1 2 --out benchmarks/results/embed-h200.json

Beside the networks (the default): the whole command, from opening the encoder to the finished file, in turns with the
same encoder's passes over the same images already decoded in memory. Both make the same passes: one per image, one
more for each random view (the making of the view included, as `encoder(pictures)` makes its own), and, where there is a
reference, one of the backbone for each of its images. Reading, decoding, distances, writing, joining and opening are
embed's alone. Before each turn of the networks the encoder is loaded anew, as embed does: how the memory lies moves
their speed by a tenth and more. Encoders are untrained, which costs the same.

Beside decoding (--jpeg SPEC): the encoded images of SPEC as --files files in a folder. In turns: every core reads and
decodes, nothing else; the feed alone, which also packs and copies to the device; the whole command.

By processes (--jpeg SPEC --processes N ...): the same files. Reading and decoding alone, by all cores in N processes,
and `prosmin embed --processes N` as a person starts it, in turns, decoding first and last. A rate is that of the files
beyond the first 1,024: what the same takes with those alone, its start, is subtracted. The limit is the best rate of
decoding in the run. Milliseconds of cores tell work from waiting.

On a machine that others use too (--patience SECONDS), a turn begins when they are quiet, and one that they disturbed is
made again; `disturbed` counts those. The JSON is written after every row. Peak memory is that of a process of its own,
for a set and for a larger one.
"""

import argparse
import contextlib
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image

from prosmin import config as configs
from prosmin.benchmark.measure import synchronise
from prosmin.data.image_sets import load_pictures, worker_count
from prosmin.data.sources import open_source
from prosmin.data.sources.photos import load_photograph, photograph_files
from prosmin.data.stream import Batch, Stream, picture_batches
from prosmin.data.unreadable import CheckedSource
from prosmin.embed import Request, embed
from prosmin.embed.request import NO_REFERENCE
from prosmin.encoder import Encoder, load, untrained
from prosmin.files import write_text
from prosmin.machine import describe_machine
from turns import in_turns

PEAK = """
import sys
from prosmin.cli import main
status = main(sys.argv[1:])
# Not ru_maxrss, which begins at what the process had that started this one.
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
sys.exit(status)
"""
DECODE = """
import multiprocessing, os, sys, time
import embed
spec, count = sys.argv[1], int(sys.argv[2])
os.environ["LOCAL_WORLD_SIZE"] = str(count)  # cores are shared
fork = multiprocessing.get_context("fork")
workers = [fork.Process(target=embed.decode_all, args=(spec,), kwargs={"share": (i, count)}) for i in range(count)]
began = time.perf_counter()
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
assert not any(worker.exitcode for worker in workers)
print(time.perf_counter() - began)
"""
FIRST = 1024
CHUNK = 16
"""Images a decoding thread takes at once."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """An encoder and the images it is given: a SPEC, or JPEG files of a size (width, height)."""

    name: str
    recipe: str
    fields: dict[str, str] = field(default_factory=dict)
    data: str | tuple[int, int]
    pictures: int = 0  # files to make
    views: int
    reference: str | None = NO_REFERENCE  # None: the encoder's own images, as the command has it


RESNET18 = {"backbone.name": "resnet18", "views.global_size": "96"}
VIT_TINY = {"backbone.name": "vit_tiny_patch16_224", "views.global_size": "96"} | {
    f"backbone.{name}": value
    for name, value in (("patch_size", "16"), ("width", "192"), ("depth", "12"), ("heads", "3"))
}
CASES = (
    Case(name="demo, as the command stands", recipe="demo", data="photos", views=2, reference=None),
    Case(name="demo, one pass a picture", recipe="demo", data="photos", views=0),
    Case(name="demo, JPEG files", recipe="demo", data=(32, 32), pictures=16384, views=0),
    Case(name="resnet18 at 96 px", recipe="demo", fields=RESNET18, data=(128, 96), pictures=3072, views=0),
    Case(name="resnet18 at 96 px, views", recipe="demo", fields=RESNET18, data=(128, 96), pictures=1024, views=2),
    Case(name="vit_tiny at 96 px", recipe="demo-vit", fields=VIT_TINY, data=(128, 96), pictures=3072, views=0),
    Case(name="ViT-S/16 at 224 px", recipe="imagenet-vit-small", data=(500, 375), pictures=256, views=0),
)


def write_pictures(folder: Path, count: int, *, size: tuple[int, int]) -> str:
    """JPEG files of one size (width, height), each another piece of a photograph; the SPEC comes back."""
    folder.mkdir(parents=True)
    photographs = [load_photograph(path) for path in photograph_files().values()]
    random = torch.Generator().manual_seed(0)
    for i in range(count):
        photograph = photographs[i % len(photographs)]
        height, width = photograph.shape[1:]
        top, left = (int(torch.randint(0, side // 2, (), generator=random)) for side in (height, width))
        piece = photograph[:, top : top + height // 2, left : left + width // 2]
        Image.fromarray(piece.permute(1, 2, 0).numpy()).resize(size).save(folder / f"{i:06d}.jpg", quality=90)
    return f"folder:{folder}"


def repeat_files(spec: str, folder: Path, count: int) -> str:
    """The encoded images of a SPEC as so many files, each a link to one of them; the folder's SPEC comes back."""
    folder.mkdir()
    source = open_source(spec)
    for i in range(min(count, len(source))):
        data = source.read(i)
        if not isinstance(data, bytes):
            raise SystemExit(f"{spec} holds decoded pictures; give one whose pictures are files.")
        (folder / f"{i:07d}.jpg").write_bytes(data)
    for i in range(len(source), count):
        os.link(folder / f"{i % len(source):07d}.jpg", folder / f"{i:07d}.jpg")
    return f"folder:{folder}"


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Seconds until the device has done it too."""
    began = time.perf_counter()
    run()
    synchronise(device)
    return time.perf_counter() - began


def compare(
    runs: dict[str, Callable[[], float]], pictures: int, *, shares: dict[str, str], options: argparse.Namespace
) -> dict[str, Any]:
    """Images a second, medians; `shares` names ratios, each of embed's rate to another's."""
    seconds, disturbed = in_turns(runs, repeats=options.repeats, patience=options.patience)
    row: dict[str, Any] = {"disturbed": disturbed} | {
        f"{name}_images_per_second": round(pictures / statistics.median(times), 1) for name, times in seconds.items()
    }
    for share, other in shares.items():
        ratios = [a / b for a, b in zip(seconds[other], seconds["embed"], strict=True)]
        row[share] = round(statistics.median(ratios), 3)
        row[f"{share}_each"] = [round(ratio, 3) for ratio in ratios]
    return row


def run_embed(folder: Path, request: Request) -> None:
    """The command without what it says."""
    request.out.unlink(missing_ok=True)
    with contextlib.redirect_stdout(io.StringIO()):
        embed(folder, request)


def pass_over(encoder: Encoder, batches: list[Batch], belonging: list[Batch], *, views: int) -> None:
    """The passes that embed makes, over images in memory."""
    for batch in belonging:
        encoder.batch_features(batch)
    for batch in batches:
        encoder.summarise(batch, views=views)


def beside_networks(folder: Path, spec: str, case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """One row: the whole command against the encoder's own passes."""
    encoder = load(folder)
    own = encoder.config.data.spec

    def batches_of(name: str) -> list[Batch]:
        return list(picture_batches(load_pictures(name), size=encoder.batch_size, device=encoder.device))

    batches = batches_of(spec)
    belonging = batches_of(own) if case.reference is None else []
    request = Request(data=spec, out=folder / "x.parquet", reference=case.reference, views=case.views)

    def networks() -> float:
        fresh = load(folder)
        return seconds_of(lambda: pass_over(fresh, batches, belonging, views=case.views), fresh.device)

    pass_over(encoder, batches[:2], belonging[:2], views=case.views)
    runs = {"networks": networks, "embed": lambda: seconds_of(lambda: run_embed(folder, request), encoder.device)}
    pictures = sum(len(batch.index) for batch in batches)
    started = seconds_of(lambda: (load(folder), open_source(spec)), encoder.device)
    return {
        "case": case.name,
        "recipe": case.recipe,
        "fields": case.fields,
        "data": case.data if isinstance(case.data, str) else f"JPEG files of {case.data[0]} x {case.data[1]}",
        "pictures": pictures,
        "passes_of_a_picture": 1 + case.views,
        "reference_pictures": sum(len(batch.index) for batch in belonging),
        "batch_size": encoder.batch_size,
        "seconds_to_open": round(started, 2),
    } | compare(runs, pictures, shares={"ratio": "networks"}, options=options)


def decode_all(spec: str, *, share: tuple[int, int] = (0, 1)) -> None:
    """Read and decode with every core, nothing else; of several processes each every n-th chunk."""
    source = CheckedSource(open_source(spec))
    number, processes = share

    def some(start: int) -> None:
        for i in range(start, min(start + CHUNK, len(source))):
            source.image(i)

    with ThreadPoolExecutor(max_workers=worker_count()) as workers:
        list(workers.map(some, range(number * CHUNK, len(source), processes * CHUNK)))


def feed_all(spec: str, device: torch.device, *, batch: int) -> None:
    """The images on the device in batches, as embed takes them."""
    source = CheckedSource(open_source(spec))
    for _ in Stream(source, device=device, replace=False).batches(torch.arange(len(source)).split(batch)):
        pass


def request_of(spec: str, out: Path, *, views: int, options: argparse.Namespace) -> Request:
    """The command of a row beside decoding."""
    return Request(data=spec, out=out, reference=NO_REFERENCE, views=views, precision=options.precision)


def beside_decoding(folder: Path, spec: str, *, views: int, options: argparse.Namespace) -> dict[str, Any]:
    """One row: the whole command against what the decoders can do."""
    encoder = load(folder)
    device, batch = encoder.device, encoder.batch_size
    request = request_of(spec, folder / "x.parquet", views=views, options=options)
    runs = {
        "decoding": lambda: seconds_of(lambda: decode_all(spec), device),
        "feed": lambda: seconds_of(lambda: feed_all(spec, device, batch=batch), device),
        "embed": lambda: seconds_of(lambda: run_embed(folder, request), device),
    }
    shares = {"of_decoding": "decoding", "of_feed": "feed"}
    return {
        "files": options.files,
        "views": views,
        "precision": options.precision,
        "batch_size": batch,
        "threads_that_decode": worker_count(),
        "seconds_to_open": round(seconds_of(lambda: (load(folder), open_source(spec)), device), 2),
    } | compare(runs, options.files, shares=shares, options=options)


class Cost(NamedTuple):
    """Seconds by the clock, and those of all cores together."""

    seconds: float
    core_seconds: float

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.seconds - other.seconds, self.core_seconds - other.core_seconds)


def cost_of(run: Callable[[str], float], data: str) -> Cost:
    """What a run by other processes, which tells its seconds, takes for the data."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = run(data)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def by_processes(folder: Path, spec: str, first: str, count: int, options: argparse.Namespace) -> dict[str, Any]:
    """One row: `count` processes decode, and embed."""

    def decode(data: str) -> float:
        line = [sys.executable, "-c", DECODE, data, str(count)]
        done = subprocess.run(line, check=True, capture_output=True, text=True, cwd=Path(__file__).parent)
        return float(done.stdout)

    def whole(data: str) -> float:
        out = folder / "x.parquet"
        out.unlink(missing_ok=True)
        line = [sys.executable, "-m", "prosmin", "embed", str(folder), "--data", data, "--out", str(out)]
        line += ["--reference", NO_REFERENCE, "--views", "0", "--precision", options.precision]
        began = time.perf_counter()
        subprocess.run([*line, "--processes", str(count)], check=True, capture_output=True)
        return time.perf_counter() - began

    runs = {"decoding": decode, "embed": whole}
    start = {name: cost_of(run, first) for name, run in runs.items()}
    rest: dict[str, list[Cost]] = {name: [] for name in runs}
    for name in ["decoding", *["embed", "decoding"] * options.repeats]:
        rest[name].append(cost_of(runs[name], spec) - start[name])
    row: dict[str, Any] = {"files": options.files, "precision": options.precision, "processes": count}
    for name, costs in rest.items():
        seconds = [cost.seconds for cost in costs]
        row[f"{name}_seconds_of_the_first_{FIRST}"] = round(start[name].seconds, 2)
        row[f"{name}_seconds_of_the_rest"] = [round(each, 2) for each in seconds]
        row[f"{name}_images_per_second"] = round((options.files - FIRST) / statistics.median(seconds), 1)
        used = statistics.median(cost.core_seconds for cost in costs)
        row[f"{name}_core_ms_a_picture"] = round(1000 * used / (options.files - FIRST), 2)
    return row


def peak_mib(encoder: Path, spec: str, out: Path) -> int:
    """Peak memory of a process that embeds the set."""
    arguments = ["embed", str(encoder), "--data", spec, "--out", str(out), "--reference", "none", "--views", "0"]
    done = subprocess.run([sys.executable, "-c", PEAK, *arguments], check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1]) // 1024


def measure_decoding(options: argparse.Namespace, work: Path, report: dict[str, Any], save: Callable[[], None]) -> None:
    """The rows of --jpeg."""
    encoder = untrained(configs.resolve(recipe=options.recipe)).save(work / "encoder")
    report |= {"recipe": options.recipe, "data": options.jpeg, "speed": []}
    warm = repeat_files(options.jpeg, work / "few", min(FIRST, options.files))
    spec = repeat_files(options.jpeg, work / "files", options.files)
    for count in options.processes:
        report["speed"].append(by_processes(encoder, spec, warm, count, options))
        limit = max(row["decoding_images_per_second"] for row in report["speed"])
        for row in report["speed"]:
            row["of_decoding"] = round(row["embed_images_per_second"] / limit, 3)
        print(json.dumps(report["speed"][-1]), flush=True)
        save()
    if options.processes:
        return
    for views in options.views:
        run_embed(encoder, request_of(warm, work / "warm.parquet", views=views, options=options))
        report["speed"].append(beside_decoding(encoder, spec, views=views, options=options))
        print(json.dumps(report["speed"][-1]), flush=True)
        save()


def measure_networks(options: argparse.Namespace, work: Path, report: dict[str, Any], save: Callable[[], None]) -> None:
    """The rows of the cases, and the memory."""
    report["speed"] = []
    for number, case in enumerate(CASES):
        if options.cases and number not in options.cases:
            continue
        config = configs.resolve(recipe=case.recipe, overrides=case.fields)
        encoder = untrained(config).save(work / f"{number}" / "encoder")
        spec = case.data
        if not isinstance(spec, str):
            spec = write_pictures(work / f"{number}" / "pictures", int(options.scale * case.pictures), size=spec)
        report["speed"].append(beside_networks(encoder, spec, case, options))
        print(json.dumps(report["speed"][-1]), flush=True)
        save()
    encoder = untrained(configs.resolve(recipe="demo")).save(work / "encoder")
    report["peak_mib"] = {}
    for count in (2048, 8192):
        made = write_pictures(work / f"of {count}", count, size=(64, 48))
        report["peak_mib"][f"{count} pictures"] = peak_mib(encoder, made, work / f"{count}.parquet")
    save()


def main() -> None:
    """Measure, write after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--patience", type=float, default=0, help="seconds a row may wait for others to be quiet")
    parser.add_argument("--cases", type=int, nargs="+", help=f"some of {len(CASES)}, by number from 0")
    parser.add_argument("--scale", type=float, default=1.0, help="files of a case, times this")
    parser.add_argument("--jpeg", metavar="SPEC", help="encoded pictures of natural size: measure beside decoding")
    parser.add_argument("--files", type=int, default=60_000, help="files that they are repeated to")
    parser.add_argument("--processes", type=int, nargs="+", default=(), metavar="N", help="--jpeg by processes")
    parser.add_argument("--recipe", default="imagenet-vit-small", help="the encoder of --jpeg")
    parser.add_argument("--views", type=int, nargs="+", default=(0, 2), help="random views of --jpeg")
    parser.add_argument("--precision", default="bf16-mixed", help="arithmetic of --jpeg")
    options = parser.parse_args()
    if options.processes and (options.jpeg is None or options.files <= FIRST):
        parser.error(f"--processes goes with --jpeg SPEC and more than {FIRST} --files")
    warnings.simplefilter("ignore", UserWarning)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    report: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "hardware": describe_machine(device),
        "meaning": __doc__.split("\n\n")[4 if options.processes else 3 if options.jpeg else 2].replace("\n", " "),
    }
    with tempfile.TemporaryDirectory() as name:
        measure = measure_decoding if options.jpeg else measure_networks
        measure(options, Path(name), report, lambda: write_text(options.out, json.dumps(report, indent=1) + "\n"))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
