"""Batches for evaluation: augmented for training a probe, plain for predictions.

The augmentation is a random resized crop and a flip, which depend on (seed, step, position).
"""

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import torch
from torch import Tensor

from prosmin import randomness
from prosmin.config import ViewsConfig
from prosmin.data.augment.boxes import BOX_NUMBERS, random_boxes
from prosmin.data.augment.resize import resized_crop
from prosmin.data.image_sets import Pictures, PictureSet, allowed_bad
from prosmin.data.order import Order
from prosmin.data.stream import Batch, image_batches, picture_batches
from prosmin.data.views import evaluation_view, normalise
from prosmin.encoder import Encoder
from prosmin.progress import track

SCALE, RATIO, FLIP = (0.08, 1.0), (3 / 4, 4 / 3), 0.5
"""Share of the area, aspect ratio and probability of a flip, as in supervised training on ImageNet."""


@torch.no_grad()
def augmented(images: Tensor, sizes: Tensor, config: ViewsConfig, *, seed: int, step: int) -> Tensor:
    """One augmented view of each image, of the size of evaluation views: (B, 3, H, W) -> (B, 3, h, h)."""
    positions = torch.arange(len(images), device=images.device)
    key = randomness.key(seed, step, "supervised augmentation")
    box, flip = randomness.uniform(key, positions, BOX_NUMBERS + 1).split([BOX_NUMBERS, 1], dim=1)
    boxes = random_boxes(box[:, None], sizes, scale=SCALE, ratio=RATIO)[:, 0]
    size, interpolation = config.global_size, config.interpolation
    views = resized_crop(images, boxes, size, flip=flip[:, 0] < FLIP, interpolation=interpolation)
    return normalise(views, config)


PREDICTED = 256  # images at once without gradients


class TrainingBatch(NamedTuple):
    """One step: its number, augmented views (B, 3, h, h) and the images' numbers in the set (B,)."""

    step: int
    views: Tensor
    index: Tensor  # type: ignore[assignment]


def batch_size(pictures: int, *, most: int) -> int:
    """At most `most`; for small sets about sixteen steps per epoch."""
    return min(most, max(16, pictures // 16), pictures)


def training_batches(
    pictures: PictureSet,
    views: ViewsConfig,
    *,
    size: int,
    epochs: int,
    seed: int,
    device: torch.device,
    title: str = "",
) -> Iterator[TrainingBatch]:
    """Every epoch in a new order; order and augmentation depend on (seed, step, position). A title shows a bar."""
    order = Order(len(pictures), batch_size=size, seed=seed)
    steps = range(epochs * order.steps_per_epoch)
    max_bad = allowed_bad(pictures)
    with closing(image_batches(pictures, map(order, steps), device=device, max_bad=max_bad)) as batches:
        for step, batch in enumerate(track(batches, title, total=len(steps))):
            views_of_batch = augmented(batch.images, batch.sizes, views, seed=seed, step=step)
            yield TrainingBatch(step, views_of_batch, batch.index.to(device))


def evaluation_batches(pictures: PictureSet, views: ViewsConfig, *, device: torch.device) -> Iterator[Tensor]:
    """The evaluation views of all images in their order, (n, 3, h, h) per batch."""
    for batch in picture_batches(pictures, size=PREDICTED, device=device):
        yield evaluation_view(batch.images, batch.sizes, views)


def set_batches(pictures: PictureSet, encoder: Encoder, *, title: str) -> Iterator[Batch]:
    """All readable images in their order, in batches of the encoder's size. A stream shows a progress bar."""
    size = encoder.batch_size
    batches = picture_batches(pictures, size=size, device=encoder.device, max_bad=allowed_bad(pictures))
    return track(batches, "" if isinstance(pictures, Pictures) else title, total=-(-len(pictures) // size))


def half_precision(device: torch.device) -> torch.autocast:
    """bfloat16 on a GPU, float32 on a CPU."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")
