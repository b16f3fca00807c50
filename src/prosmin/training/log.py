"""What a run records about its steps: metrics.jsonl, other loggers, and the first step that was not finite."""

import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from prosmin.config import Config
from prosmin.data.stream import Feed
from prosmin.errors import ProsminError
from prosmin.messages import some
from prosmin.training import checkpoint as checkpoints
from prosmin.training import health
from prosmin.training.checkpoint import Saver
from prosmin.training.launch import Processes
from prosmin.training.measurements import Measurement
from prosmin.training.run_folder import RunFolder
from prosmin.training.schedules import Values
from prosmin.training.step import StepResult

Taken = tuple[int, StepResult, Tensor]
"""A step, its result, and the numbers of its images."""


def first_columns(step: int, values: Values, *, epoch: float) -> dict[str, Any]:
    """The part of a row that is known without waiting for the device."""
    return {
        "step": step,
        "epoch": round(epoch, 4),
        "lr": values.lr,
        "weight_decay": values.weight_decay,
        "momentum": values.momentum,
    }


class Logbook:
    """Collects the steps since the last check, then checks and logs them.

    `request` starts the copy of the newest numbers to the host, `finish` waits for it. On a GPU the loop calls `finish`
    one step later, so that the GPU never waits for the host.
    """

    def __init__(
        self,
        fabric: Fabric,
        config: Config,
        run: RunFolder,
        feed: Feed,
        processes: Processes,
        saver: Saver,
        *,
        start: int,
    ) -> None:
        self.watch = health.Watch(config, run.read_metrics() if fabric.is_global_zero else [])
        self.note = self._knn_note = ""  # the newest numbers, for the progress bar
        self._fabric, self._config, self._run, self._feed = fabric, config, run, feed
        self._processes, self._saver = processes, saver
        self._taken: list[Taken] = []
        self._requested: tuple[list[Taken], dict[str, Any] | None, HostCopy] | None = None
        self._logged, self._logged_at = start, time.monotonic()

    @property
    def at_once(self) -> bool:
        """Whether to check every step at once: on a CPU a step is over when its call returns."""
        return self._fabric.device.type == "cpu"

    def add(self, step: int, result: StepResult, index: Tensor) -> None:
        """Note a step that was started."""
        self._taken.append((step, result.without_embeddings(), index))

    def request(self, result: StepResult, row: dict[str, Any] | None) -> None:
        """Ask whether the steps so far are finite and, with the first columns of a row, for the numbers of the last."""
        numbers = {"finite": torch.stack([each.loss + each.grad_norm for _, each, _ in self._taken]).isfinite()}
        if row is not None:
            # The processes exchange their numbers here, where all are at the same step.
            bad = self._processes.union(self._feed.bad)
            row = row | {"bad_pictures": len(bad), "bad_share": len(bad) / len(self._feed)}
            loss: Any = self._fabric.all_reduce(result.loss, reduce_op="mean")
            observed = health.measure(result.output.observed, self._gather, world=self._fabric.world_size)
            numbers |= {"loss": loss, "grad_norm": result.grad_norm, **observed}
        self._requested = self._taken, row, HostCopy(numbers)
        self._taken = []

    def _gather(self, x: Tensor, dim: int) -> Tensor:
        """The tensors of all processes, concatenated along a dimension."""
        if self._fabric.world_size == 1:
            return x
        parts: Any = self._fabric.all_gather(x.contiguous())  # (processes, ...)
        return torch.cat(list(parts), dim)

    def finish(self, due: Sequence[Measurement] = (), method: nn.Module | None = None) -> Mapping[str, float]:
        """Stop the run if a requested step was not finite, else write its row; returns what was measured for it."""
        if self._requested is None:
            return {}
        taken, row, copy = self._requested
        self._requested = None
        numbers = copy.wait()
        stop_if_not_finite(taken, numbers.pop("finite").tolist(), self._feed.key, advice=self._advice)
        return {} if row is None else self._write(row, numbers, due, method)

    def _write(
        self, row: dict[str, Any], numbers: dict[str, Tensor], due: Sequence[Measurement], method: nn.Module | None
    ) -> Mapping[str, float]:
        step = row["step"]
        row |= {"loss": float(numbers.pop("loss")), "grad_norm": float(numbers.pop("grad_norm"))}
        row |= health.numbers(numbers) | self._memory()
        seconds = time.monotonic() - self._logged_at
        row["images_per_second"] = round(self._config.training.batch_size * (step - self._logged) / seconds, 1)
        measured: dict[str, float] = {}
        for each in due:
            measured |= each.measure(method) if each.measure is not None and method is not None else {}
        row |= measured
        if "knn_top1" in measured:
            self._knn_note = f"  kNN {100 * measured['knn_top1']:.1f} %"
        self._logged, self._logged_at = step, time.monotonic()
        self.note = f"loss {row['loss']:.4f}  {row['images_per_second']:.0f} img/s{self._knn_note}"
        if self._fabric.is_global_zero:
            self._run.log(row)
            self._fabric.log_dict({k: v for k, v in row.items() if k != "step"}, step=step)
            if warning := self.watch.add(row):
                print(f"warning: {warning}", file=sys.stderr, flush=True)
        return measured

    def _advice(self) -> str:
        """The newest checkpoint, and which fields to change."""
        saved_error = self._saver.error_text()
        names = checkpoints.newest_names(self._run.checkpoints)
        saved = f"The checkpoint {names[0]} is intact." if names else "No checkpoint was written before it."
        clip = "set optimizer.clip" if self._config.optimizer.clip is None else "optimizer.clip"
        change = f"Lower optimizer.lr or {clip}: a new run, which needs another --out."
        if self._config.compute.precision == "bf16-mixed":
            change += " Or continue this run with --compute.precision 32-true."
        return f"{saved_error or saved} {change}"

    def _memory(self) -> dict[str, float]:
        on_gpu = self._fabric.device.type == "cuda"
        if on_gpu:
            mib = torch.cuda.max_memory_allocated() / 2**20
        else:
            mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        return {"memory_mib": round(mib, 1), "on_gpu": int(on_gpu)}


class HostCopy:
    """Copies on the host of what tensors contain after the work queued so far; later work may overwrite them."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        on_gpu = any(tensor.is_cuda for tensor in tensors.values())
        self._host = {name: _pinned(tensor) if on_gpu else tensor.clone() for name, tensor in tensors.items()}
        self._arrived = torch.cuda.Event(blocking=True) if on_gpu else None
        if self._arrived is not None:
            self._arrived.record()

    def wait(self) -> dict[str, Tensor]:
        """The copies, once they have arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host


def _pinned(tensor: Tensor) -> Tensor:
    """A copy in pinned memory; the host does not wait for it."""
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)


def stop_if_not_finite(
    taken: Sequence[Taken], finite: Sequence[bool], key: Callable[[int], str], *, advice: Callable[[], str]
) -> None:
    """An error that names the first step whose loss or gradient is not finite, counted from 1, and its images."""
    for (step, result, index), is_finite in zip(taken, finite, strict=True):
        if is_finite:
            continue
        bad = (~torch.isfinite(result.output.losses)).tolist()
        keys = [key(i) for i, is_bad in zip(index.tolist(), bad, strict=True) if is_bad]
        images = f"{len(keys)} image{'s' * (len(keys) > 1)}: {some(keys)}"
        where = f"its loss is not finite for {images}" if keys else "its gradient is not finite"
        raise ProsminError(f"Step {step + 1} was not applied: {where}. {advice()}")
