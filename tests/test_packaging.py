"""Packaging: the Makefile, versions, required packages and the wheel."""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import prosmin
from prosmin.doctor.packages import FOR_DEVELOPERS, PURPOSES, requirements

ROOT = Path(__file__).resolve().parent.parent
OTHER_NAMES = {"imagecorruptions": "imagecorruptions-imaug"}
"""Optional packages whose module has another name than the package; those installed need no entry."""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the sources: files of earlier builds in the checkout would get into the wheel."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src/prosmin", copy / "src/prosmin", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    return copy


@pytest.fixture(scope="module")
def wheel(source):
    """Built as pip does, but without a separate environment and so without a download."""
    program = "from setuptools import build_meta; build_meta.build_wheel('wheel')"
    subprocess.run([sys.executable, "-c", program], cwd=source, check=True, capture_output=True)
    (built,) = (source / "wheel").glob("*.whl")
    return built


def test_the_wheel_contains_every_file_of_the_package(source, wheel):
    files = {str(file.relative_to(source / "src")) for file in (source / "src/prosmin").rglob("*") if file.is_file()}
    assert {"prosmin/py.typed", "prosmin/recipes/demo.yaml", "prosmin/report/page.html"} <= files
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("prosmin/")}
    assert packed == files


def test_the_wheel_has_the_version_of_the_package(wheel):
    assert wheel.name == f"prosmin-{prosmin.__version__}-py3-none-any.whl"


def test_make_clean_keeps_runs(tmp_path):
    kept = [tmp_path / "runs/mine/encoder.safetensors", tmp_path / "src/prosmin/cli.py"]
    removed = [tmp_path / ".venv/bin/python", tmp_path / ".mypy_cache/a", tmp_path / "src/prosmin/__pycache__/cli.pyc"]
    for file in (*kept, *removed, tmp_path / "tests/a.py", tmp_path / "benchmarks/a.py"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("something")
    shutil.copy(ROOT / "Makefile", tmp_path)
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS")}  # of the make that runs the tests
    subprocess.run(["make", "clean"], cwd=tmp_path, env=env, check=True, capture_output=True)
    assert all(file.exists() for file in kept)
    assert not any(file.parent.exists() for file in removed)


def test_the_changelog_begins_with_this_version():
    heading = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert heading.split(",")[0] == f"## {prosmin.__version__}"


def test_the_citation_has_the_fields_of_its_format():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert {"type", "title", "authors"} <= citation["references"][0].keys()


def test_every_imported_package_is_required():
    required = {normal(each.name) for each in requirements() if each.extra not in FOR_DEVELOPERS}
    distributions = importlib.metadata.packages_distributions()
    for module in imported_modules() - sys.stdlib_module_names - {"prosmin"}:
        names = {normal(name) for name in distributions.get(module, [OTHER_NAMES.get(module, module)])}
        assert names & required, f"src/prosmin imports {module}, but pyproject.toml does not name it"


def test_every_optional_package_has_its_purpose():
    assert set(PURPOSES) == {each.name for each in requirements() if each.extra not in ("", *FOR_DEVELOPERS)}


def imported_modules() -> set[str]:
    """The first part of every name that the package imports."""
    found = set()
    for file in (ROOT / "src/prosmin").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found


def normal(name: str) -> str:
    """A package's normalised name."""
    return re.sub(r"[-_.]+", "-", name).lower()
