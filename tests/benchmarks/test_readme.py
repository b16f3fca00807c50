"""The numbers of the README's evidence are those of the files; tests/benchmarks/test_results.py checks its tables."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
RESULTS = ROOT / "benchmarks/results"


def test_the_evidence_is_that_of_the_results_files():
    rows = [line for line in README.splitlines() if line.startswith(("| win ", "| loss "))]
    assert [row.split()[1] for row in rows] == 3 * ["win"] + 3 * ["loss"]
    vit = {name: results(f"cifar10-vit-{name}-s0") for name in ("prosmin-100", "dino-100", "mocov3-100")}
    vit["ibot"] = results("cifar10-vit-ibot-100-first-s0")
    resnet = results("cifar10-resnet18-prosmin-100-s0")
    twins = [results(f"cifar10-{network}-deterministic-100-s0") for network in ("resnet18", "vit")]
    alone = results("cifar10-resnet18-whitened-100-first-s0")
    geometry = json.loads((RESULTS / "geometry-cifar10-vit-cpu.json").read_text())
    detected = geometry["judged"]["15000 of CIFAR-10"]
    ranked = geometry["uncertainty"]["rankings"]
    numbers = [
        [found["knn"]["metrics"]["top1"] for found in vit.values()],
        [detected[score]["cifar100"] / 100 for score in ("default", "plain")],
        [],
        [found["knn"]["metrics"]["top1"] for found in (resnet, vit["prosmin-100"], *twins)],
        [ranked[name]["r_auroc"] / 100 for name in ("mean log scale", "centred distance", "default")],
        [found["knn"]["metrics"]["top1"] for found in (resnet, alone)],
    ]
    for row, shares in zip(rows, numbers, strict=True):
        for share in shares:
            assert f" {100 * share:.1f}" in row, (row, share)
    assert f" {100 * resnet['uncertainty']['metrics']['coverage_90']:.0f} % " in rows[2]


def results(name: str) -> dict:
    """The results of a run, by protocol."""
    return json.loads((RESULTS / f"{name}.json").read_text())["results"]
