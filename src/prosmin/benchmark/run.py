"""The command: one row a method, printed and saved as each is done."""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prosmin import config as configs
from prosmin.benchmark.machine import describe_machine
from prosmin.benchmark.parts import measure_recipe
from prosmin.benchmark.table import print_efficiency, print_parts
from prosmin.benchmark.trainer import Trainer, release_memory
from prosmin.config import Config
from prosmin.data.feed import Feed, open_feed
from prosmin.data.sources import Source, open_source
from prosmin.errors import UsageError
from prosmin.files import write_text
from prosmin.methods import build_method


def benchmark(
    *,
    recipe: str | None = None,
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    methods: Sequence[str] = (),
    out: Path,
    command: str = "",
) -> dict[str, Any]:
    """Measure a recipe or a configuration file with each of the methods, its own where none is named."""
    chosen, left_out = choose(recipe=recipe, file=file, overrides=overrides or {}, methods=methods)
    document: dict[str, Any] = {
        "command": command,
        "recipe": recipe or (str(file) if file else None),
        "left_out": left_out,
        "rows": [],
    }
    pictures: dict[tuple[Any, ...], tuple[Source, Feed]] = {}
    for config in chosen:
        trainer = Trainer(config)
        key = (config.data, config.compute)
        if key not in pictures:
            pictures[key] = _open(trainer)
        row = measure_recipe(trainer, *pictures[key])
        document["hardware"] = describe_machine(trainer.device)
        document["rows"].append(row | {"configuration": configs.to_tree(config)})
        print_parts(row)
        write_text(out, json.dumps(document, indent=2) + "\n")  # at once: what comes next may fail
        device = trainer.device
        del trainer
        release_memory(device)
    print_efficiency(document["rows"], left_out)
    return document


def choose(
    *, recipe: str | None, file: Path | None, overrides: Mapping[str, Any], methods: Sequence[str]
) -> tuple[list[Config], dict[str, str]]:
    """The configuration of each method, and why the others cannot be had."""
    if not methods:
        return [configs.resolve(recipe=recipe, file=file, overrides=overrides)], {}
    if "method.name" in overrides:
        raise UsageError("Both methods and method.name were given; give one of them.")
    for name in methods:
        configs.MethodConfig(name=name)  # an unknown name is a slip, not a method to leave out
    chosen, left_out = [], {}
    for name in dict.fromkeys(methods):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                config = configs.resolve(recipe=recipe, file=file, overrides={**overrides, "method.name": name})
                build_method(config)
            except UsageError as error:
                left_out[name] = str(error)
                continue
        chosen.append(config)
        for each in said:  # of a method that is left out the reason is enough
            warnings.warn(str(each.message), each.category, stacklevel=2)
    if not chosen:
        reasons = " ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise UsageError(f"None of the methods {', '.join(left_out)} can be measured. {reasons}")
    return chosen, left_out


def _open(trainer: Trainer) -> tuple[Source, Feed]:
    """The encoded pictures, and the feed that training would have of them."""
    data, compute = trainer.config.data, trainer.config.compute
    feed = open_feed(
        data.spec,
        device=trainer.device,
        max_bad=data.max_bad,
        memory_limit=int(compute.resident_gib * 2**30),
        nvjpeg=compute.nvjpeg,
    )
    return open_source(data.spec), feed
