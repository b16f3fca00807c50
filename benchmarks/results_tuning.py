"""The tuning runs of cifar.py in a folder: their lines, and the table that counts them."""

import json
from pathlib import Path
from typing import Any

from results_runs import BACKBONES, METHODS

Line = dict[str, Any]


def read_tuning(folder: Path) -> dict[str, list[Line]]:
    """File name -> its lines on CIFAR-10's recipes."""
    files = {path.name: path.read_text().splitlines() for path in sorted(folder.glob("tuning-*.jsonl"))}
    read = {name: [json.loads(line) for line in lines] for name, lines in files.items()}
    return {name: [line for line in lines if line["recipe"] in BACKBONES] for name, lines in read.items()}


def table(folder: Path) -> list[str]:
    """How many runs every method had, and the best of them."""
    rows = []
    for name, lines in read_tuning(folder).items():
        for recipe, method in sorted({(line["recipe"], _method(line)) for line in lines}):
            own = [line for line in lines if (line["recipe"], _method(line)) == (recipe, method)]
            done = [line["knn20_top1"] for line in own if "knn20_top1" in line]
            given = {line["overrides"].get("training.epochs") for line in own}
            epochs = sorted(map(int, given - {None})) + (["the recipe's"] if None in given else [])
            best = f"{100 * max(done):.1f}" if done else "none finished"
            counts = (str(len(own)), str(len(own) - len(done)), ", ".join(map(str, epochs)), best)
            rows.append(f"| `{name}` | `{recipe}` | {METHODS.get(method, method)} | {' | '.join(counts)} |")
    head = "| file | recipe | method | runs | failed | epochs | best kNN %, held out |"
    return [head, "|---" * 7 + "|", *rows] if rows else ["Nothing yet."]


def identification(folder: Path) -> str:
    """What the identification term gave the score in tuning, where a file has the pair of runs."""
    for name, lines in read_tuning(folder).items():
        pair = [next((line for line in lines if line.get("name") == run), {}) for run in ("unit", "unit-id")]
        without, with_it = (line.get("knn20_top1") for line in pair)
        if without is not None and with_it is not None:
            epochs = pair[0]["overrides"]["training.epochs"]
            pace = "slower" if without < with_it else "no slower"
            return (
                f"The score alone learns {pace}: after {epochs} epochs of tuning kNN on the held-out tenth was "
                f"{100 * without:.1f} % without the identification term and {100 * with_it:.1f} % with it, "
                f"both with these heads and still with same-view pairs (`unit` and `unit-id` in `{name}`)."
            )
    return ""


def _method(line: Line) -> str:
    """Which method a line of cifar.py trained."""
    overrides = line["overrides"]
    return "deterministic" if overrides.get("heads.scale") == "zero" else overrides.get("method.name", "prosmin")
