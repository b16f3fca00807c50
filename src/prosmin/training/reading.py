"""Numbers on their way from the device to the host: asked for now, read later, so that the device need not wait."""

import torch
from torch import Tensor


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
