"""GPUs: the driver, what torch can use of it, and nvJPEG."""

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from prosmin.doctor.finding import Finding, reason
from prosmin.doctor.machine import GIB
from prosmin.doctor.packages import torch_build

if TYPE_CHECKING:
    import torch


def examine_devices() -> list[Finding]:
    """The driver, then each GPU or why there is none, then nvJPEG."""
    import torch

    driver = driver_version()
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    findings = [Finding("ok", "driver", f"NVIDIA {driver}" if driver else "no NVIDIA driver on this machine")]
    findings += [examine_gpu(i) for i in range(count)]
    if not count:
        findings.append(explain_no_gpu(driver))
    return [*findings, examine_nvjpeg(count)]


def driver_version(*, file: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The NVIDIA driver's version, empty without one."""
    try:
        # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar ..."
        words = file.read_text().splitlines()[0].split()
        return next(word for word in words if word[0].isdigit() and "." in word)
    except (OSError, IndexError, StopIteration):
        pass
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().partition("\n")[0]


def examine_gpu(i: int) -> Finding:
    """One GPU with its memory."""
    import torch

    subject = f"cuda:{i}"
    try:
        properties = torch.cuda.get_device_properties(i)
        free, total = torch.cuda.mem_get_info(i)
    except Exception as error:
        do = "Another process may hold it, or it needs a reset: see nvidia-smi"
        return Finding("problem", subject, f"cannot be used: {reason(error)}", do)
    says = f"{properties.name}, {free / GIB:.1f} GiB free of {total / GIB:.1f} GiB"
    if free < total / 2:
        return Finding("note", subject, says, "Somebody else is using it; CUDA_VISIBLE_DEVICES chooses another")
    return Finding("ok", subject, says)


def explain_no_gpu(driver: str) -> Finding:
    """Runs will use the CPU: because there is nothing else, because somebody chose so, or by mistake."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not driver:
        return Finding("ok", "device", "cpu; without a GPU the small recipes are the ones to use: `prosmin recipes`")
    if visible is not None and visible.strip() in ("", "-1"):
        return Finding("note", "device", f"cpu, since CUDA_VISIBLE_DEVICES is {visible!r}", "Unset it to use the GPU")
    if "CPU only" in torch_build():
        do = "Install a torch built for CUDA to use the GPU: pip install --force-reinstall torch torchvision"
        return Finding("note", "device", "cpu, since torch was built for the CPU only", do)
    says = f"torch, {torch_build()}, cannot use the GPU of driver {driver}{_complaint()}"
    do = "Update the driver, or install a torch built for an older CUDA; --compute.accelerator cpu does without"
    return Finding("problem", "device", says, do)


def _complaint() -> str:
    """Why torch cannot start CUDA, in its words: asked outright, since its warning comes only once."""
    import torch

    try:
        torch.cuda.init()
    except Exception as error:
        return f": {reason(error)}"
    return ""


def examine_nvjpeg(gpus: int) -> Finding:
    """Whether the GPU can decode JPEGs: tried, where there is one."""
    import torch

    if not gpus:
        return Finding("ok", "nvJPEG", "not asked for without a GPU: the CPU decodes")
    try:
        from prosmin.doctor.selftest import jpeg

        _decode_on_gpu(jpeg(), torch.device("cuda"))
    except Exception as error:
        return Finding("note", "nvJPEG", f"not usable, the CPU decodes instead: {reason(error)}")
    return Finding("ok", "nvJPEG", "the GPU can decode JPEGs: --compute.nvjpeg true")


def _decode_on_gpu(data: bytes, device: "torch.device") -> None:
    """The operator itself: `decode_batch` would fall back to the CPU without a word."""
    import torch
    import torchvision.io  # noqa: F401  (loads the operators)

    encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    (decoded,) = torch.ops.image.decode_jpegs_cuda([encoded], 3, device)
    if decoded.device.type != "cuda":
        raise RuntimeError(f"the picture came back on {decoded.device}")
