"""The runs behind RESULTS.md: train, evaluate on the test images once, write one file per run and seed.

    python benchmarks/evidence.py --data DIR --runs RUNS --stage first
    python benchmarks/evidence.py --data DIR --runs RUNS --stage seeds --seeds 0,1,2
    python benchmarks/evidence.py --data DIR --runs RUNS --only cifar10-resnet18-prosmin-100

DIR holds cifar10-train.parquet, cifar10-test.parquet, cifar100-test.parquet and svhn-test10k.parquet (columns image and
label). A stage is a list of runs in order of value. A run that has its file is not repeated, nor is one of the same
configuration under another name; one that was stopped continues from its checkpoint in RUNS; an error in one does not
stop the others. Nothing is chosen here: what the recipes hold was chosen on a held-out tenth of train (cifar.py,
LOG.md), and the protocols fit theirs on it too.
"""

import argparse
import json
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from outcomes import read_outcomes
from prosmin import config as configs
from prosmin.encoder.file import read_card
from prosmin.errors import Stopped
from prosmin.evaluation.options import Options
from prosmin.evaluation.probes.linear import L2_GRID
from prosmin.evaluation.run import evaluate
from prosmin.export import export
from prosmin.files import write_text
from prosmin.machine import describe_machine
from prosmin.training import health
from prosmin.training.pretrain import pretrain

RESULTS = Path(__file__).parent / "results"
PROTOCOLS = ("knn", "linear", "lowshot", "ood", "corruption", "uncertainty")
ABLATED = ("knn", "linear", "uncertainty")
"""What is asked of a run along an axis."""
JUDGES_BASELINES = ("knn", "linear", "lowshot", "ood")
RESNET, VIT = "cifar10-resnet18", "cifar10-vit"
OWN = "this run"
CODE = {(RESNET, "dino"): 2, (VIT, "dino"): 2, (VIT, "mocov3"): 2}
"""By recipe and method: raised where a change of the code makes another training of the same configuration.

2: DINO's prototypes begin as long as published, MoCo v3's ViT with its own positions and weights.
"""
FIRST = "-first"
"""What the names of runs with the recipes before tuning end in."""
COMMAND = "python benchmarks/evidence.py"
TUNED_ON_LABELS_OF = "a held-out tenth of train"

METHODS = {
    "prosmin": {},
    "deterministic": {"heads.scale": "zero"},
    "dino": {"method.name": "dino"},
    "mocov3": {"method.name": "mocov3"},
    "ibot": {"method.name": "ibot"},
}
"""The methods of the table, and ProSMIN's deterministic twin."""
CONTROLS = {
    "score": {"loss.identification": "0"},
    "identification": {"loss.score_weight": "0"},
    "mocov3-multicrop": METHODS["mocov3"] | {"views.local": "4", "views.global_scale": "0.3,1"},
}
"""The two losses alone, and MoCo v3 with the views of the other methods."""
WHITENED = {
    "loss.identification": "0",
    "loss.beta": "1.5",
    "heads.last": "whiten",
    "heads.dim": "256",
    "heads.initial_scale": "1",
    "heads.bottleneck_batchnorm": "false",
    "heads.radius": "true",
    "target.whitening": "whiten",
    "target.normalise": "true",
    "target.momentum": "0.97",
}
"""The scoring rule alone with whitened targets: the best of the trials in LOG.md at 25 epochs, with the radius."""
BEFORE_TUNING = {
    (VIT, method): dict.fromkeys(("heads.hidden", "heads.dim", "heads.predictor_hidden"), "2048")
    for method in ("prosmin", "deterministic")
} | {
    (VIT, "dino"): {"heads.normalise_last": "true"},
    (VIT, "ibot"): {"heads.batchnorm": "false", "heads.shared": "true", "heads.normalise_last": "true"},
    (VIT, "mocov3"): {"target.momentum": "0.99", "views.global_scale": "0.3,1"},
}
"""Fields of the first runs that tuning has changed in the recipes since."""


@dataclass(frozen=True)
class Run:
    """One training: its file's name without the seed, its configuration, and what it is judged by."""

    name: str
    recipe: str
    fields: dict[str, str]
    protocols: tuple[str, ...] = PROTOCOLS


