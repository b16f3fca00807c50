"""`prosmin report`: one HTML page about one run, or several side by side."""

import argparse
from pathlib import Path

from prosmin.commands.parsing import path

LINE = "one HTML page about one run, or several side by side"
TAKES_FIELDS = False


def declare(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument(
        "runs", type=path, nargs="+", metavar="RUN", help="a run folder, or the name of an encoder that was evaluated"
    )
    parser.add_argument(
        "--out", type=path, metavar="FILE.html", help="the page (default: RUN/report.html; of several, ./report.html)"
    )


def run(options: argparse.Namespace, fields: dict[str, str]) -> None:
    """Write the page."""
    from prosmin.evaluation.results import has_no_folder, results_folder
    from prosmin.report import write_report

    runs = [results_folder(str(run)) if has_no_folder(str(run)) else run for run in options.runs]
    out = options.out or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    print(f"wrote {write_report(runs, out)}")
