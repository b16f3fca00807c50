"""How long does `prosmin evaluate` take? Every protocol that trains nothing, a kNN search, and all OOD scores.

    python benchmarks/evaluation.py --run runs/cifar10 --out benchmarks/results/evaluation-h200.json \
        --data parquet:DATA/cifar10-train.parquet --test parquet:DATA/cifar10-test.parquet \
        --ood parquet:DATA/cifar100-test.parquet,parquet:DATA/svhn-test10k.parquet \
        --near parquet:DATA/cifar100-test.parquet
    python benchmarks/evaluation.py --tiny --out /tmp/evaluation.json      # any machine, two minutes, nothing trained

Three sections. `knn`: the search of 10,000 among 50,000 images with 512 features and votes of k = 20 and 200, from
features in main memory to probabilities. `ood`: from decoded images to all label-free scores, beside one pass of the
encoder for each of their random views. `protocols`: the command itself, from the files to RUN/results, with an empty
feature cache; a protocol's seconds hold what it is the first to embed. The file is written after every protocol.
"""

import argparse
import dataclasses
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from prosmin import config as configs
from prosmin.benchmark.measure import elapsed, measure
from prosmin.data.corruptions.generate import TORCH
from prosmin.data.image_sets import Pictures, in_memory, open_pictures
from prosmin.data.stream import Batch, picture_batches
from prosmin.encoder import UNCERTAINTY_VIEWS, Encoder, load, untrained
from prosmin.encoder.detectors import DETECTORS
from prosmin.encoder.neighbours import knn_probabilities
from prosmin.evaluation.context import Context
from prosmin.evaluation.forecasts import view_scores
from prosmin.evaluation.options import Options
from prosmin.evaluation.protocol import Protocol, Result
from prosmin.evaluation.protocols import PROTOCOLS
from prosmin.evaluation.run import evaluate
from prosmin.machine import describe_machine
from sections import Sections

KNN_SECONDS = {"cpu": 10.0, "cuda": 1.0}  # what each may take at most; of a CPU with two cores
OOD_RATIO = 2.0
PROTOCOLS_SECONDS = 180.0  # on a GPU
MEASURED = ("knn", "linear", "lowshot", "ood", "uncertainty", "corruption", "pictures")
HEADLINES: dict[str, tuple[str, ...]] = {
    "knn": ("top1", "top1_k200", "nll", "ece", "ece_floor"),
    "linear": ("top1", "nll", "ece", "ece_floor", "nll_calibrated", "ece_calibrated"),
    "lowshot": ("top1_1pct", "top1_1pct_sd", "top1_10pct", "top1_10pct_sd", "ece_1pct", "ece_10pct"),
    "uncertainty": ("recall_at_1", "r_auroc", "aurc", "aurc_random", "coverage_90", "energy_skill", "spearman_noise"),
    "corruption": ("clean_error", "mean_error", "mean_nll", "mean_ece", "mean_error_extra"),
}
"""What is told of each; of the others, all."""
BANK, QUERIES, FEATURES, CLASSES = 50_000, 10_000, 512, 10


def time_knn(found: dict[str, Any], *, device: torch.device, bank: int, queries: int) -> None:
    """Seconds of a search and its votes, for either k; the first call, which loads kernels, does not count."""
    random = torch.Generator().manual_seed(0)
    features = torch.randn(bank + queries, FEATURES, generator=random)
    labels = torch.randint(CLASSES, (bank,), generator=random)
    found |= {"bank": bank, "queries": queries, "features": FEATURES, "threads": torch.get_num_threads()}

    def search(k: int, asked: int = queries) -> None:
        known, new = features[:bank].to(device), features[bank : bank + asked].to(device)
        knn_probabilities(known, labels.to(device), new, classes=CLASSES, k=k).cpu()

    for k in (20, 200):
        search(k, asked=min(queries, 256))
        found[f"k{k}_seconds"] = round(statistics.median(elapsed(partial(search, k), device) for _ in range(3)), 3)
    found["limit_seconds"] = KNN_SECONDS[device.type]
    found["within_limit"] = max(found["k20_seconds"], found["k200_seconds"]) <= found["limit_seconds"]


def time_ood(found: dict[str, Any], *, encoder: Encoder, pictures: Pictures, bank: int) -> None:
    """All scores of these images as a multiple of the encoder's passes over their views; fitting is told apart."""
    device = encoder.device
    batches = list(picture_batches(pictures, size=encoder.batch_size, device=device))
    whole = [batch for batch in batches if len(batch.index) == len(batches[0].index)]
    size = encoder.config.views.global_size
    view = torch.randn(len(whole[0].index), 3, size, size, device=device)
    width = encoder.summarise(_first(whole[0], 2)).features.shape[1]
    train = torch.randn(bank, width, generator=torch.Generator().manual_seed(0)).to(device)
    began = time.perf_counter()
    detectors = {name: fit(train) for name, fit in DETECTORS.items()}
    found["fit_seconds"] = round(time.perf_counter() - began, 2)

    @torch.inference_mode()
    def passes() -> None:
        for _ in range(UNCERTAINTY_VIEWS):
            encoder.method.encode(view)  # type: ignore[operator]

    def scores() -> None:
        features = torch.cat([encoder.batch_features(batch) for batch in batches])
        for detector in detectors.values():
            detector(features).cpu()
        view_scores(encoder, pictures, seed=0)

    timing = measure(passes, device, warmup=1, repeats=3)
    scores()
    alone = timing.median * len(pictures) / len(view)
    together = statistics.median(elapsed(scores, device) for _ in range(3))
    found |= {
        "pictures": len(pictures),
        "bank": bank,
        "views": UNCERTAINTY_VIEWS,
        "passes_seconds": round(alone, 3),
        "all_scores_seconds": round(together, 3),
        "ratio": round(together / alone, 3),
        "limit_ratio": OOD_RATIO,
        "within_limit": together <= OOD_RATIO * alone,
    }


