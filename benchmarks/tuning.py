"""Which setting of each method is best, after the same search? The same trials for every method and backbone.

    python benchmarks/tuning.py --train parquet:cifar10-train.parquet --runs RUNS --epochs 25 --trials 8 \\
        --out benchmarks/results/tuning-equal-h200.jsonl
    timeout -s TERM 570 python benchmarks/tuning.py ...       # stops at a checkpoint; the same command continues
    python benchmarks/tuning.py --train photos --runs /tmp/runs --out /tmp/t.jsonl --recipes demo \\
        --methods prosmin dino --epochs 1 --trials 2 --set training.max_steps=2      # any machine, a minute

Trial 0 is the recipe. The others draw every field of SEARCHED at random, from a seed: trial 5 of one method has the
same values as trial 5 of any other; a learning rate is a multiple of the recipe's. kNN (k 20) and the linear probe of a
held-out tenth of train are measured as in cifar.py; test images are never read. A finished trial is a line of the file
and is not repeated. `--set` changes fields of all trials, for two settings of a method that each get the whole search,
such as iBOT's two heads; fields that are searched are refused. At the end the best trial of each is printed.
"""

import argparse
import random
import shutil
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cifar
from prosmin import config as configs
from prosmin.data.image_sets import Pictures, load_pictures
from prosmin.errors import Stopped
from sections import append_missing, read_lines

SEARCHED: dict[str, tuple[Any, ...]] = {
    "optimizer.lr": (0.5, 1.0, 2.0, 4.0),  # times the recipe's
    "target.momentum": (0.95, 0.98, 0.99, 0.996),
    "optimizer.weight_decay_end": (0.04, 0.2, 0.4),
    "views.global_scale": ("0.08,1", "0.2,1", "0.3,1"),
}
"""What is searched, the same for every method."""
RECIPES = ("cifar10-resnet18", "cifar10-vit")
LEAST = 8
"""Trials of each method and backbone that a choice needs."""

Line = dict[str, Any]


def drawn(trial: int) -> dict[str, Any]:
    """The values of a trial, whatever the method; none for the recipe itself."""
    if trial == 0:
        return {}
    choice = random.Random(f"trial {trial}")
    return {field: choice.choice(values) for field, values in SEARCHED.items()}


def overrides(recipe: str, method: str, trial: int, changed: dict[str, str]) -> dict[str, str]:
    """The fields of a trial as the command line gives them."""
    values = drawn(trial)
    if "optimizer.lr" in values:
        own = configs.resolve(recipe=recipe, overrides={"method.name": method} | changed).optimizer.lr
        values["optimizer.lr"] = f"{own * values['optimizer.lr']:g}"
    return {"method.name": method} | {field: str(value) for field, value in values.items()} | changed


def has_section(recipe: str, method: str) -> bool:
    """iBOT cannot use a ResNet, and a recipe then has no section for it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        configs.resolve(recipe=recipe, overrides={"method.name": method})
    return not any("no section" in str(warning.message) for warning in caught)


def plan(recipes: Sequence[str], methods: Sequence[str], *, trials: int, epochs: int, changed: str) -> Iterator[Line]:
    """Trial by trial, so that a search that is stopped early has had as many trials of every method."""
    cells = [(recipe, method) for recipe in recipes for method in methods if has_section(recipe, method)]
    for trial in range(trials):
        for recipe, method in cells:
            yield {"recipe": recipe, "method": method, "trial": trial, "epochs": epochs, "set": changed}


def run(
    train: Pictures, runs: Path, *, recipe: str, method: str, trial: int, epochs: int, set: str
) -> Line:  # `set` is a name in the file
    """Train and judge one trial; a failure is a result too."""
    changed = dict(field.split("=", 1) for field in set.split())
    fields = overrides(recipe, method, trial, changed) | {"training.epochs": str(epochs)}
    mark = "".join(letter if letter.isalnum() else "-" for letter in set)
    name = "-".join(part for part in (recipe, method, str(epochs), mark, str(trial)) if part)
    try:
        found = cifar.one(name, recipe, {"training.checkpoint_minutes": "2", **fields}, train, runs, linear=True)
    except Stopped:
        raise
    except Exception as error:
        found = {"name": name, "overrides": fields, "failed": f"{type(error).__name__}: {error}"}
    shutil.rmtree(runs / name, ignore_errors=True)
    return found


def best(lines: Sequence[Line]) -> list[Line]:
    """The trial of highest kNN of each method, recipe, length and `set`, with the number of trials behind it."""
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        groups.setdefault(tuple(line[name] for name in ("recipe", "method", "epochs", "set")), []).append(line)
    chosen = []
    for group in groups.values():
        sound = [line for line in group if "failed" not in line]
        if sound:
            top = max(sound, key=lambda line: line["knn20_top1"])
            chosen.append(top | {"sound_trials": len(sound), "trials": len(group)})
    return chosen


def main() -> None:
    """The trials that the file does not have, then the best of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, metavar="SPEC")
    parser.add_argument("--runs", type=Path, required=True, help="where trials that were stopped wait")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--methods", nargs="+", default=tuple(configs.METHOD_GROUPS))
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--trials", type=int, default=LEAST)
    parser.add_argument("--set", nargs="*", default=[], metavar="GROUP.FIELD=VALUE")
    options = parser.parse_args()
    if searched := [field for field in options.set if field.split("=", 1)[0] in SEARCHED]:
        parser.error(f"--set {' '.join(searched)} would end its search; allowed: all fields but {', '.join(SEARCHED)}")
    warnings.simplefilter("ignore")
    changed = " ".join(sorted(options.set))
    jobs = plan(options.recipes, options.methods, trials=options.trials, epochs=options.epochs, changed=changed)
    append_missing(options.out, jobs, partial(run, load_pictures(options.train), options.runs))
    for line in best(read_lines(options.out)):
        count = f"{line['sound_trials']} of {line['trials']} trials" + (
            "" if line["sound_trials"] >= LEAST else ", too few"
        )
        print(f"{line['name']}: kNN {100 * line['knn20_top1']:.1f} %, {count}, {line['overrides']}", flush=True)


if __name__ == "__main__":
    main()