def _table(epochs: int, *, suffix: str = "") -> list[Run]:
    """Every method on both backbones, ProSMIN and the ResNet first."""
    cells = [(recipe, method) for method in METHODS for recipe in (RESNET, VIT) if (recipe, method) != (RESNET, "ibot")]
    before = BEFORE_TUNING if suffix == FIRST else {}
    return [
        Run(
            f"{recipe}-{method}-{epochs}{suffix}",
            recipe,
            {**METHODS[method], "training.epochs": str(epochs), **before.get((recipe, method), {})},
        )
        for recipe, method in sorted(cells, key=lambda cell: cell[0] == VIT)
    ]


def _axis(field: str, values: list[str], *, short: str, **more: str) -> list[Run]:
    """ProSMIN on the ResNet for 25 epochs along one field."""
    fixed = {"training.epochs": "25"} | {name.replace("__", "."): value for name, value in more.items()}
    return [Run(f"{RESNET}-{short}-{value}", RESNET, {**fixed, field: value}, ABLATED) for value in values]


STAGES: dict[str, list[Run]] = {
    "first": _table(100, suffix=FIRST),
    "table": _table(100),
    # The recipes with published crops and last layers; seeds.py compares the runs.
    "seeds": [
        Run(f"{recipe}-{name}-100-fair", recipe, {**fields, "training.epochs": "100"})
        for recipe in (RESNET, VIT)
        for name, fields in (METHODS | CONTROLS).items()
        if (recipe, name) != (RESNET, "ibot")
    ],
    "whitened": [
        Run(
            f"{recipe}-{name}-100", recipe, fields | {"training.epochs": "100"}, ("knn", "linear", "ood", "uncertainty")
        )
        for name, fields in {
            "whitened": WHITENED,
            "whitened-deterministic": WHITENED | {"heads.scale": "zero", "heads.radius": "false"},
        }.items()
        for recipe in (RESNET, VIT)
    ],
    "headline": [
        Run(f"{RESNET}-{method}-200", RESNET, {**METHODS[method], "training.epochs": "200"})
        for method in ("prosmin", "mocov3", "dino", "deterministic")
    ],
    # The score alone, and heads that do not keep the target's spread by themselves: what does lam do to it?
    "lam": _axis(
        "loss.lam",
        ["0.30", "0.35", "0.40", "0.42", "0.45", "0.50", "0.55", "0.60"],
        short="lam",
        loss__force="true",
        loss__identification="0",
        heads__last="learned",
        heads__bottleneck_batchnorm="false",
    ),
    "axes": [
        *_axis("loss.identification", ["0"], short="identification"),
        *_axis("loss.same_view", ["true"], short="same-view"),
        *_axis("loss.samples", ["2", "4", "8", "16"], short="samples"),
        *_axis("target.momentum", ["0.9", "0.95", "0.99", "0.996"], short="momentum"),
        *_axis("heads.dim", ["256", "1024", "2048", "4096"], short="dim"),
        *_axis("loss.rule", ["kernel"], short="rule"),
        *_axis("loss.norm", ["coordinate"], short="norm"),
        *_axis("heads.batchnorm", ["false"], short="batchnorm"),
        *_axis("heads.predictor", ["false"], short="predictor"),
    ],
}


