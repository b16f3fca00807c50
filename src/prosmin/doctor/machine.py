"""What this process can use: cores, memory, disk, GPUs, the processes of a launcher."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from prosmin.doctor.finding import Finding, reason
from prosmin.doctor.packages import torch_build
from prosmin.machine import cgroup_limits, text_of

if TYPE_CHECKING:
    import torch

GIB = 2**30
LITTLE_DISK, NO_DISK = 5 * GIB, GIB // 10
"""Below the first the checkpoints of a large run may not fit, below the second nothing does."""
LITTLE_MEMORY = 4 * GIB


def examine_machine() -> list[Finding]:
    """Cores, memory and disk."""
    limits = cgroup_limits()
    return [examine_cores(limits.cores), examine_memory(limits.memory), examine_disk(Path.cwd())]


def examine_cores(quota: float | None) -> Finding:
    """The cores that this process may use, and its cgroup's limit."""
    total = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    threads = os.environ.get("OMP_NUM_THREADS")
    says = f"{usable} usable of {total}" + (f", OMP_NUM_THREADS is {threads}" if threads else "")
    if quota is None or quota >= usable:
        return Finding("ok", "CPU cores", says)
    says = f"{says}; a cgroup limits them to the time of {quota:g}"
    fitting = max(1, round(quota))
    if threads and threads.isdigit() and int(threads) <= fitting:
        return Finding("ok", "CPU cores", says)
    return Finding("note", "CPU cores", says, f"For speed, use as many threads: export OMP_NUM_THREADS={fitting}")


def examine_memory(limit: int | None) -> Finding:
    """Main memory: free and total, and the cgroup's limit if that is less."""
    fields = dict(line.split(":", 1) for line in text_of(Path("/proc/meminfo")).splitlines() if ":" in line)
    kib = {name: int(value.split()[0]) * 1024 for name, value in fields.items() if value.split()}
    total, free = kib.get("MemTotal"), kib.get("MemAvailable")
    if total is None or free is None:
        return Finding("note", "memory", "unknown on this system")
    says = f"{free / GIB:.1f} GiB free of {total / GIB:.1f} GiB"
    if limit is not None and limit < total:
        says += f"; a cgroup allows {limit / GIB:.1f} GiB"
        free = min(free, limit)
    if free < LITTLE_MEMORY:
        return Finding("note", "memory", says, "Close other programs, or train with a smaller --training.batch_size")
    return Finding("ok", "memory", says)


def examine_disk(folder: Path) -> Finding:
    """Free space in the folder where runs are written by default."""
    free = shutil.disk_usage(folder).free
    says = f"{free / GIB:.1f} GiB free in {folder}"
    if not os.access(folder, os.W_OK):
        return Finding("note", "disk", f"{folder} is not writable", "Choose another folder for runs with --out")
    if free < NO_DISK:
        return Finding("problem", "disk", says, "Free some space, or start from another folder")
    if free < LITTLE_DISK:
        return Finding("note", "disk", says, "Checkpoints of large networks take a few GiB: free some, or use --out")
    return Finding("ok", "disk", says)


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
    """The version of the NVIDIA driver; empty without a driver."""
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
        do = "Another process may use it exclusively, or it needs a reset: see nvidia-smi"
        return Finding("problem", subject, f"cannot be used: {reason(error)}", do)
    says = f"{properties.name}, {free / GIB:.1f} GiB free of {total / GIB:.1f} GiB"
    if free < total / 2:
        return Finding("note", subject, says, "Other programs use it; CUDA_VISIBLE_DEVICES selects another GPU")
    return Finding("ok", subject, says)


