"""What surrounds the code: the Makefile, the versions, the packages that are asked for, and the wheel."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_cleaning_leaves_what_was_trained(tmp_path):
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
