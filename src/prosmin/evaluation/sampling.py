"""A fixed, random part of a set for measurements that need not see all of it."""

import torch

from prosmin.data.pictures import Pictures
from prosmin.data.streamed import PictureSet, in_memory
from prosmin.randomness import generator


def sample(pictures: PictureSet, count: int, *, seed: int, purpose: str) -> Pictures:
    """At most `count` of the pictures in their order; which ones follows from the seed and the purpose."""
    if len(pictures) <= count:
        return in_memory(pictures)
    order = torch.randperm(len(pictures), generator=generator(seed, 0, purpose))
    return in_memory(pictures.subset(order[:count].sort().values))