def explain_no_gpu(driver: str) -> Finding:
    """Why runs will use the CPU: there is no GPU, it was switched off, or something is broken."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not driver:
        return Finding("ok", "device", "cpu; without a GPU use the small recipes: `prosmin recipes`")
    if visible is not None and visible.strip() in ("", "-1"):
        return Finding("note", "device", f"cpu, because CUDA_VISIBLE_DEVICES is {visible!r}", "Unset it to use the GPU")
    if "CPU only" in torch_build():
        do = "Install a torch built for CUDA to use the GPU: pip install --force-reinstall torch torchvision"
        return Finding("note", "device", "cpu, because torch was built for the CPU only", do)
    says = f"torch, {torch_build()}, cannot use the GPU with driver {driver}{_cuda_error()}"
    do = "Update the driver, or install a torch built for an older CUDA, or use --compute.accelerator cpu"
    return Finding("problem", "device", says, do)


def _cuda_error() -> str:
    """torch's message why CUDA cannot start; from init(), because its warning appears only once."""
    import torch

    try:
        torch.cuda.init()
    except Exception as error:
        return f": {reason(error)}"
    return ""


def examine_nvjpeg(gpus: int) -> Finding:
    """Whether the GPU can decode JPEGs; tested if there is one."""
    import torch

    if not gpus:
        return Finding("ok", "nvJPEG", "not used without a GPU: the CPU decodes")
    try:
        from prosmin.doctor.selftest import jpeg

        _decode_on_gpu(jpeg(), torch.device("cuda"))
    except Exception as error:
        return Finding("note", "nvJPEG", f"does not work, the CPU decodes instead: {reason(error)}")
    return Finding("ok", "nvJPEG", "the GPU can decode JPEGs: --compute.nvjpeg true")


def _decode_on_gpu(data: bytes, device: "torch.device") -> None:
    """Call the operator directly: `decode_batch` would silently fall back to the CPU."""
    import torch
    import torchvision.io  # noqa: F401  (loads the operators)

    encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    (decoded,) = torch.ops.image.decode_jpegs_cuda([encoded], 3, device)
    if decoded.device.type != "cuda":
        raise RuntimeError(f"the decoded image is on {decoded.device}")


LAUNCHER_VARIABLES = (
    "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES", "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
)  # fmt: skip


def is_first(environment: Mapping[str, str]) -> bool:
    """Whether this is the first of several processes, the one that prints."""
    return environment.get("RANK", environment.get("SLURM_PROCID", "0")) == "0"


def examine_processes(environment: Mapping[str, str]) -> list[Finding]:
    """The number of processes, as `prosmin pretrain` counts them, and the environment variables that determine it."""
    from prosmin.config import ComputeConfig
    from prosmin.training.launch import layout

    found = [f"{name}={environment[name]}" for name in LAUNCHER_VARIABLES if name in environment]
    variables = Finding("ok", "environment", ", ".join(found) if found else "no variables of torchrun or SLURM")
    return [_count(*layout(ComputeConfig(), environment), environment), variables]


def _count(local: int, nodes: int, environment: Mapping[str, str]) -> Finding:
    count = f"{local * nodes}" + (f" ({local} on each of {nodes} nodes)" if nodes > 1 else "")
    if "TORCHELASTIC_RUN_ID" in environment:
        return Finding("ok", "processes", f"{count}, started by torchrun")
    if local * nodes > 1:
        if "SLURM_NTASKS_PER_NODE" not in environment:  # lightning-fabric requires it
            do = f"Submit with --nodes={nodes} --ntasks-per-node={local}: lightning-fabric refuses --ntasks alone"
            return Finding("note", "processes", f"{count}, from SLURM's --ntasks", do)
        return Finding("ok", "processes", f"{count}, started by SLURM")
    tasks = environment.get("SLURM_NTASKS", "1")
    if tasks != "1" and environment.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        says = f"1, although this SLURM job has {tasks} tasks: srun did not start this process"
        return Finding("note", "processes", says, "Start it with srun to use all tasks")
    if environment.get("WORLD_SIZE", "1") != "1" or "LOCAL_RANK" in environment:
        says = "1, but WORLD_SIZE or LOCAL_RANK is set and torchrun did not start this process"
        return Finding("note", "processes", says, "Unset them, or start with torchrun")
    return Finding("ok", "processes", "1; --compute.devices N, torchrun or srun start N, one per device")
