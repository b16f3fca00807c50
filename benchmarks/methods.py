"""How fast is a step of each method? Time, img/s and peak memory, relative to DINO.

    python benchmarks/methods.py --out benchmarks/results/methods-h200.json
    python benchmarks/methods.py --tiny --rounds 1 --out /tmp/methods.json      # any machine, a minute

Every method trains on ready views of the recipe's shapes with the same batch and precision. Each brings its own head
and loss as the recipe has them (ProSMIN: K 4096, predictor 2048), and MoCo v3 takes no local views, which is its
advantage. Rounds take turns (A B C A B C), each with fresh networks and compiled anew, since methods share code that
would otherwise be compiled for shapes of all of them; the median of the rounds counts, and each is told. The file is
written after every method.
"""

import argparse
import statistics
import sys
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from prosmin import config as configs
from prosmin.benchmark.measure import count_parameters, describe_views, measure
from prosmin.benchmark.trainer import Trainer, release_memory
from prosmin.config import METHOD_GROUPS, METHOD_TITLES, Config
from prosmin.errors import UsageError
from prosmin.machine import describe_machine
from sections import Sections
from step_anatomy import random_views

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RECIPES = ("cifar10-vit", "imagenet-vit-small")
BATCHES = {"imagenet-vit-small": "256"}
OWN = {"prosmin": {"heads.dim": "4096", "heads.predictor_hidden": "2048"}}
TINY = {
    "views.global_size": "32", "views.local_size": "16", "backbone.patch_size": "8", "backbone.width": "24",
    "backbone.depth": "2", "backbone.heads": "3", "heads.hidden": "32", "heads.dim": "24",
    "training.batch_size": "8", "compute.precision": "32-true",
}  # fmt: skip
TINY_OWN = {"prosmin": {"heads.predictor_hidden": "32"}}


def resolve(recipe: str, method: str, *, way: str, fields: dict[str, str], tiny: bool) -> Config:
    """The configuration of one method; later layers win."""
    layers = {"method.name": method, "compute.compile": way}
    layers |= {"training.batch_size": BATCHES[recipe]} if recipe in BATCHES else {}
    layers |= TINY | TINY_OWN.get(method, {}) if tiny else OWN.get(method, {})
    return configs.resolve(recipe=recipe, overrides=layers | fields)


def time_step(config: Config, found: dict[str, Any]) -> None:
    """Fill in the time of the step and the most memory it takes."""
    try:
        trainer = Trainer(config)
        views = random_views(config, pictures=config.training.batch_size, device=trainer.device)
        found["parameters"] = count_parameters(trainer.method)
        found["views"], found["batch_size"] = describe_views(config), config.training.batch_size
        found["fingerprint"] = configs.fingerprint(config)
        timing = measure(lambda: trainer.train([views]), trainer.device, warmup=4, repeats=3, seconds=1.5, limit=20)
        trainer.check()
        found |= timing.row(config.training.batch_size)
        if HERE.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            trainer.train([views])
            found["peak_memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    finally:
        trainer = views = None  # type: ignore[assignment]
        release_memory(HERE)


def summarise(sections: Sections, names: dict[tuple[str, str, str], list[str]], *, against: str) -> None:
    """The table of what was measured so far: medians of the rounds."""
    rows: list[dict[str, Any]] = []
    for (recipe, way, method), rounds in names.items():
        done = [sections.document["sections"].get(name, {}) for name in rounds]
        done = [found for found in done if "ms" in found]
        if not done:
            continue
        times = [found["ms"] for found in done]
        row = {"recipe": recipe, "way": way, "method": method, "views": done[0]["views"]}
        row |= {"ms": round(statistics.median(times), 3), "ms_of_rounds": times}
        row |= {"images_per_second": round(1e3 * done[0]["batch_size"] / statistics.median(times), 1)}
        row |= {"peak_memory_gib": done[0].get("peak_memory_gib"), "parameters": done[0]["parameters"]}
        rows.append(row)
    for row in rows:
        same = [r for r in rows if r["method"] == against and (r["recipe"], r["way"]) == (row["recipe"], row["way"])]
        row[f"ratio_to_{against}"] = round(row["ms"] / same[0]["ms"], 3) if same else None
    sections.document["table"] = rows
    sections.save()


def main() -> None:
    """Every recipe and way, round by round, method after method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--methods", default=",".join(METHOD_GROUPS))
    parser.add_argument("--ways", help="none, blocks or whole, as compute.compile; several with commas between")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch", help="pictures a step (default: the recipe's, for imagenet-vit-small 256)")
    parser.add_argument("--field", action="append", default=[], metavar="GROUP.FIELD=VALUE", help="for all methods")
    parser.add_argument("--against", default="dino", help="the method that the ratios refer to")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for one method in one round, compiling too")
    parser.add_argument("--tiny", action="store_true", help="small networks and views, for a trial on a CPU")
    options = parser.parse_args()
    fields = dict(field.split("=", 1) for field in options.field)
    fields |= {"training.batch_size": options.batch} if options.batch else {}
    left_out: dict[str, str] = {}
    document = {"command": "python " + " ".join(sys.argv), "hardware": describe_machine(HERE), "left_out": left_out}
    sections = Sections(options.out, document)
    names: dict[tuple[str, str, str], list[str]] = {}
    ways = (options.ways or ("none" if options.tiny else "blocks")).split(",")
    for recipe, way, turn in product(options.recipes.split(","), ways, range(options.rounds)):
        for method in options.methods.split(","):
            try:
                config = resolve(recipe, method, way=way, fields=fields, tiny=options.tiny)
            except UsageError as error:
                left_out[f"{recipe}, {method}"] = str(error)
                continue
            name = f"{recipe}, {way}, {method}, round {turn + 1}"
            names.setdefault((recipe, way, method), []).append(name)
            sections.run(name, partial(time_step, config), seconds=options.limit)
            summarise(sections, names, against=options.against)
    for row in sections.document["table"]:
        ratio, memory = row[f"ratio_to_{options.against}"], row["peak_memory_gib"]
        print(
            f"{row['recipe']:20} {row['way']:9} {METHOD_TITLES[row['method']]:8} {row['views']:14} "
            f"{row['ms']:10.2f} ms "
            f"{row['images_per_second']:10,.0f} img/s {memory or '-':>7} GiB {ratio or '-':>7} x {options.against}",
            flush=True,
        )


if __name__ == "__main__":
    main()
