"""The README's numbers are those of the results files, and its Python runs; test_docs.py looks at the rest."""

import re
import runpy
from pathlib import Path

from conftest import TINY
from prosmin import config as configs
from prosmin.training.pretrain import pretrain

ROOT = Path(__file__).resolve().parent.parent


def test_the_tables_are_made_of_the_results_files(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")  # scripts, not a package
    script = runpy.run_path(str(ROOT / "benchmarks/readme.py"))
    assert script["rewritten"]() == (ROOT / "README.md").read_text()


def test_the_python_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pretrain(configs.resolve(recipe="demo", overrides=TINY | {"training.max_steps": "1"}), Path("runs/demo"))
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    names = {}
    exec(example, names)
    assert len(names["unsure"]) == 840
    assert len(names["strange"]) == 1200