def _first(batch: Batch, count: int) -> Batch:
    return Batch(batch.images[:count], batch.sizes[:count], batch.index[:count])


def time_protocols(found: dict[str, Any], *, run: Path, sets: dict[str, Any], options: Options, save: Callable) -> None:
    """The command, its protocols one after the other; what is done is saved at once."""
    names = [name for name in MEASURED if name != "pictures" or find_spec("sklearn")]
    found["left_out"] = {name: "scikit-learn is not installed" for name in MEASURED if name not in names}
    found["rows"] = rows = {}
    shutil.rmtree(run / "cache", ignore_errors=True)

    def recorded(name: str, protocol: Protocol, context: Context) -> Result:
        began = time.perf_counter()
        result = protocol.run(context)
        rows[name] = _row(name, result, round(time.perf_counter() - began, 2))
        save()
        print(f"{name:12} {rows[name]['seconds']:8.2f} s", flush=True)
        return result

    before = dict(PROTOCOLS)
    for name in names:
        PROTOCOLS[name] = dataclasses.replace(before[name], run=partial(recorded, name, before[name]))
    try:
        began = time.perf_counter()
        evaluate(run, protocols=names, options=options, again=True, **sets)
        seconds = time.perf_counter() - began
    finally:
        PROTOCOLS.update(before)
    found["beside_protocols_seconds"] = round(seconds - sum(row["seconds"] for row in rows.values()), 2)
    found["in_all_seconds"] = round(seconds, 2)
    if torch.cuda.is_available():
        found |= {"limit_seconds": PROTOCOLS_SECONDS, "within_limit": seconds <= PROTOCOLS_SECONDS}


def _row(name: str, result: Result, seconds: float) -> dict[str, Any]:
    wanted = HEADLINES.get(name, tuple(result.metrics))
    row: dict[str, Any] = {"seconds": seconds}
    row["metrics"] = {metric: round(result.metrics[metric], 5) for metric in wanted if metric in result.metrics}
    first = next(iter(row["metrics"]))
    row["baselines"] = {who: round(m[first], 5) for who, m in result.baselines.items() if first in m}
    if name == "corruption":
        row["generators"], row["left_out"] = result.settings["generators"], result.settings["left_out"]
    return row


def main() -> None:
    """Section after section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--run", type=Path, help="a finished run; its results and feature cache are made anew")
    parser.add_argument("--data", metavar="SPEC", help="labelled training pictures (default: the run's)")
    parser.add_argument("--test", metavar="SPEC")
    parser.add_argument("--ood", metavar="SPEC,...")
    parser.add_argument("--near", default="", metavar="SPEC,...", help="which of --ood are near")
    parser.add_argument("--sections", metavar="NAME,...", help="of knn, ood, protocols (default: all)")
    parser.add_argument("--pictures", type=int, default=10_000, help="test pictures whose OOD scores are timed")
    parser.add_argument("--tiny", action="store_true", help="a small encoder and few pictures, for a trial")
    options = parser.parse_args()
    if options.run is None and not options.tiny:
        parser.error("--run RUN is needed, or --tiny")
    warnings.simplefilter("ignore", UserWarning)
    with tempfile.TemporaryDirectory() as folder:
        run = untrained(configs.resolve(recipe="demo")).save(Path(folder) / "run") if options.tiny else options.run
        encoder = load(run)
        document = {
            "command": "python " + " ".join(sys.argv),
            "hardware": describe_machine(encoder.device),
            "encoder": {
                "method": encoder.config.method.name,
                "backbone": encoder.config.backbone.name,
                "step": encoder.card["step"],
                "hash": encoder.card["hash"],
                "precision": encoder.precision,
            },
        }
        sections = Sections(options.out, document, chosen=options.sections and options.sections.split(","))
        bank, queries = (2000, 500) if options.tiny else (BANK, QUERIES)
        sections.run("knn", partial(time_knn, device=encoder.device, bank=bank, queries=queries), seconds=300)

        def ood_section(found: dict[str, Any]) -> None:
            test = open_pictures("photos@test" if options.tiny else options.test or encoder.config.data.spec)
            some = torch.arange(min(len(test), 256 if options.tiny else options.pictures))
            time_ood(found, encoder=encoder, pictures=in_memory(test.subset(some)), bank=bank)

        sections.run("ood", ood_section, seconds=600)
        sets = {
            "data": options.data,
            "test": options.test,
            "ood": options.ood.split(",") if options.ood else None,
        }
        wanted = Options(
            near=tuple(options.near.split(",")) if options.near else (),
            corruptions=("contrast", "gaussian_noise") if options.tiny else tuple(TORCH),
            severities=(3,) if options.tiny else (1, 2, 3, 4, 5),
            draws=1 if options.tiny else 3,
        )
        sections.run(
            "protocols",
            partial(time_protocols, run=run, sets=sets, options=wanted, save=sections.save),
            seconds=600 if encoder.device.type == "cuda" else 7200,
        )


if __name__ == "__main__":
    main()