def document(run: Run, seed: int, folder: Path, data: Path, out: Path) -> dict[str, Any]:
    """Train, judge, and tell all of it; `out` holds the files of earlier runs."""
    here = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    specs = {
        name: f"parquet:{data / name}.parquet"
        for name in ("cifar10-train", "cifar10-test", "cifar100-test", "svhn-test10k")
    }
    fields = run.fields | {"data.spec": specs["cifar10-train"], "training.seed": str(seed)}
    config = configs.resolve(recipe=run.recipe, overrides=fields)
    marks = [time.monotonic()]
    pretrain(config, folder)
    marks.append(time.monotonic())
    near, far = specs["cifar100-test"], specs["svhn-test10k"]
    finds_strangers = "ood" in run.protocols
    owner, baselines = known_baselines(out, config, run.protocols)
    asked = Options(baselines="none" if owner else "all")
    results = evaluate(
        folder,
        protocols=run.protocols,
        data=specs["cifar10-train"],
        test=specs["cifar10-test"],
        ood=[near, far] if finds_strangers else [],
        options=replace(asked, near=(near,)) if finds_strangers else asked,
    )
    for name, rows in baselines.items():
        results[name]["baselines"] = rows
    kept = ("metrics", "baselines", "sets", "settings", "seconds")
    marks.append(time.monotonic())
    target = {}
    if run.protocols == PROTOCOLS:
        target = judge_target(folder, data=specs["cifar10-train"], test=specs["cifar10-test"])
    marks.append(time.monotonic())
    parts = ("training, of this command, start and end included", "judging", "judging the target")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "name": run.name,
        "seed": seed,
        "recipe": run.recipe,
        "overrides": run.fields,
        "fingerprint": configs.fingerprint(config),
        "code": CODE.get((run.recipe, config.method.name), 1),
        "encoder": read_card(folder)["hash"],
        "epochs": config.training.epochs,
        "training_seconds": round(seconds(rows, config.training.batch_size), 1),
        "wall_seconds": {name: round(b - a, 1) for name, a, b in zip(parts, marks, marks[1:], strict=False)},
        "hardware": describe_machine(here),
        "command": f"{COMMAND} --data DIR --runs RUNS --only {run.name} --seeds {seed}",
        "chosen_on": TUNED_ON_LABELS_OF,
        "baselines_of": owner or OWN,
        "l2_grid": list(L2_GRID),
        "health": {
            "verdict": health.verdict(rows, config),
            "path": [_rounded(row) for row in rows[-1 :: -max(1, len(rows) // 24)][::-1]],
        },
        "effective_rank": rows[-1]["feature_rank"],
        "outcomes": read_outcomes(folder),
        "results": {name: {key: row[key] for key in kept if key in row} for name, row in results.items()},
        "target": {name: row["metrics"] for name, row in target.items()},
        "configuration": configs.to_tree(config),
    }


def code(document: dict[str, Any]) -> int:
    """The code that trained a file's run, as CODE counts it."""
    return document.get("code", 1)


def code_of_today(document: dict[str, Any]) -> int:
    """The code that would train it now."""
    return CODE.get((document.get("recipe", ""), document["configuration"]["method"]["name"]), 1)


def is_gone(run: Run) -> bool:
    """Whether nothing of today can make it: a first run of code that has changed since, as all of the ResNet's are."""
    older = CODE.get((run.recipe, run.fields.get("method.name", "prosmin")), 1) > 1
    return run.name.endswith(FIRST) and (run.recipe == RESNET or older)


def same_training(out: Path, run: Run, seed: int) -> dict[str, Any] | None:
    """What a run with the same configuration and seed under another name has measured by the probes of today."""
    for path in sorted(out.glob(f"{run.recipe}-*-s{seed}.json")):
        found = json.loads(path.read_text())
        fields = run.fields | {"data.spec": found["configuration"]["data"]["spec"], "training.seed": str(seed)}
        wanted = json.loads(json.dumps(configs.to_tree(configs.resolve(recipe=run.recipe, overrides=fields))))
        same = without_compute(wanted) == without_compute(found["configuration"])
        same_code = code(found) == code_of_today(found)
        same_probes = found.get("l2_grid") == list(L2_GRID) and set(run.protocols) <= set(found["results"])
        if same and same_code and same_probes:
            other = found.get("same_training_as", path.name)
            owner = other if found["baselines_of"] == OWN else found["baselines_of"]
            more = {"name": run.name, "overrides": run.fields, "same_training_as": other, "baselines_of": owner}
            return found | more
    return None


def without_compute(tree: dict[str, Any]) -> dict[str, Any]:
    """What of a configuration determines what is learned: of `compute`, which gains fields, the precision alone."""
    return tree | {"compute": {"precision": tree["compute"]["precision"]}}


def known_baselines(out: Path, config: configs.Config, protocols: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The baselines by protocol that an earlier run has measured, and its file; nothing where there is none.

    Raw pixels and the untrained network are those of every run with the same backbone, seed and evaluation views.
    """
    wanted = [name for name in protocols if name in JUDGES_BASELINES]
    for path in sorted(out.glob(f"*-s{config.training.seed}.json")):
        found = json.loads(path.read_text())
        rows = {name: found.get("results", {}).get(name, {}).get("baselines") for name in wanted}
        same = found.get("l2_grid") == list(L2_GRID) and _untrained(found["configuration"]) == _untrained(
            configs.to_tree(config)
        )
        if same and all(rows.values()):
            return path.name if found["baselines_of"] == OWN else found["baselines_of"], rows
    return "", {}


def _untrained(tree: dict[str, Any]) -> dict[str, Any]:
    """What of a configuration an untrained backbone and its images depend on."""
    own = tree["method"]["name"] == "mocov3" and tree["backbone"]["name"].startswith("vit")  # a start of its own
    views = {name: tree["views"][name] for name in ("global_size", "crop_share", "interpolation", "mean", "std")}
    return {"backbone": tree["backbone"], "views": views, "seed": tree["training"]["seed"], "own": own}


def judge_target(folder: Path, *, data: str, test: str) -> dict[str, Any]:
    """kNN and linear probe of the target network, which the papers of DINO and iBOT judge."""
    place = folder.with_name(f"{folder.name}-target")
    export(folder, place, format="safetensors", network="target", again=True)
    return evaluate(place, protocols=["knn", "linear"], data=data, test=test, options=Options(baselines="none"))


def seconds(rows: list[dict[str, Any]], batch: int) -> float:
    """What the steps took by the rates that were logged: a run that was stopped and continued counts its work once."""
    steps = [0, *(row["step"] for row in rows)]
    return sum(batch * (b - a) / row["images_per_second"] for a, b, row in zip(steps, steps[1:], rows, strict=False))


def _rounded(row: dict[str, Any]) -> dict[str, float]:
    names = ("step", "loss", "target_std", "feature_rank", "scale_mean", "grad_norm")
    return {name: float(f"{row[name]:.4g}") for name in names if name in row}


def _sanitised(value: Any, data: Path) -> Any:
    """Without the folder that the sets lay in."""
    if isinstance(value, dict):
        return {_sanitised(key, data): _sanitised(item, data) for key, item in value.items()}
    if isinstance(value, list):
        return [_sanitised(item, data) for item in value]
    return value.replace(f"parquet:{data}/", "parquet:") if isinstance(value, str) else value


def main() -> None:
    """The runs asked for that have no file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--runs", type=Path, required=True, metavar="RUNS", help="where run folders are")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--stage", choices=STAGES)
    parser.add_argument("--only", help="names of runs, with commas between")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--fields", nargs="*", default=[], metavar="GROUP.FIELD=VALUE", help="for a trial on a CPU")
    options = parser.parse_args()
    if options.fields and options.out == RESULTS:
        parser.error("--fields makes a trial, which is no evidence: give --out another folder.")
    warnings.simplefilter("ignore")
    wanted = STAGES[options.stage] if options.stage else [run for runs in STAGES.values() for run in runs]
    if options.only:
        named = {run.name: run for run in wanted}
        if unknown := [name for name in options.only.split(",") if name not in named]:
            parser.error(f"--only names {', '.join(unknown)}; there are {', '.join(named)}")
        wanted = [named[name] for name in options.only.split(",")]
    more = dict(field.split("=", 1) for field in options.fields)
    for seed in map(int, options.seeds.split(",")):
        for run in wanted:
            path = options.out / f"{run.name}-s{seed}.json"
            if path.exists():
                continue
            print(f"-- {path.stem}", flush=True)
            if is_gone(run):
                print("not run: the code and the recipe that its name stands for are gone", flush=True)
                continue
            if not more and not run.name.endswith(FIRST) and (known := same_training(options.out, run, seed)):
                write_text(path, json.dumps(known, indent=1) + "\n")
                print(f"{path.stem} is the training of {known['same_training_as']}: nothing in it differs", flush=True)
                continue
            try:
                asked = replace(run, fields=run.fields | more)
                folder = options.runs / path.stem
                found = document(asked, seed, folder, options.data, options.out)
            except Stopped:
                raise
            except Exception:
                traceback.print_exc()
                continue
            write_text(path, json.dumps(_sanitised(found, options.data), indent=1) + "\n")
            rows = found["results"]
            print(path.stem, {name: round(rows[name]["metrics"]["top1"], 4) for name in ("knn", "linear")}, flush=True)


if __name__ == "__main__":
    main()
