"""Operations without shapes that depend on data and without copies from the host: both make a GPU wait."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def host_may_look(tensor: Tensor) -> bool:
    """Whether Python may read values: reading makes a GPU wait, and a graph being traced has none."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def constants(values: Sequence[float], device: torch.device) -> Tensor:
    """A few numbers as a float32 tensor (n,), written on the device instead of copied to it."""
    if device.type == "cpu":
        return torch.tensor(values, dtype=torch.float32)
    return torch.cat([torch.full((1,), value, dtype=torch.float32, device=device) for value in values])


def apply_to(mask: Tensor, images: Tensor, operation: Callable[..., Tensor], *strengths: Tensor) -> Tensor:
    """The images with `operation` applied where the mask is true, each with its row of the strengths.

    A CPU computes only the selected images and may overwrite its input; a GPU computes all and selects.
    """
    mask = mask.flatten()  # (N,), or (B, V) of N = B V views
    if not host_may_look(images):
        return torch.where(mask[:, None, None, None], operation(images, *strengths), images)
    chosen = mask.nonzero()[:, 0]
    if len(chosen) == 0:
        return images
    if len(chosen) == len(images):
        return operation(images, *strengths)
    return images.index_copy_(0, chosen, operation(images[chosen], *(strength[chosen] for strength in strengths)))
