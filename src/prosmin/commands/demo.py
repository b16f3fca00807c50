"""`prosmin demo`: pretrain, evaluate and report on the embedded photographs; finished steps are not repeated."""

import argparse
from pathlib import Path

from prosmin.commands.parsing import path

LINE = "pretrain, evaluate and report on the embedded photographs"
TAKES_FIELDS = True


def declare(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument(
        "--out", type=path, default=Path("runs/demo"), metavar="DIR", help="run folder (default: %(default)s)"
    )


def run(options: argparse.Namespace, fields: dict[str, str]) -> None:
    """Run the three steps."""
    from prosmin import config as configs

    config = configs.resolve(recipe="demo", overrides=fields)
    from prosmin.evaluation.run import evaluate
    from prosmin.evaluation.table import print_table
    from prosmin.report import write_report
    from prosmin.training.pretrain import pretrain

    run = pretrain(config, options.out)
    print_table(evaluate(run))
    print(f"report: {write_report([run], run / 'report.html')}")
