"""The doctor: what works, what does not, also when imports are broken."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from prosmin import doctor as doctor_module
from prosmin.cli import main
from prosmin.doctor import packages, selftest
from prosmin.doctor.finding import Finding, reason
from prosmin.doctor.machine import is_first
from prosmin.doctor.packages import Requirement, examine_package, parse_requirement, release
from prosmin.errors import ProsminError

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"  (ok|note|problem) +\S")
TITLES = ["Packages", "Machine", "Processes", "Extras", "Self-test"]


def subjects(output, status):
    """The subjects of all lines of one status."""
    return re.findall(rf"^  {status} +(\S+(?: \S+)?) {{2,}}", output, re.MULTILINE)


def run_with(tmp_path, broken, message):
    """`prosmin doctor` in a process where importing `broken` fails."""
    (tmp_path / broken).mkdir()
    (tmp_path / broken / "__init__.py").write_text(f"raise RuntimeError({message!r})\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "prosmin", "doctor"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        check=False,
    )


# The whole


def test_here_everything_needed_works(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert [line for line in lines[:-1] if not LINE.match(line)] == TITLES
    assert lines[-1].startswith("Everything needed works.")
    assert len(lines) <= 45
    assert subjects(out, "problem") == []
    for subject in ("prosmin", "Python", "torch", "torchvision", "timm", "lightning-fabric", "also needed"):
        assert subject in subjects(out, "ok")
    for test in selftest.TESTS:
        assert test in subjects(out, "ok")
    assert f"built for CUDA {torch.version.cuda}" in out or "CPU only" in out


def test_a_broken_torchvision_is_reported_with_the_rest(tmp_path):
    done = run_with(tmp_path, "torchvision", "operator torchvision::nms does not exist")
    assert done.returncode == 1
    problem = next(line for line in done.stdout.splitlines() if line.startswith("  problem"))
    assert subjects(done.stdout, "problem") == ["torchvision"]
    assert "operator torchvision::nms does not exist" in problem
    assert "pip install --force-reinstall torch torchvision" in problem
    assert {"timm", "training", "decoding"} <= set(subjects(done.stdout, "note"))
    assert {"torch", "scoring rule", "writing"} <= set(subjects(done.stdout, "ok"))
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("prosmin: ")
    assert "torchvision" in done.stderr


def test_a_broken_torch_is_reported_with_the_rest(tmp_path):
    done = run_with(tmp_path, "torch", "libcudart.so.13: cannot open shared object file")
    assert done.returncode == 1
    assert "torch" in subjects(done.stdout, "problem")
    assert "libcudart.so.13" in done.stdout
    assert {"GPU", "processes", "scoring rule"} <= set(subjects(done.stdout, "note"))
    assert {"CPU cores", "writing"} <= set(subjects(done.stdout, "ok"))
    assert "Traceback" not in done.stdout + done.stderr


def test_a_section_that_fails_does_not_silence_the_others(monkeypatch, capsys):
    def fail(found):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(
        doctor_module, "SECTIONS", {"First": fail, "Second": lambda found: [Finding("ok", "b", "well")]}
    )
    with pytest.raises(ProsminError, match="first"):
        doctor_module.doctor()
    out = capsys.readouterr().out
    assert "ZeroDivisionError: oh" in out
    assert f"  ok       {'b':<22} well" in out


def test_of_several_processes_one_prints(monkeypatch, capsys):
    found = [Finding("ok", "a", "fine")]
    monkeypatch.setattr(doctor_module, "SECTIONS", {"Only": lambda _: found})
    monkeypatch.setenv("RANK", "1")
    doctor_module.doctor()
    assert capsys.readouterr().out == ""
    found.append(Finding("problem", "b", "broken", "Fix it"))
    with pytest.raises(ProsminError):
        doctor_module.doctor()
    assert capsys.readouterr().out == f"  problem  {'b':<22} broken. Fix it\n"
    assert is_first({"SLURM_PROCID": "0"})
    assert not is_first({"SLURM_PROCID": "2"})


def test_a_reason_is_one_short_line():
    assert reason(ImportError("one. two\nthree")) == "ImportError: one"
    assert reason(KeyError()) == "KeyError"
    assert len(reason(OSError("x" * 500))) == 160


# Packages


def test_requirements_are_read_from_both_formats():
    assert parse_requirement("torch>=2.11") == Requirement("torch", "2.11")
    assert parse_requirement("types-PyYAML", extra="dev") == Requirement("types-PyYAML", "", "dev")
    assert parse_requirement('datasets>=3; extra == "datasets"') == Requirement("datasets", "3", "datasets")
    assert parse_requirement("imageio[ffmpeg] >= 2.3 ; extra == 'x'") == Requirement("imageio", "2.3", "x")
    assert parse_requirement("numpy<3,>=1.26") == Requirement("numpy", "1.26")


def test_installed_metadata_are_read_without_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(packages.prosmin, "__file__", str(tmp_path / "a/b/prosmin/__init__.py"))
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["torch>=2.11", 'wandb>=1; extra == "wandb"'])
    assert packages.requirements() == [Requirement("torch", "2.11"), Requirement("wandb", "1", "wandb")]


def test_a_missing_extra_has_a_command_that_installs_it(monkeypatch):
    found = [
        Requirement("pytest", "8", "here"),
        Requirement("nowhere-to-be", "", "away"),
        Requirement("ruff", "", "dev"),
    ]
    monkeypatch.setattr(packages, "requirements", lambda: found)
    monkeypatch.setitem(packages.PURPOSES, "nowhere-to-be", "nothing")
    there, missing = packages.examine_extras()
    assert (there.status, there.subject) == ("ok", "pytest")
    assert str(missing).startswith(
        f"  note     {'nowhere-to-be':<22} not installed; for nothing. pip install 'prosmin[away]'"
    )


def test_missing_and_old_packages_are_problems_with_a_command():
    missing = examine_package(Requirement("nowhere-to-be", "1.2"), ())
    assert (missing.status, missing.do) == ("problem", "pip install 'nowhere-to-be>=1.2'")
    old = examine_package(Requirement("timm", "999.1"), ())
    assert old.status == "problem"
    assert "999.1" in old.says
    assert old.do == "pip install --upgrade 'timm>=999.1'"


def test_versions_compare_by_their_numbers():
    assert release("2.11.0rc1+cu130") == (2, 11, 0)
    assert release("10.2") > release("9.9.9")
    assert release("1.0.30") >= release("1.0.20")
    assert release("3.1") >= release("")


# Self-test: each can fail


def failing(subject):
    (finding,) = [f for f in selftest.examine_self(()) if f.subject == subject]
    return finding


def test_a_wrong_score_is_detected(monkeypatch):
    real = prosmin_scoring().gaussian_crps
    monkeypatch.setattr(prosmin_scoring(), "gaussian_crps", lambda *args: real(*args) * (1 + 1e-9))
    finding = failing("scoring rule")
    assert finding.status == "problem"
    assert "0.4932" in finding.says


def prosmin_scoring():
    import prosmin.scoring

    return prosmin.scoring


def test_a_method_without_a_gradient_is_found(monkeypatch):
    import prosmin.methods

    class Dead(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def forward(self, views, draws):
            return SimpleNamespace(losses=self.weight * torch.zeros(8))

    monkeypatch.setattr(prosmin.methods, "build_method", lambda config: Dead())
    finding = failing("training")
    assert finding.status == "problem"
    assert "norm 0.0" in finding.says


def test_a_decoder_that_changes_images_is_detected(monkeypatch):
    from prosmin.data import decode

    real = decode.decode
    monkeypatch.setattr(decode, "decode", lambda data: real(data).flip(0))  # blue for red
    assert failing("decoding").status == "problem"
    monkeypatch.setattr(decode, "decode", lambda data: real(data)[:, :16])
    assert "(3, 16, 48)" in failing("decoding").says


def test_half_written_files_are_found(monkeypatch, tmp_path):
    from contextlib import contextmanager

    import prosmin.files

    @contextmanager
    def careless(path):
        yield path

    monkeypatch.setattr(prosmin.files, "writing", careless)
    finding = failing("writing")
    assert finding.status == "problem"
    assert "another folder" in finding.do


@pytest.mark.parametrize("writable", [True, False])
def test_files_are_written_where_runs_go(monkeypatch, tmp_path, writable):
    import prosmin.files

    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(selftest.tempfile, "tempdir", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(selftest.os, "access", lambda path, mode: writable)
    written = []
    write_text = prosmin.files.write_text
    monkeypatch.setattr(prosmin.files, "write_text", lambda path, text: (written.append(path), write_text(path, text)))
    expected = tmp_path / ("here" if writable else "elsewhere")
    assert str(expected) in selftest.check_writing()
    assert [path.parent.parent for path in written] == [expected]
    assert list(expected.iterdir()) == []
