"""docs/scoring.md: its code prints what it says, its table is that of the code, its figures exist."""

import re
from pathlib import Path

import pytest

from prosmin.scoring import validity_table

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "scoring.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_code_runs_and_prints_what_it_says(block, capsys):
    exec(compile(block, "docs/scoring.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    documented = re.findall(r"print\(.*\)  # (.*)", block)
    assert documented
    for line in documented:
        assert line in printed
    scores = {
        float(scale): (float(energy), float(crps))
        for scale, energy, crps in re.findall(r"scale (\S+): energy (\S+), crps (\S+)", "\n".join(printed))
    }
    assert min(scores, key=lambda s: scores[s][0]) == 1.0
    assert min(scores, key=lambda s: scores[s][1]) == 1.0


def test_the_table_is_that_of_the_code():
    assert len(BLOCKS) == 1
    assert validity_table() in TEXT


def test_the_figures_exist():
    figures = re.findall(r"!\[.*?\]\((.*?)\)", TEXT)
    assert len(figures) == 2
    for figure in figures:
        assert (DOCS / figure).read_text().lstrip().startswith("<?xml")
