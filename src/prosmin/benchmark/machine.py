"""What a measurement was made on."""

import os
import platform
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision

from prosmin import __version__


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Hardware and versions, as they are saved beside numbers."""
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
