"""`prosmin demo`: pretrain, evaluate and report on the embedded photographs; what is finished is not repeated."""

from pathlib import Path

from prosmin.config import Config
from prosmin.evaluation.suite import evaluate
from prosmin.evaluation.table import print_table
from prosmin.report import write_report
from prosmin.training.pretrain import pretrain


def demo(config: Config, out: Path) -> None:
    """From photographs to a page, in one run folder."""
    run = pretrain(config, out)
    print_table(evaluate(run))
    print(f"report: {write_report([run], run / 'report.html')}")
