"""The processes of a run: how they start, meet and end, and what they exchange besides gradients."""

import atexit
import inspect
import logging
import os
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
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
from prosmin.interrupts import PARENT, is_further_process
from prosmin.local_processes import ending_without, environment, launch_of
from prosmin.training.loggers import make_loggers

PATIENCE = timedelta(hours=1)
"""How long a process waits for the others: the first may be writing a large checkpoint or measuring kNN."""


def make_fabric(config: Config, out: Path) -> Fabric:
    """Fabric for this process, launched: with several devices and no launcher, it starts the other processes."""
    if config.compute.accelerator == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "compute.accelerator is cuda, but no GPU is visible. `prosmin doctor` lists the devices; "
            "--compute.accelerator auto trains on the CPU then."
        )
    quieten_fabric()
    devices, nodes = layout(config.compute, os.environ)
    if devices > 1:
        os.environ["LOCAL_WORLD_SIZE"] = str(devices)  # torchrun's variable, by which processes share the cores
    try:
        fabric = Fabric(
            accelerator=config.compute.accelerator,
            devices=devices,
            num_nodes=nodes,
            precision=config.compute.precision,
            strategy=_data_parallel() if devices * nodes > 1 else "auto",
            # Fabric would take a SLURM batch script without srun for one of several tasks and wait for the others.
            plugins=None if launch_of(os.environ) else [LightningEnvironment()],
            loggers=make_loggers(config, out),
        )
    except (RuntimeError, ValueError, MisconfigurationException) as error:  # such as a missing GPU
        raise UsageError(
            f"compute.accelerator {config.compute.accelerator} with {devices} devices is not available: "
            f"{' '.join(str(error).split())} `prosmin doctor` lists the devices."
        ) from None
    keeps_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if keeps_store and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
        _join_again(fabric)
    with _launching():
        fabric.launch()
    return fabric


def quieten_fabric() -> None:
    """Show what Fabric says about itself only with --debug; its advice on matrix products is about what we set."""
    if not logging.getLogger("prosmin").isEnabledFor(logging.DEBUG):
        logging.getLogger("lightning_fabric").setLevel(logging.WARNING)


def _launching() -> AbstractContextManager[None]:
    """In a process that the first one started, end if that one has ended: nobody would answer."""
    if is_further_process():
        return ending_without(int(os.environ[PARENT]))
    return environment({PARENT: str(os.getpid())})


def ending_with_first(fabric: Fabric) -> AbstractContextManager[None]:
    """Within the block, a process that the first process started ends with it, instead of waiting an hour for it."""
    if fabric.local_rank and not launch_of(os.environ):
        return ending_without(os.getppid())
    return nullcontext()


def _data_parallel() -> DDPStrategy:
    """DDP that does not copy buffers: BatchNorm and centre use the global batch and are equal in all processes."""
    # The warning is about 1x1 convolutions, where different strides mean the same memory.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    names = inspect.signature(DistributedDataParallel.__init__).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"  # before torch 2.15
    options: dict[str, Any] = {name: False}
    return DDPStrategy(timeout=PATIENCE, **options)


def _join_again(fabric: Fabric) -> None:
    """Connect to the other processes after a restart by torchrun.

    torchrun keeps its store, and in it the addresses of the processes that have ended. A prefix for each attempt keeps
    the old addresses apart from the new ones.
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


def layout(compute: ComputeConfig, environment: Mapping[str, str]) -> tuple[int, int]:
    """Processes on a node, and nodes: as a launcher started them, else `compute.devices` on this machine."""
    launch = launch_of(environment)
    return (compute.devices, 1) if launch is None else (launch.world // launch.nodes, launch.nodes)


class Processes:
    """Messages between all processes of a run; a single process sends nothing."""

    def __init__(self) -> None:
        several = dist.is_initialized() and dist.get_world_size() > 1
        self._group: Any = dist.new_group(backend="gloo", timeout=PATIENCE) if several else None
        self._pending: tuple[Any, torch.Tensor] | None = None
        atexit.unregister(_disconnect)  # until `close`, others may wait for this process

    def agree(self, code: int) -> int:
        """Send this process's code and get the largest code of all processes, the same in each of them.

        With several processes it is the largest of the previous call, so that nobody waits: the answer travels during
        a step. A signal to one process thus stops all of them at the same step.
        """
        if self._group is None:
            return code
        agreed = self._receive()
        sent = torch.tensor(code)
        self._pending = dist.all_reduce(sent, op=dist.ReduceOp.MAX, group=self._group, async_op=True), sent
        return agreed

    def union(self, lines: list[str]) -> list[str]:
        """The different lines of all processes, sorted."""
        if self._group is None:
            return lines
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, lines, group=self._group)
        return sorted({line for part in parts for line in part})

    def close(self) -> None:
        """End together: a launcher kills the other processes soon after the first has ended, and one may be writing."""
        self._receive()
        if self._group is not None:
            dist.barrier(group=self._group)
        disconnect_at_exit()

    def _receive(self) -> int:
        if self._pending is None:
            return 0
        work, received = self._pending
        self._pending = None
        work.wait()
        return int(received)


def disconnect_at_exit() -> None:
    """Close the connections when Python exits; for a process that no other waits for."""
    atexit.unregister(_disconnect)
    atexit.register(_disconnect)


def _disconnect() -> None:
    """Close the connections before the interpreter shuts down.

    gloo's threads release the last tensors late. If that happens during shutdown, the process may hang or abort, and
    torchrun waits five minutes for it.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
