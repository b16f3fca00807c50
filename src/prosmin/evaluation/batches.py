"""The light augmentation of supervised evaluations: a random resized crop and a flip, by (seed, step, position)."""

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import NamedTuple, TypeVar, cast

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from torch import Tensor

from prosmin import randomness
from prosmin.config import ViewsConfig
from prosmin.data import stream as feed
from prosmin.data.augment.boxes import BOX_NUMBERS, random_boxes
from prosmin.data.augment.resize import resized_crop
from prosmin.data.image_sets import Pictures, PictureSet, Streamed, allowed_bad
from prosmin.data.inputs import picture_batches
from prosmin.data.order import Order
from prosmin.data.views import evaluation_view, normalise
from prosmin.encoder import Encoder

SCALE, RATIO, FLIP = (0.08, 1.0), (3 / 4, 4 / 3), 0.5
"""Share of the area, aspect ratio and probability of a flip: what supervised training on ImageNet uses."""


@torch.no_grad()
def augmented(images: Tensor, sizes: Tensor, config: ViewsConfig, *, seed: int, step: int) -> Tensor:
    """One view of each image of a batch, of the size evaluation views have: (B, 3, H, W) -> (B, 3, h, h)."""
    positions = torch.arange(len(images), device=images.device)
    key = randomness.key(seed, step, "supervised augmentation")
    box, flip = randomness.uniform(key, positions, BOX_NUMBERS + 1).split([BOX_NUMBERS, 1], dim=1)
    boxes = random_boxes(box[:, None], sizes, scale=SCALE, ratio=RATIO)[:, 0]
    size, interpolation = config.global_size, config.interpolation
    views = resized_crop(images, boxes, size, flip=flip[:, 0] < FLIP, interpolation=interpolation)
    return normalise(views, config)


PREDICTED = 256  # images at once without gradients

Item = TypeVar("Item")


class Batch(NamedTuple):
    """One step: its number, augmented views (B, 3, h, h) and the images' places in the set (B,)."""

    step: int
    views: Tensor
    index: Tensor  # type: ignore[assignment]


def batch_size(pictures: int, *, most: int) -> int:
    """At most `most`, and about sixteen steps an epoch for small sets."""
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
) -> Iterator[Batch]:
    """Every epoch in a new order; order and augmentation follow from (seed, step, position).

    With a title, a terminal shows a bar.
    """
    order = Order(len(pictures), batch_size=size, seed=seed)
    steps = range(epochs * order.steps_per_epoch)
    with closing(_batches_in(map(order, steps), pictures, device)) as batches:
        for step, batch in enumerate(shown(batches, title, total=len(steps))):
            views_of_batch = augmented(batch.images, batch.sizes, views, seed=seed, step=step)
            yield Batch(step, views_of_batch, batch.index.to(device))


def _batches_in(
    orders: Iterable[Tensor], pictures: PictureSet, device: torch.device
) -> Generator[feed.Batch, None, None]:
    """The images in any order; of a stream an unreadable one is replaced by the next, which its index tells."""
    if isinstance(pictures, Streamed):
        stream = feed.StreamFeed(pictures, device=device, max_bad=pictures.max_bad)
        yield from cast(Generator[feed.Batch, None, None], stream.batches(orders))
        return
    if pictures.images.nbytes <= feed.MEMORY_LIMIT:
        pictures = pictures.to(device)
    for order in orders:
        index = order.to(pictures.images.device)
        yield feed.Batch(pictures.images[index].to(device), pictures.sizes[index].to(device), order)


def evaluation_batches(pictures: PictureSet, views: ViewsConfig, *, device: torch.device) -> Iterator[Tensor]:
    """The evaluation views of all images in their order, (n, 3, h, h)."""
    for batch in picture_batches(pictures, size=PREDICTED, device=device):
        yield evaluation_view(batch.images, batch.sizes, views)


def set_batches(pictures: PictureSet, encoder: Encoder, *, title: str) -> Iterator[feed.Batch]:
    """All images in their order, as many at once as suits the encoder; of a stream, what cannot be read is left out.

    A stream takes long, so a terminal shows a bar.
    """
    size = encoder.batch_size
    batches = picture_batches(pictures, size=size, device=encoder.device, max_bad=allowed_bad(pictures))
    return shown(batches, "" if isinstance(pictures, Pictures) else title, total=-(-len(pictures) // size))


def shown(items: Iterator[Item], title: str, *, total: int) -> Iterator[Item]:
    """The items, with a bar on a terminal where there is a title."""
    console = Console(stderr=True)
    hidden = not (title and console.is_terminal)
    yield from track(items, description=escape(title), total=total, console=console, transient=True, disable=hidden)


def half_precision(device: torch.device) -> torch.autocast:
    """bfloat16 where a GPU computes; a CPU stays with float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")
