"""How long does the demo take, and does it end at the same weights after a SIGKILL and a Ctrl-C?

    python benchmarks/demo.py --out benchmarks/results/demo-cpu.json

Two runs of `prosmin demo` in a temporary folder: one left alone, one killed at a quarter and interrupted at a half of
its steps and started again each time. The JSON holds the seconds of the first, its results, whether both encoders are
the same file to the bit, hardware and command. `--reference RUN --seconds S` takes an undisturbed run made before.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from prosmin.files import file_hash

COMMAND = [sys.executable, "-m", "prosmin", "demo", "--out"]


def logged_step(run: Path) -> int:
    """The newest step in the run's log."""
    try:
        return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    except (OSError, IndexError, json.JSONDecodeError):
        return 0


def disturb(run: Path, *, step: int, number: signal.Signals) -> str:
    """Start the demo and send a signal once it has logged `step`; what it said comes back."""
    process = subprocess.Popen([*COMMAND, str(run)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while logged_step(run) < step and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    output, _ = process.communicate()
    return output.strip().splitlines()[-1]


def results(run: Path) -> dict[str, dict[str, object]]:
    """Metrics and baselines by protocol."""
    rows = [json.loads(path.read_text()) for path in sorted((run / "results").glob("*.json"))]
    return {row["protocol"]: {"metrics": row["metrics"], "baselines": row["baselines"]} for row in rows}


def main() -> None:
    """Run, disturb, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--seconds", type=float)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reference, seconds = options.reference, options.seconds
        if reference is None:
            reference, began = Path(folder) / "undisturbed", time.monotonic()
            subprocess.run([*COMMAND, str(reference)], check=True)
            seconds = time.monotonic() - began
        steps = logged_step(reference)
        run = Path(folder) / "disturbed"
        blows = ((steps // 4, signal.SIGKILL), (steps // 2, signal.SIGINT))
        said = [disturb(run, step=step, number=number) for step, number in blows]
        subprocess.run([*COMMAND, str(run)], check=True)
        again = time.monotonic()
        subprocess.run([*COMMAND, str(run)], check=True)
        same = file_hash(reference / "encoder.safetensors") == file_hash(run / "encoder.safetensors")
        lines = (reference / "metrics.jsonl").read_text().splitlines()
        rates = sorted(json.loads(line)["images_per_second"] for line in lines)
        report = {
            "command": " ".join(["python", *sys.argv]),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "seconds": round(seconds, 1),
            "seconds_when_finished_already": round(time.monotonic() - again, 1),
            "steps": steps,
            "images_per_second": rates[len(rates) // 2],
            "same_weights_after_sigkill_and_ctrl_c": same,
            "same_results": results(reference) == results(run),
            "last_words_after_signals": said,
            "results": results(reference),
        }
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({name: value for name, value in report.items() if name != "results"}, indent=1))
    if not same:
        sys.exit("the disturbed run ended at other weights")


if __name__ == "__main__":
    main()
