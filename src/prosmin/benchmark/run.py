"""Measure recipes and methods: print the time of each part and the efficiency table, write a JSON file."""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from prosmin import config as configs
from prosmin.benchmark.measure import measure_recipe
from prosmin.benchmark.trainer import Trainer, release_memory
from prosmin.config import Config
from prosmin.data.sources import Source, open_source
from prosmin.data.stream import Feed
from prosmin.errors import UsageError
from prosmin.files import write_text
from prosmin.machine import describe_machine
from prosmin.methods import build_method
from prosmin.training.determinism import deterministic
from prosmin.training.pretrain import open_images

WIDTH = 120


def print_parts(row: dict[str, Any]) -> None:
    """The time of each part of one method and what limits it."""
    console = Console(width=WIDTH, soft_wrap=True)
    how = "not compiled" if row["compiled"] == "none" else f"compiled: {row['compiled']}"
    setting = f"{row['title']}, {row['backbone']}, {row['views']}, batch {row['batch_size']}, {row['precision']}, {how}"
    console.print(setting, highlight=False)
    table = Table("", box=None, pad_edge=False)
    for heading in ("ms per batch", "img/s", "fastest-slowest ms"):
        table.add_column(heading, justify="right")
    for name, part in row["parts"].items():
        if part is None:
            table.add_row(name, "-", "-", "the images are stored decoded")
            continue
        spread = f"{part['ms_lowest']:.4g}-{part['ms_highest']:.4g}"
        table.add_row(name, f"{part['ms']:.4g}", f"{part['images_per_second']:,.0f}", spread)
    console.print(table)
    console.print(f"Views take {row['views_share']:.0%} of the step. {row['bound']}\n", highlight=False)


def print_efficiency(rows: list[dict[str, Any]], left_out: dict[str, str]) -> None:
    """The paper's table: parameters, img/s, hours for 300 epochs of ImageNet's images, GPUs, memory."""
    others = dict.fromkeys(name for row in rows for name in row["parameters"])
    table = Table("method", box=None, pad_edge=False)
    headings = [*(f"{name} (M)" for name in others), "img/s", "hours / 300 ImageNet epochs", "devices", "memory (GiB)"]
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        sizes = (row["parameters"].get(name) for name in others)
        memory = row["peak_memory_gib"]
        table.add_row(
            row["title"],
            *("-" if size is None else f"{size / 1e6:.2f}" for size in sizes),
            f"{row['parts']['end to end']['images_per_second']:,.0f}",
            f"{row['hours']:,.1f}",
            str(row["devices"]),
            "-" if memory is None else f"{memory:.2f}",
        )
    console = Console(width=WIDTH, soft_wrap=True)
    console.print(table)
    for name, reason in left_out.items():
        console.print(f"left out: {name}. {reason}", highlight=False)


def benchmark(
    *,
    recipe: str | None = None,
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    methods: Sequence[str] = (),
    out: Path,
    command: str = "",
) -> dict[str, Any]:
    """Measure a recipe or a configuration file with each of the methods, or with its own if none is named."""
    chosen, left_out = choose(recipe=recipe, file=file, overrides=overrides or {}, methods=methods)
    document: dict[str, Any] = {
        "command": command,
        "recipe": recipe or (str(file) if file else None),
        "left_out": left_out,
        "rows": [],
    }
    pictures: dict[tuple[Any, ...], tuple[Source, Feed]] = {}
    for config in chosen:
        with deterministic(config.compute):
            trainer = Trainer(config)
            key = (config.data, config.compute)
            if key not in pictures:
                pictures[key] = open_source(config.data.spec), open_images(config, trainer.device)
            row = measure_recipe(trainer, *pictures[key])
        document["hardware"] = describe_machine(trainer.device)
        document["rows"].append(row | {"configuration": configs.to_tree(config)})
        print_parts(row)
        write_text(out, json.dumps(document, indent=2) + "\n")  # after each method, as the next may fail
        device = trainer.device
        del trainer
        release_memory(device)
    print_efficiency(document["rows"], left_out)
    return document


def choose(
    *, recipe: str | None, file: Path | None, overrides: Mapping[str, Any], methods: Sequence[str]
) -> tuple[list[Config], dict[str, str]]:
    """The configuration of each method, and {method: why} for those that the recipe cannot train."""
    if not methods:
        return [configs.resolve(recipe=recipe, file=file, overrides=overrides)], {}
    if "method.name" in overrides:
        raise UsageError("Both methods and method.name were given; give one of them.")
    for name in methods:
        configs.MethodConfig(name=name)  # an unknown name is an error, not a method to leave out
    chosen, left_out = [], {}
    for name in dict.fromkeys(methods):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                config = configs.resolve(recipe=recipe, file=file, overrides={**overrides, "method.name": name})
                build_method(config)
            except UsageError as error:
                left_out[name] = str(error)
                continue
        chosen.append(config)
        for each in caught:  # only of methods that are measured
            warnings.warn(str(each.message), each.category, stacklevel=2)
    if not chosen:
        reasons = " ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise UsageError(f"None of the methods {', '.join(left_out)} can be measured. {reasons}")
    return chosen, left_out
