"""The figure of docs/method.md on whitened targets, from benchmarks/results/whitening-cpu.jsonl.

python docs/figures/whitening.py
"""

import json
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks/results/whitening-cpu.jsonl"
CURVES = {
    "whitened": ("scoring rule alone, whitened", "#1b7837"),
    "centred": ("scoring rule alone, centred", "#b2182b"),
    "recipe": ("with identification (the demo's earlier recipe)", "#2166ac"),
}


def main() -> None:
    """Rank and kNN over epochs, seed 0."""
    mpl.rcParams["svg.hashsalt"] = "prosmin"  # the same figure is the same file
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.0, 3.2), layout="constrained")
    for line in lines:
        if line["seed"] == 0:
            name, colour = CURVES[line["variant"]]
            rows = line["epochs"]
            epochs = range(1, len(rows) + 1)
            left.plot(epochs, [row["feature_rank"] for row in rows], color=colour, label=name)
            right.plot(epochs, [100 * row["knn_top1"] for row in rows], color=colour, label=name)
    left.set(xlabel="epoch", ylabel="effective rank of the features", ylim=(0, None))
    right.set(xlabel="epoch", ylabel="kNN % on the held-out tenth")
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(HERE / "whitening.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
