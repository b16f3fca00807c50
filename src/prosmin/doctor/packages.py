"""Installed packages: those that prosmin needs, imported to see that they work, and the extras."""

import contextlib
import importlib
import importlib.metadata
import platform
import re
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import prosmin
from prosmin.doctor.finding import Finding, reason

FOR_DEVELOPERS = ("test", "dev")
"""Extras that are not listed for users."""

PURPOSES = {
    "datasets": "data of the form hf:NAME",
    "gcsfs": "images at gs://",
    "s3fs": "images at s3://",
    "tensorboard": "a run's curves in TensorBoard",
    "wandb": "a run's curves in Weights & Biases",
    "mlflow": "a run's curves in MLflow",
    "onnx": "export to ONNX",
    "onnxruntime": "running an exported ONNX file",
    "onnxscript": "export to ONNX",
    "imagecorruptions-imaug": "the corruption frost, and the reference implementation of all corruptions",
}
"""What each optional package is for."""

SEPARATE_LINE = ("torch", "torchvision", "timm", "lightning-fabric")
_MODULES = {
    "lightning-fabric": "lightning_fabric",
    "scikit-learn": "sklearn",
    "scikit-image": "skimage",
    "pyyaml": "yaml",
    "pillow": "PIL",
}
_BUILT_ON = {"torchvision": ("torch",), "timm": ("torch", "torchvision"), "lightning-fabric": ("torch",)}


class Requirement(NamedTuple):
    """A line of pyproject.toml's dependencies."""

    name: str
    least: str  # the lowest allowed version; empty: any
    extra: str = ""  # the extra it belongs to; empty: always needed

    @property
    def specifier(self) -> str:
        """For pip, quoted for a shell."""
        return f"'{self.name}>={self.least}'" if self.least else self.name


def parse_requirement(text: str, *, extra: str = "") -> Requirement:
    """`name>=1.2; extra == "x"`, the format of pyproject.toml and of installed metadata."""
    found = re.match(r"\s*([\w.-]+)\s*(?:\[[^]]*\])?[^>;]*(?:>=\s*([\w.]+))?", text)
    marker = re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", text)
    assert found is not None, text
    return Requirement(found[1], found[2] or "", marker[1] if marker else extra)


def requirements() -> list[Requirement]:
    """All requirements, from the pyproject.toml of a checkout if there is one: installed metadata may be outdated."""
    checkout = Path(prosmin.__file__).resolve().parents[2] / "pyproject.toml"
    if checkout.is_file():
        project = tomllib.loads(checkout.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == "prosmin":
            extras = project.get("optional-dependencies", {})
            found = [parse_requirement(text) for text in project["dependencies"]]
            return found + [parse_requirement(text, extra=extra) for extra in extras for text in extras[extra]]
    return [parse_requirement(text) for text in importlib.metadata.requires("prosmin") or []]


def examine_needed() -> list[Finding]:
    """prosmin, Python, and every needed package."""
    home = Path(prosmin.__file__).resolve().parent
    findings = [
        Finding("ok", "prosmin", f"{prosmin.__version__} in {home}"),
        Finding("ok", "Python", f"{platform.python_version()} at {sys.executable}, {platform.platform(terse=True)}"),
    ]
    others = []
    broken: set[str] = set()
    for requirement in requirements():
        if requirement.extra:
            continue
        finding = examine_package(requirement, broken)
        if finding.status == "problem":
            broken.add(requirement.name)
        if finding.status == "ok" and requirement.name not in SEPARATE_LINE:
            others.append(f"{requirement.name} {finding.says}")
        else:
            findings.append(finding)
    return [*findings, Finding("ok", "also needed", ", ".join(others))] if others else findings


def examine_package(requirement: Requirement, broken: Collection[str]) -> Finding:
    """Whether a needed package is installed, new enough, and can be imported."""
    name = requirement.name
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding("problem", name, "is not installed", f"pip install {requirement.specifier}")
    if release(version) < release(requirement.least):
        needed = f"{version} is too old; needed: {requirement.least} or later"
        return Finding("problem", name, needed, f"pip install --upgrade {requirement.specifier}")
    if under := [other for other in _BUILT_ON.get(name, ()) if other in broken]:
        return Finding("note", name, f"{version}, not checked: {under[0]} has to work first")
    try:
        importlib.import_module(_MODULES.get(name, name.lower()))
    except Exception as error:  # a broken binary raises ImportError, OSError, RuntimeError, AttributeError ...
        # torch and torchvision only work in matching versions.
        both = "torch torchvision" if name == "torchvision" else name
        says = f"{version} cannot be imported: {reason(error)}"
        return Finding("problem", name, says, f"pip install --force-reinstall {both}")
    return Finding("ok", name, version + (f", {torch_build()}" if name == "torch" else ""))


def torch_build() -> str:
    """What the installed torch was compiled for."""
    import torch

    if torch.version.cuda:
        return f"built for CUDA {torch.version.cuda}"
    return f"built for ROCm {torch.version.hip}" if torch.version.hip else "built for the CPU only"


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, for comparison: "2.11.0rc1+cu130" -> (2, 11, 0)."""
    return tuple(int(number) for number in re.findall(r"\d+", re.split(r"[^\d.]", version)[0]))


def examine_extras() -> list[Finding]:
    """Each optional package: its version, or how to install it; and what it is for."""
    findings = []
    for requirement in requirements():
        if not requirement.extra or requirement.extra in FOR_DEVELOPERS:
            continue
        purpose = PURPOSES.get(requirement.name, f"the extra {requirement.extra}")
        version = ""
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(requirement.name)
        if version:
            findings.append(Finding("ok", requirement.name, f"{version}, for {purpose}"))
        else:
            command = f"pip install 'prosmin[{requirement.extra}]'"
            findings.append(Finding("note", requirement.name, f"not installed; for {purpose}", command))
    return findings or [Finding("ok", "none", "this version of prosmin has no extras")]
