"""Put the demo's measured numbers into the README, between its markers.

python benchmarks/readme.py
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
START, END = "<!-- demo:start -->\n", "<!-- demo:end -->"
ROWS = ("raw pixels", "untrained", "untrained, BatchNorm set", "trained")
COLUMNS = (("kNN top-1 %", "knn", "top1", True), ("kNN NLL", "knn", "nll", False),
           ("linear top-1 %", "linear", "top1", True), ("linear NLL", "linear", "nll", False),
           ("linear ECE", "linear", "ece", False), ("OOD AUROC %", "ood", "auroc", True))  # fmt: skip


def block(measured: dict[str, Any]) -> str:
    """The text between the markers."""
    lines = [
        f"What `make demo` prints at the end, {measured['seconds'] / 60:.1f} minutes after the packages are installed, "
        f"on {measured['cores']} CPU cores (`benchmarks/results/demo-cpu.json`):",
        "",
        "| | " + " | ".join(heading for heading, *_ in COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for row in ROWS:
        cells = [_cell(measured["results"][protocol], row, name, percent) for _, protocol, name, percent in COLUMNS]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(result: dict[str, Any], row: str, name: str, percent: bool) -> str:
    metrics = result["metrics"] if row == "trained" else result["baselines"].get(row, {})
    if name not in metrics:
        return "-"
    return f"{100 * metrics[name]:.1f}" if percent else f"{metrics[name]:.3f}"


def rewritten() -> str:
    """The README with its block made anew."""
    text = (ROOT / "README.md").read_text()
    before, rest = text.split(START)
    after = rest.split(END)[1]
    measured = json.loads((ROOT / "benchmarks/results/demo-cpu.json").read_text())
    return before + START + block(measured) + END + after


if __name__ == "__main__":
    (ROOT / "README.md").write_text(rewritten())
