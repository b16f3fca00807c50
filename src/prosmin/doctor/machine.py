"""The machine, as far as this process may use it: cores, main memory, disk."""

import os
import shutil
from pathlib import Path

from prosmin.doctor.finding import Finding
from prosmin.limits import cgroup_limits, text_of

GIB = 2**30
LITTLE_DISK, NO_DISK = 5 * GIB, GIB // 10
"""Below the first a large run's checkpoints may not fit, below the second nothing does."""
LITTLE_MEMORY = 4 * GIB


def examine_machine() -> list[Finding]:
    """Cores, memory and disk."""
    limits = cgroup_limits()
    return [examine_cores(limits.cores), examine_memory(limits.memory), examine_disk(Path.cwd())]


def examine_cores(quota: float | None) -> Finding:
    """Cores this process may run on, and the share of them its cgroup grants."""
    there = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
    threads = os.environ.get("OMP_NUM_THREADS")
    says = f"{usable} usable of {there}" + (f", OMP_NUM_THREADS is {threads}" if threads else "")
    if quota is None or quota >= usable:
        return Finding("ok", "CPU cores", says)
    says = f"{says}; a cgroup grants the time of {quota:g}"
    fitting = max(1, round(quota))
    if threads and threads.isdigit() and int(threads) <= fitting:
        return Finding("ok", "CPU cores", says)
    return Finding("note", "CPU cores", says, f"Faster with as many threads: export OMP_NUM_THREADS={fitting}")


def examine_memory(limit: int | None) -> Finding:
    """Main memory and what of it is free; the cgroup's limit where that is less."""
    fields = dict(line.split(":", 1) for line in text_of(Path("/proc/meminfo")).splitlines() if ":" in line)
    kib = {name: int(value.split()[0]) * 1024 for name, value in fields.items() if value.split()}
    total, free = kib.get("MemTotal"), kib.get("MemAvailable")
    if total is None or free is None:
        return Finding("note", "memory", "cannot be told on this system")
    says = f"{free / GIB:.1f} GiB free of {total / GIB:.1f} GiB"
    if limit is not None and limit < total:
        says += f"; a cgroup allows {limit / GIB:.1f} GiB"
        free = min(free, limit)
    if free < LITTLE_MEMORY:
        return Finding("note", "memory", says, "End other programs, or train with a smaller --training.batch_size")
    return Finding("ok", "memory", says)


def examine_disk(folder: Path) -> Finding:
    """Room in the folder where runs go unless told otherwise."""
    free = shutil.disk_usage(folder).free
    says = f"{free / GIB:.1f} GiB free in {folder}"
    if not os.access(folder, os.W_OK):
        return Finding("note", "disk", f"{folder} may not be written to", "Give runs another folder with --out")
    if free < NO_DISK:
        return Finding("problem", "disk", says, "Free some space, or start from another folder")
    if free < LITTLE_DISK:
        return Finding("note", "disk", says, "Checkpoints of large networks take some GiB: free some, or use --out")
    return Finding("ok", "disk", says)
