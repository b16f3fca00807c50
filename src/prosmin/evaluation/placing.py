"""Where features are worked on."""

import torch
from torch import Tensor

_COPIES = 16  # of the features in float32: a probe holds a few in float64


def place(features: Tensor, device: torch.device) -> Tensor:
    """Features (N, D) or pictures on a GPU that has room for them and for what is made of them, else where they are."""
    if device.type != "cuda":
        return features
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    room = torch.cuda.mem_get_info(device)[0] + unused
    return features.to(device) if _COPIES * features.nbytes <= room else features
