"""The light augmentation of supervised evaluations: a random resized crop and a flip, by (seed, step, position)."""

import torch
from torch import Tensor

from prosmin import randomness
from prosmin.config import ViewsConfig
from prosmin.data.boxes import BOX_NUMBERS, random_boxes
from prosmin.data.resize import resized_crop
from prosmin.data.views import normalise

SCALE, RATIO, FLIP = (0.08, 1.0), (3 / 4, 4 / 3), 0.5
"""Share of the area, aspect ratio and probability of a flip: what supervised training on ImageNet uses."""


@torch.no_grad()
def augmented(images: Tensor, sizes: Tensor, config: ViewsConfig, *, seed: int, step: int) -> Tensor:
    """One view of each picture of a batch, of the size evaluation views have: (B, 3, H, W) -> (B, 3, h, h)."""
    positions = torch.arange(len(images), device=images.device)
    key = randomness.key(seed, step, "supervised augmentation")
    box, flip = randomness.uniform(key, positions, BOX_NUMBERS + 1).split([BOX_NUMBERS, 1], dim=1)
    boxes = random_boxes(box[:, None], sizes, scale=SCALE, ratio=RATIO)[:, 0]
    size, interpolation = config.global_size, config.interpolation
    views = resized_crop(images, boxes, size, flip=flip[:, 0] < FLIP, interpolation=interpolation)
    return normalise(views, config)
