"""The networks' work on a batch as one launch on a GPU.

While pictures are decoded, a dozen threads want Python's lock. A network of some hundred kernels gives it up and waits
for it again at every one of them, and took longer than the decoding; one recorded launch asks for it once.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from prosmin.data.feed import Batch
from prosmin.encoder import Encoder
from prosmin.models.backbones import is_recordable
from prosmin.recording import WARM_UP, Recorded

BATCH = 128
"""Pictures at once on a GPU: enough to keep it busy, and few enough that pinning their memory delays no start."""

Result = TypeVar("Result")


def recorded(work: Callable[[Batch], Result], encoder: Encoder, *, size: int) -> Callable[[Batch], Result]:
    """The encoder's work, on a GPU recorded for batches of `size` pictures; the work itself elsewhere."""
    can = encoder.device.type == "cuda" and is_recordable(encoder.method.get_submodule("online.backbone"))
    return RecordedWork(work, encoder.device, size) if can else work


class RecordedWork(Generic[Result]):
    """A function of a batch whose results are tensors, None, or named tuples of these."""

    def __init__(self, work: Callable[[Batch], Result], device: torch.device, size: int) -> None:
        self._work, self._device, self._size = work, device, size
        self._held: list[torch.Tensor] = []
        self._recorded: Recorded[Result] | None = None

    def __call__(self, batch: Batch) -> Result:
        """What the work makes of the batch, in memory of its own."""
        if len(batch.index) != self._size:  # the last of a part
            return self._work(batch)
        # From memory that is not pinned the copy would wait for all that is in the queue.
        index = batch.index.pin_memory() if self._device.type == "cuda" else batch.index
        inputs = [batch.images, batch.sizes, index.to(self._device, non_blocking=True)]
        if self._recorded is None or [x.shape for x in inputs] != [x.shape for x in self._held]:
            self._record([x.clone() for x in inputs])
        assert self._recorded is not None
        for place, value in zip(self._held, inputs, strict=True):
            place.copy_(value)
        return _copied(self._recorded())

    def _record(self, held: list[torch.Tensor]) -> None:
        self._recorded = None  # its memory first
        self._held, work = held, self._work
        self._recorded = Recorded(lambda: work(Batch(*held)))  # without `self`: its memory goes when this goes
        for _ in range(WARM_UP):  # at once: every batch is then computed by the same kernels
            self._recorded()


def _copied(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.clone()
    return None if result is None else type(result)(*map(_copied, result))
