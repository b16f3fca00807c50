"""Where a run happens, which processes it has, and what they tell each other beside the gradients."""

import atexit
import importlib.util
import inspect
import os
import warnings
from argparse import Namespace
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.loggers import Logger
from lightning_fabric.plugins.environments import LightningEnvironment
from lightning_fabric.strategies import DDPStrategy
from lightning_fabric.utilities.exceptions import MisconfigurationException
from lightning_fabric.utilities.rank_zero import rank_zero_only
from torch.nn.parallel import DistributedDataParallel

from prosmin import config as configs
from prosmin.config import ComputeConfig, Config
from prosmin.errors import ProsminError, UsageError
from prosmin.local_processes import ending_without

PATIENCE = timedelta(hours=1)
"""How long a process waits for the others: the first one may be writing a large checkpoint or measuring kNN."""


class Processes:
    """All processes of the run; with one process nothing is sent."""

    def __init__(self) -> None:
        several = dist.is_initialized() and dist.get_world_size() > 1
        self._group: Any = dist.new_group(backend="gloo", timeout=PATIENCE) if several else None
        self._under_way: tuple[Any, torch.Tensor] | None = None
        atexit.unregister(_leave)  # until `close`, others may wait for this process

    def agree(self, code: int) -> int:
        """Give this process's code and get the largest of all processes: the same on each of them.

        With several processes it is the largest of the previous call: the answer travels during a step, and nobody
        waits for it. A signal that reached one process so ends them all at the same step.
        """
        if self._group is None:
            return code
        agreed = self._receive()
        sent = torch.tensor(code)
        self._under_way = dist.all_reduce(sent, op=dist.ReduceOp.MAX, group=self._group, async_op=True), sent
        return agreed

    def union(self, lines: list[str]) -> list[str]:
        """The lines of all processes, each once, sorted."""
        if self._group is None:
            return lines
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, lines, group=self._group)
        return sorted({line for part in parts for line in part})

    def close(self) -> None:
        """Leave together: a launcher ends all processes soon after the first that left, which may be writing still."""
        self._receive()
        if self._group is not None:
            dist.barrier(group=self._group)
        leave_at_end()

    def _receive(self) -> int:
        if self._under_way is None:
            return 0
        work, received = self._under_way
        self._under_way = None
        work.wait()
        return int(received)


def leave_at_end() -> None:
    """Have the connections end before Python does; for a process that nobody waits for."""
    atexit.unregister(_leave)
    atexit.register(_leave)


def _leave() -> None:
    """End the connections while Python is whole.

    gloo's threads let go of the last tensors in their own time. Where that falls into the end of the interpreter, the
    process may hang or abort, and torchrun waits five minutes for it.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


def make_loggers(config: Config, run: Path) -> list[Logger]:
    """The loggers the configuration asks for; an error where their package is missing."""
    name = config.training.logger
    if name == "none":
        return []
    if importlib.util.find_spec(name) is None:
        raise ProsminError(
            f"training.logger is {name}, but the package {name} is not installed: pip install 'prosmin[{name}]'"
        )
    if name == "tensorboard":
        from lightning_fabric.loggers import TensorBoardLogger

        return [TensorBoardLogger(root_dir=run, name="tensorboard", version="")]
    return [WandbLogger(run, configs.to_tree(config))]


class WandbLogger(Logger):
    """Weights & Biases behind Fabric's interface; the run folder's name is the run's name, so that it resumes."""

    def __init__(self, run: Path, settings: dict[str, Any]) -> None:
        self._run, self._settings = run, settings
        self._wandb: Any = None

    @property
    def name(self) -> str:
        """The project."""
        return "prosmin"

    @property
    def version(self) -> str:
        """The run."""
        return self._run.resolve().name

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """The configuration is sent when the run begins."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """One line of metrics.jsonl."""
        if self._wandb is None:
            import wandb  # type: ignore[import-not-found, unused-ignore]

            self._wandb = wandb.init(
                project=self.name,
                name=self.version,
                dir=str(self._run),
                config=self._settings,
                id=self.version,
                resume="allow",
            )
        self._wandb.log(metrics, step=step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run there too."""
        if self._wandb is not None:
            self._wandb.finish(exit_code=0 if status == "success" else 1)


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
