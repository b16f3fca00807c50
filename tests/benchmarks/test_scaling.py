"""The table of docs/scaling.md is the one its results give."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_is_calculated_from_the_results():
    script = runpy.run_path(str(ROOT / "benchmarks/scaling.py"))
    assert script["rewritten"]() == (ROOT / "docs/scaling.md").read_text()
