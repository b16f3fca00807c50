"""What a run records of its steps: metrics.jsonl, other loggers, and the step at which numbers stopped being finite."""

import resource
import sys
import time
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from prosmin.config import Config
from prosmin.data.stream import Feed
from prosmin.progress import TrainingProgress
from prosmin.training import checkpoint as checkpoints
from prosmin.training import health
from prosmin.training.checkpoint import Saver
from prosmin.training.launch import Processes
from prosmin.training.online_knn import OnlineKnn
from prosmin.training.run_folder import RunFolder
from prosmin.training.schedules import Values
from prosmin.training.step import Step, refuse_unusable, slim


class Reading:
    """Tensors as they are once the work queued so far is done; later work may write to their memory."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        on_gpu = any(tensor.is_cuda for tensor in tensors.values())
        self._host = {name: _pinned(tensor) if on_gpu else tensor for name, tensor in tensors.items()}
        self._arrived = torch.cuda.Event(blocking=True) if on_gpu else None
        if self._arrived is not None:
            self._arrived.record()

    def read(self) -> dict[str, Tensor]:
        """The tensors on the host."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host


def _pinned(tensor: Tensor) -> Tensor:
    """A copy in pinned memory, which the host does not wait for."""
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)


class Logbook:
    """The steps taken since the last look, and what was asked for of the last of them."""

    def __init__(
        self,
        fabric: Fabric,
        config: Config,
        run: RunFolder,
        feed: Feed,
        progress: TrainingProgress,
        processes: Processes,
        saver: Saver,
        *,
        start: int,
    ) -> None:
        self.watch = health.Watch(config, run.read_metrics() if fabric.is_global_zero else [])
        self._fabric, self._run, self._feed = fabric, run, feed
        self._progress, self._processes, self._saver = progress, processes, saver
        self._config = config
        self._taken: list[tuple[int, Step, Tensor]] = []  # steps with their images' numbers
        self._asked: tuple[list[tuple[int, Step, Tensor]], dict[str, Any] | None, Reading] | None = None
        self._logged, self._logged_at = start, time.monotonic()

    @property
    def at_once(self) -> bool:
        """Whether a step is over when its call returns, so that waiting would gain nothing: on a CPU."""
        return self._fabric.device.type == "cpu"

    def take(self, step: int, done: Step, index: Tensor) -> None:
        """A step is in the queue."""
        self._taken.append((step, slim(done), index))

    def ask(self, done: Step, line: dict[str, Any] | None) -> None:
        """Ask whether the steps taken are finite and, given the beginning of a line, for the numbers of the last."""
        numbers = {"finite": torch.stack([step.loss + step.grad_norm for _, step, _ in self._taken]).isfinite()}
        if line is not None:
            # What takes all processes is asked here, where they stand at the same step; they settle when each likes.
            bad = self._processes.union(self._feed.bad)
            line = line | {"bad_pictures": len(bad), "bad_share": len(bad) / len(self._feed)}
            loss: Any = self._fabric.all_reduce(done.loss, reduce_op="mean")
            observed = health.measure(done.output.observed, self._together, world=self._fabric.world_size)
            numbers |= {"loss": loss, "grad_norm": done.grad_norm, **observed}
        self._asked = self._taken, line, Reading(numbers)
        self._taken = []

    def _together(self, x: Tensor, dim: int) -> Tensor:
        """The tensors of all processes, one after the other along a dimension."""
        if self._fabric.world_size == 1:
            return x
        parts: Any = self._fabric.all_gather(x.contiguous())  # (processes, ...)
        return torch.cat(list(parts), dim)

    def settle(self, knn: OnlineKnn | None = None, method: torch.nn.Module | None = None) -> float | None:
        """Stop the run if a step was not finite, else write the line that was asked for; with `knn`, its score."""
        if self._asked is None:
            return None
        taken, line, reading = self._asked
        self._asked = None
        numbers = reading.read()
        refuse_unusable(taken, numbers.pop("finite").tolist(), self._feed.key, next_steps=self._next_steps)
        return None if line is None else self._write(line, numbers, knn, method)

    def _write(
        self, line: dict[str, Any], numbers: dict[str, Tensor], knn: OnlineKnn | None, method: torch.nn.Module | None
    ) -> float | None:
        step = line["step"]
        row = line | {"loss": float(numbers.pop("loss")), "grad_norm": float(numbers.pop("grad_norm"))}
        row |= health.numbers(numbers) | self._memory()
        seconds = time.monotonic() - self._logged_at
        row["images_per_second"] = round(self._config.training.batch_size * (step - self._logged) / seconds, 1)
        score = None
        if knn is not None and method is not None:
            score = row["knn_top1"] = knn(method)
        self._logged, self._logged_at = step, time.monotonic()
        self._progress.describe(row)
        if self._fabric.is_global_zero:
            self._run.log(row)
            self._fabric.log_dict({k: v for k, v in row.items() if k != "step"}, step=step)
            if sentence := self.watch.see(row):
                print(f"warning: {sentence}", file=sys.stderr, flush=True)
        return score

    def _next_steps(self) -> str:
        """What is left of a run whose numbers are none, and what to change, as far as its configuration has it."""
        trouble = self._saver.trouble()
        saved = checkpoints.newest_names(self._run.checkpoints)
        whole = f"The checkpoint {saved[0]} is whole." if saved else "No checkpoint was written before it."
        optimizer, compute = self._config.optimizer, self._config.compute
        clip = "set optimizer.clip" if optimizer.clip is None else "optimizer.clip"
        change = f"Lower optimizer.lr or {clip}; that is another run and needs another --out."
        if compute.precision == "bf16-mixed":
            change += " Or go on with this one in --compute.precision 32-true."
        return f"{trouble or whole} {change}"

    def _memory(self) -> dict[str, float]:
        on_gpu = self._fabric.device.type == "cuda"
        if on_gpu:
            mib = torch.cuda.max_memory_allocated() / 2**20
        else:
            mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        return {"memory_mib": round(mib, 1), "on_gpu": int(on_gpu)}


def begin_line(step: int, values: Values, *, epoch: float) -> dict[str, Any]:
    """What a line says before the device is asked."""
    return {
        "step": step,
        "epoch": round(epoch, 4),
        "lr": values.lr,
        "weight_decay": values.weight_decay,
        "momentum": values.momentum,
    }
