"""Pictures for supervised training and for prediction, batch by batch on the encoder's device."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from prosmin.config import ViewsConfig
from prosmin.data.feed import MEMORY_LIMIT
from prosmin.data.pictures import Pictures
from prosmin.data.views import evaluation_view
from prosmin.evaluation.augmentation import augmented
from prosmin.training.order import Order

PREDICTED = 256  # pictures at once without gradients


class Batch(NamedTuple):
    """One step: its number, augmented views (B, 3, h, h) and the pictures' places in the set (B,)."""

    step: int
    views: Tensor
    index: Tensor  # type: ignore[assignment]


def batch_size(pictures: int, *, most: int) -> int:
    """At most `most`, and about sixteen steps an epoch for small sets."""
    return min(most, max(16, pictures // 16), pictures)


def training_batches(
    pictures: Pictures, views: ViewsConfig, *, size: int, epochs: int, seed: int, device: torch.device, title: str = ""
) -> Iterator[Batch]:
    """Every epoch in a new order; order and augmentation follow from (seed, step, position).

    With a title, a terminal shows a bar.
    """
    order = Order(len(pictures), batch_size=size, seed=seed)
    if pictures.images.nbytes <= MEMORY_LIMIT:
        pictures = pictures.to(device)
    console = Console(stderr=True)
    steps = range(epochs * order.steps_per_epoch)
    hidden = not (title and console.is_terminal)
    for step in track(steps, description=title, console=console, transient=True, disable=hidden):
        index = order(step).to(pictures.images.device)
        images, sizes = pictures.images[index].to(device), pictures.sizes[index].to(device)
        yield Batch(step, augmented(images, sizes, views, seed=seed, step=step), index.to(device))


def evaluation_batches(pictures: Pictures, views: ViewsConfig, *, device: torch.device) -> Iterator[Tensor]:
    """The evaluation views of all pictures in their order, (n, 3, h, h)."""
    for images, sizes in zip(pictures.images.split(PREDICTED), pictures.sizes.split(PREDICTED), strict=True):
        yield evaluation_view(images.to(device), sizes.to(device), views)


def half_precision(device: torch.device) -> torch.autocast:
    """bfloat16 where a GPU computes; a CPU stays with float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")
