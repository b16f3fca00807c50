"""What the processes of a run tell each other beside the gradients: over the CPU, so that no GPU waits for it."""

import atexit
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

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
