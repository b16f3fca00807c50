"""`prosmin report`: one HTML page of one run, or of several side by side."""

import argparse
from pathlib import Path

from prosmin.commands.parsing import path

LINE = "one HTML page of one run, or of several side by side"
TAKES_FIELDS = False


def declare(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("runs", type=path, nargs="+", metavar="RUN")
    parser.add_argument(
        "--out", type=path, metavar="FILE.html", help="where to (default: RUN/report.html; of several, ./report.html)"
    )


def run(options: argparse.Namespace, fields: dict[str, str]) -> None:
    """Write the page."""
    from prosmin.report import write_report

    out = options.out or (options.runs[0] / "report.html" if len(options.runs) == 1 else Path("report.html"))
    print(f"wrote {write_report(options.runs, out)}")
