"""The README's numbers are those of the results file, and its Python runs."""

import re
import runpy
from pathlib import Path

from conftest import TINY
from prosmin import config as configs
from prosmin.training.pretrain import pretrain

ROOT = Path(__file__).resolve().parent.parent


def test_the_demos_numbers_are_the_measured_ones():
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


def test_links_and_pictures_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target
