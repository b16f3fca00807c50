"""What is installed: the packages prosmin needs, imported to see that they work, and the extras."""

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
"""Extras that are not told to users."""

PURPOSES = {
    "datasets": "data of the form hf:NAME",
    "tensorboard": "a run's curves in TensorBoard",
    "wandb": "a run's curves in Weights & Biases",
    "onnx": "export to ONNX",
    "onnxruntime": "running an exported ONNX file",
    "onnxscript": "export to ONNX",
    "imagecorruptions-imaug": "the corruption frost, and the reference that all corruptions are held to",
}
"""What a user gets from each optional package."""

OWN_LINE = ("torch", "torchvision", "timm", "lightning-fabric")
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
    least: str  # the lowest version that will do; empty where any will
    extra: str = ""  # the extra that brings it; empty where it is needed always

    @property
    def wanted(self) -> str:
        """For pip, in quotes that a shell takes off."""
        return f"'{self.name}>={self.least}'" if self.least else self.name


def parse_requirement(text: str, *, extra: str = "") -> Requirement:
    """`name>=1.2; extra == "x"`, as pyproject.toml and installed metadata write it."""
    found = re.match(r"\s*([\w.-]+)\s*(?:\[[^]]*\])?[^>;]*(?:>=\s*([\w.]+))?", text)
    own = re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", text)
    assert found is not None, text
    return Requirement(found[1], found[2] or "", own[1] if own else extra)


def requirements() -> list[Requirement]:
    """All that prosmin names. A checkout's own file counts first: the metadata of an editable install grow old."""
    checkout = Path(prosmin.__file__).resolve().parents[2] / "pyproject.toml"
    if checkout.is_file():
        project = tomllib.loads(checkout.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == "prosmin":
            extras = project.get("optional-dependencies", {})
            found = [parse_requirement(text) for text in project["dependencies"]]
            return found + [parse_requirement(text, extra=extra) for extra in extras for text in extras[extra]]
    return [parse_requirement(text) for text in importlib.metadata.requires("prosmin") or []]


def examine_needed() -> list[Finding]:
    """prosmin and Python, then every package that must be there."""
    home = Path(prosmin.__file__).resolve().parent
    findings = [
        Finding("ok", "prosmin", f"{prosmin.__version__} in {home}"),
        Finding("ok", "Python", f"{platform.python_version()} at {sys.executable}, {platform.platform(terse=True)}"),
    ]
    quiet = []
    broken: set[str] = set()
    for requirement in requirements():
        if requirement.extra:
            continue
        finding = examine_package(requirement, broken)
        if finding.status == "problem":
            broken.add(requirement.name)
        if finding.status == "ok" and requirement.name not in OWN_LINE:
            quiet.append(f"{requirement.name} {finding.says}")
        else:
            findings.append(finding)
    return [*findings, Finding("ok", "also needed", ", ".join(quiet))] if quiet else findings


def examine_package(requirement: Requirement, broken: Collection[str]) -> Finding:
    """Whether a needed package is there, new enough, and can be imported."""
    name = requirement.name
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding("problem", name, "is not installed", f"pip install {requirement.wanted}")
    if release(version) < release(requirement.least):
        needed = f"{version} is too old; needed: {requirement.least} or later"
        return Finding("problem", name, needed, f"pip install --upgrade {requirement.wanted}")
    if under := [other for other in _BUILT_ON.get(name, ()) if other in broken]:
        return Finding("note", name, f"{version}, not tried: {under[0]} has to work first")
    try:
        importlib.import_module(_MODULES.get(name, name.lower()))
    except Exception as error:  # a broken binary leaves with ImportError, OSError, RuntimeError, AttributeError ...
        # torch and torchvision only work in versions made for each other.
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
    """Each optional package: there, or what it would be for and how to get it."""
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
