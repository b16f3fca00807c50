"""What this process may use of the machine, and what the machine is."""

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from prosmin import __version__

if TYPE_CHECKING:
    import torch

_NO_LIMIT = 2**60  # what cgroup v1 writes, about, where memory is not limited


class Limits(NamedTuple):
    """What the cgroups of a process leave to it; None: no limit."""

    cores: float | None
    memory: int | None  # bytes


def cgroup_limits(*, root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Limits:
    """The tightest limits of this process's cgroups and those above them, in version 1 or 2."""
    cores: list[float] = []
    memory: list[int] = []
    for line in text_of(own).splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        top = root / controllers.removeprefix("name=") if controllers else root
        # In a container the path may be the host's, of which only the upper end can be seen here.
        folder = top / path.strip("/")
        for place in (folder, *(p for p in folder.parents if p == top or top in p.parents)):
            quota, _, period = text_of(place / "cpu.max").partition(" ")
            old = (text_of(place / "cpu.cfs_quota_us"), text_of(place / "cpu.cfs_period_us"))
            for amount, per in ((quota, period), old):
                if amount.isdigit() and per.isdigit() and int(per):
                    cores.append(int(amount) / int(per))
            for name in ("memory.max", "memory.limit_in_bytes"):
                if (limit := text_of(place / name)).isdigit() and int(limit) < _NO_LIMIT:
                    memory.append(int(limit))
    return Limits(min(cores, default=None), min(memory, default=None))


def text_of(path: Path) -> str:
    """What a file says; nothing where it cannot be read, as on systems without it."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def main_memory() -> int:
    """Bytes of main memory: the machine's, or what a cgroup grants of it, above which the process would be killed.

    What is free at the moment does not count: it would make runs differ.
    """
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    granted = cgroup_limits().memory
    return there if granted is None else min(there, granted)


def describe_machine(device: "torch.device") -> dict[str, Any]:
    """Hardware and versions, as they are saved beside numbers."""
    import timm
    import torch
    import torchvision

    described: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "timm": timm.__version__,
        "prosmin": __version__,
    }
    if device.type == "cuda":
        described["cuda"] = torch.version.cuda
    return described


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
