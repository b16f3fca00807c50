"""The hardware and software here, and how much of the machine this process may use."""

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from prosmin import __version__

if TYPE_CHECKING:
    import torch

_NO_LIMIT = 2**60  # cgroup v1 writes about this number for unlimited memory


class Limits(NamedTuple):
    """The limits of a process's cgroups; None: no limit."""

    cores: float | None
    memory: int | None  # bytes


def cgroup_limits(*, root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> Limits:
    """The tightest limits of this process's cgroups and their parents, for cgroup version 1 or 2."""
    cores: list[float] = []
    memory: list[int] = []
    for line in text_of(membership).splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        top = root / controllers.removeprefix("name=") if controllers else root
        # In a container the path may be the host's; only its upper end is visible here.
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
    """The text of a file; empty if it cannot be read, as on systems without it."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def main_memory() -> int:
    """Bytes of main memory: the machine's, or the cgroup's limit, above which the process would be killed.

    Total and not free memory, so that runs do not depend on other programs.
    """
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = cgroup_limits().memory
    return total if limit is None else min(total, limit)


def describe_machine(device: "torch.device") -> dict[str, Any]:
    """Hardware and versions, saved with results."""
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
