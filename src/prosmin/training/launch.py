"""Where a run happens: the devices and processes that torchrun, SLURM or the configuration say there are."""

import inspect
import os
import warnings
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import LightningEnvironment
from lightning_fabric.strategies import DDPStrategy
from lightning_fabric.utilities.exceptions import MisconfigurationException
from torch.nn.parallel import DistributedDataParallel

from prosmin.config import ComputeConfig, Config
from prosmin.errors import UsageError
from prosmin.own_processes import ending_without
from prosmin.training.loggers import make_loggers
from prosmin.training.processes import PATIENCE


def make_fabric(config: Config, out: Path) -> Fabric:
    """Fabric for this process, launched: with several devices and no launcher it starts the other processes itself."""
    if config.compute.accelerator == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "compute.accelerator is cuda, but no GPU is visible here. `prosmin doctor` tells what there is; "
            "--compute.accelerator auto trains on the CPU then."
        )
    devices, nodes = layout(config.compute, os.environ)
    if devices > 1:
        os.environ["LOCAL_WORLD_SIZE"] = str(devices)  # torchrun's word, by which processes share the cores
    try:
        fabric = Fabric(
            accelerator=config.compute.accelerator,
            devices=devices,
            num_nodes=nodes,
            precision=config.compute.precision,
            strategy=_data_parallel() if devices * nodes > 1 else "auto",
            # Fabric would take a lone batch script of SLURM for one of several tasks, and wait for the others.
            plugins=None if _is_launched(os.environ) else [LightningEnvironment()],
            loggers=make_loggers(config, out),
        )
    except (RuntimeError, ValueError, MisconfigurationException) as error:  # such as a GPU that is not there
        raise UsageError(
            f"compute.accelerator {config.compute.accelerator} with {devices} devices cannot be had here: "
            f"{' '.join(str(error).split())} `prosmin doctor` lists what there is."
        ) from None
    keeps_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if keeps_store and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
        _join_again(fabric)
    fabric.launch()
    return fabric


def beside_first(fabric: Fabric) -> AbstractContextManager[None]:
    """While this process trains it ends with the first, where that one started it: GPUs would wait an hour for it."""
    if fabric.local_rank and not _is_launched(os.environ):
        return ending_without(os.getppid())
    return nullcontext()


def _data_parallel() -> DDPStrategy:
    """DDP without its copying of buffers: BatchNorm and centre follow the global batch and are the same everywhere."""
    # It is told of 1x1 convolutions, where different strides are the same memory.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    names = inspect.signature(DistributedDataParallel.__init__).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"  # before torch 2.15
    options: dict[str, Any] = {name: False}
    return DDPStrategy(timeout=PATIENCE, **options)


def _join_again(fabric: Fabric) -> None:
    """Meet the other processes after torchrun has restarted them.

    torchrun keeps its store over a restart, and with it the addresses of the processes that are gone: they would be
    called in vain. Names of this attempt's own keep them apart.
    """
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    world = int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, is_master=False)
    on_gpu = fabric.device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(fabric.device)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=dist.PrefixStore(f"attempt {attempt}", store),
        rank=int(os.environ["RANK"]),
        world_size=world,
        timeout=PATIENCE,
    )


def layout(compute: ComputeConfig, environment: "os._Environ[str] | dict[str, str]") -> tuple[int, int]:
    """Processes on a node and nodes: a launcher's word counts, else `compute.devices` on this one machine."""
    if not _is_launched(environment):
        return compute.devices, 1
    if "TORCHELASTIC_RUN_ID" in environment:
        local = int(environment["LOCAL_WORLD_SIZE"])
        return local, int(environment["WORLD_SIZE"]) // local
    nodes = int(environment.get("SLURM_NNODES", "1"))
    return int(environment["SLURM_NTASKS"]) // nodes, nodes


def _is_launched(environment: "os._Environ[str] | dict[str, str]") -> bool:
    """Whether torchrun or srun started this process: SLURM_NTASKS is there without srun too, in a lone batch script."""
    by_srun = int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1 and "SLURM_NTASKS" in environment
    by_hand = environment.get("SLURM_JOB_NAME") in ("bash", "interactive")
    return (by_srun and not by_hand) or "TORCHELASTIC_RUN_ID" in environment
