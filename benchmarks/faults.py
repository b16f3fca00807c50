"""Does a run that was killed a hundred times end at the same bits as an undisturbed one?

    python benchmarks/faults.py --out benchmarks/results/faults-cpu.json

Twice: with SIGKILL, at random moments and every third time while a checkpoint is being written, and with SIGTERM. The
run continues with the same command each time. Compared are the final weights and every line of metrics.jsonl but for
rates and memory. The processes are forked from one that has imported torch, so that a start takes no seconds.
"""

import argparse
import json
import os
import platform
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import load_file

from demo import logged_step
from prosmin import cli
from prosmin.training import checkpoint as checkpoints

FIELDS = {
    "backbone.name": "resnet8_cifar", "heads.hidden": 32, "heads.bottleneck": 16, "heads.dim": 24,
    "heads.predictor_hidden": 32, "views.local": 1, "training.batch_size": 16, "training.epochs": 2,
    "training.log_every": 1, "training.checkpoint_every": 2, "training.knn_every": 7, "training.knn_pictures": 100,
    "compute.accelerator": "cpu",
}  # fmt: skip
VOLATILE = {"images_per_second", "memory_mib"}


def start(run: Path, steps: int, log: Path) -> int:
    """The command in a process of its own; its number comes back."""
    process = os.fork()
    if process:
        return process
    torch.set_num_threads(1)
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        options = [f"--{name}={value}" for name, value in (FIELDS | {"training.max_steps": steps}).items()]
        status = cli.main(["pretrain", "--recipe", "demo", "--out", str(run), *options])
        sys.stdout.flush()
    os._exit(status)


def is_writing(run: Path) -> bool:
    """Whether a checkpoint is being written."""
    try:
        return any(path.suffix == ".part" for path in (run / "checkpoints").iterdir())
    except OSError:
        return False


def has_ended(process: int) -> int | None:
    """The exit status of a process that has ended."""
    done, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def disturb(run: Path, steps: int, number: signal.Signals, kills: int, log: Path) -> Counter[str]:
    """Send the signal until it has struck `kills` times, then let the run end."""
    moments, seen = random.Random(int(number)), Counter[str]()
    while seen["struck"] < kills:
        process = start(run, steps, log)
        aims_at_write = number == signal.SIGKILL and seen["struck"] % 3 == 0
        goal, delay = logged_step(run) + moments.randint(0, 3), moments.random() * 0.03
        status = None
        while status is None and not (is_writing(run) if aims_at_write else logged_step(run) >= goal):
            status = has_ended(process)
            time.sleep(0.0005)
        time.sleep(0.0 if aims_at_write else delay)
        if status is None and (status := has_ended(process)) is None:
            while_writing = is_writing(run)
            os.kill(process, number)
            _, raw = os.waitpid(process, 0)
            seen["struck"] += 1
            seen["while writing"] += while_writing
            seen[f"exit {os.waitstatus_to_exitcode(raw)}"] += 1
        else:
            raise SystemExit(f"the run ended with {status} after {seen['struck']} kills; see {log}")
    process = start(run, steps, log)
    _, raw = os.waitpid(process, 0)
    seen["final exit"] = os.waitstatus_to_exitcode(raw)
    return seen


def metrics(run: Path) -> list[dict[str, float]]:
    """The logged lines without what the clock and the machine decide."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in VOLATILE} for row in rows]


def main() -> None:
    """Both signals, one result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    steps = 6 * options.kills  # a life lasts a few steps, so the run outlasts the kills
    FIELDS["training.epochs"] = max(2, -(-steps // 200))
    results: dict[str, object] = {
        "kills": options.kills,
        "steps": steps,
        "hardware": f"CPU, {platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "command": "python benchmarks/faults.py --out benchmarks/results/faults-cpu.json",
    }
    with tempfile.TemporaryDirectory() as folder:
        root, log = Path(folder), Path(folder) / "log"
        os.waitpid(start(root / "undisturbed", steps, log), 0)
        expected, rows = load_file(root / "undisturbed/encoder.safetensors"), metrics(root / "undisturbed")
        for number in (signal.SIGKILL, signal.SIGTERM):
            began = time.monotonic()
            run = root / number.name
            seen = disturb(run, steps, number, options.kills, log)
            weights = load_file(run / "encoder.safetensors")
            results[number.name] = {
                **seen,
                "same weights": all(torch.equal(weights[name], expected[name]) for name in expected),
                "same metrics": metrics(run) == rows,
                "same best checkpoint": checkpoints.best(run / "checkpoints")
                == checkpoints.best(root / "undisturbed/checkpoints"),
                "seconds": round(time.monotonic() - began),
            }
            print(number.name, results[number.name], flush=True)
            options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
