"""`prosmin views`: the views of a training step on one contact sheet."""

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from prosmin.config import Config, ViewsConfig
from prosmin.data.augment.sync_free import constants
from prosmin.data.order import Order
from prosmin.data.stream import Batch, open_feed
from prosmin.data.views import GLOBAL_VIEWS, Views, make_views
from prosmin.errors import UsageError
from prosmin.files import writing

VISIBLE = 128
"""A global view is enlarged to about this many pixels, to be easy to see."""

GAP, MARGIN, LINE = 6, 12, 16
PAPER, INK, PALE = (228, 228, 228), (20, 20, 20), (90, 90, 90)  # grey, so that white views are visible

Pixels = NDArray[np.uint8]  # (h, w, 3)


class Column(NamedTuple):
    """The position of one column of images."""

    label: str
    left: int
    side: int  # pixels of the sheet


class Layout(NamedTuple):
    """The positions of everything on a sheet."""

    factor: int  # by which views are enlarged
    columns: tuple[Column, ...]  # the original, the global and the local views
    top: int  # of the first row
    height: int  # of a row, its gap included

    def corner(self, row: int, column: int) -> tuple[int, int]:
        """The upper left corner of an image, (x, y)."""
        return self.columns[column].left, self.top + row * self.height


def lay_out(config: ViewsConfig) -> Layout:
    """The layout of a sheet of such views."""
    factor = max(1, VISIBLE // max(config.global_size, config.local_size if config.local else 0))
    wide, narrow = config.global_size * factor, config.local_size * factor
    kinds = [("original", wide)]
    kinds += [(f"global {i + 1}", wide) for i in range(GLOBAL_VIEWS)]
    kinds += [(f"local {i + 1}", narrow) for i in range(config.local)]
    columns, left = [], MARGIN
    for label, side in kinds:
        columns.append(Column(label, left, side))
        left += max(side, text_width(label)) + GAP
    top = MARGIN + 3 * LINE  # two lines of title, one of labels
    return Layout(factor, tuple(columns), top, max(side for _, side in kinds) + GAP)


def draw_sheet(batch: Batch, views: Views, config: ViewsConfig, *, title: str, subtitle: str) -> Image.Image:
    """The sheet of images and their views; sizes and normalisation are those of `config`."""
    layout = lay_out(config)
    last = layout.columns[-1]
    text_end = MARGIN + max(text_width(title), text_width(subtitle))
    right = max(text_end, last.left + max(last.side, text_width(last.label)))
    bottom = layout.top + len(batch.images) * layout.height - GAP
    sheet = Image.new("RGB", (right + MARGIN, bottom + MARGIN), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((MARGIN, MARGIN), title, fill=INK, font=_font())
    pen.text((MARGIN, MARGIN + LINE), subtitle, fill=PALE, font=_font())
    for column in layout.columns:
        pen.text((column.left, layout.top - LINE), column.label, fill=PALE, font=_font())
    for row, (image, size) in enumerate(zip(batch.images, batch.sizes.tolist(), strict=True)):
        original = image[:, : size[0], : size[1]].permute(1, 2, 0).contiguous().numpy()
        sheet.paste(fitted(original, layout.columns[0].side), layout.corner(row, 0))
        for at, pixels in enumerate(_pixels(views, row, config), start=1):
            sheet.paste(Image.fromarray(enlarged(pixels, layout.factor)), layout.corner(row, at))
    return sheet


def to_rgb(views: Tensor, config: ViewsConfig) -> Tensor:
    """Undo the normalisation: views (..., 3, h, w) float -> colours (..., h, w, 3) uint8."""
    mean = constants(config.mean, views.device)[:, None, None]
    std = constants(config.std, views.device)[:, None, None]
    levels = (views * std + mean) * 255.0
    return levels.round().clamp(0.0, 255.0).to(torch.uint8).movedim(-3, -1).contiguous()


def _pixels(views: Views, row: int, config: ViewsConfig) -> Iterator[Pixels]:
    """The views of one image, in the order of the columns."""
    for group in views.groups:
        yield from to_rgb(group[:, row], config).numpy()


def enlarged(pixels: Pixels, factor: int) -> Pixels:
    """Every pixel as a square with sides of `factor` pixels."""
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)


def fitted(pixels: Pixels, side: int) -> Image.Image:
    """The image scaled to fit into a square: small images by a whole factor."""
    longer = max(pixels.shape[:2])
    if longer <= side:
        return Image.fromarray(enlarged(pixels, side // longer))
    height, width = (max(1, round(pixels.shape[axis] * side / longer)) for axis in (0, 1))
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS)


def text_width(text: str) -> int:
    """The width of a line of text in pixels."""
    return int(np.ceil(_font().getlength(text)))


@functools.cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default()


MOST = 64
"""The largest number of images on a sheet."""


def write_views(config: Config, out: Path, *, name: str, pictures: int = 8, step: int = 0) -> str:
    """Write the sheet of the first images of a step; returns a sentence that describes it.

    Images, order and random numbers are those of `pretrain` with the same seed.
    """
    if out.suffix.lower() != ".png":
        raise UsageError(f"--out is {str(out)!r}; allowed: the name of a PNG file, such as {out.stem or 'views'}.png.")
    feed = open_feed(config.data.spec, device="cpu", max_bad=config.data.max_bad, memory_limit=0)  # only what is shown
    batch_size = min(config.training.batch_size, len(feed))
    order = Order(len(feed), batch_size=batch_size, seed=config.training.seed)
    _check("--pictures", pictures, low=1, high=min(MOST, batch_size))
    _check("--step", step, low=0, high=config.training.epochs * order.steps_per_epoch - 1)

    (batch,) = feed.batches([order(step)[:pictures]])
    positions = torch.arange(pictures)
    views = make_views(
        batch.images, batch.sizes, config.views, seed=config.training.seed, step=step, positions=positions
    )
    about = f"{config.data.spec}, step {step}, seed {config.training.seed}, {_sizes(config)}"
    sheet = draw_sheet(batch, views, config.views, title=name, subtitle=about)
    with writing(out) as part:
        sheet.save(part, format="PNG")
    for left_out in feed.bad:
        print(f"left out: {left_out}", file=sys.stderr)
    return f"wrote {out}: {pictures} {'image' if pictures == 1 else 'images'} of {name}, {about}" + _warning(
        config, len(feed)
    )


def _check(option: str, value: int, *, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UsageError(f"{option} is {value}; allowed: {low} to {high}.")


def _sizes(config: Config) -> str:
    views = config.views
    factor = lay_out(views).factor
    local = f" and {views.local} local of {views.local_size} px" if views.local else ""
    times = f", enlarged {factor} times" if factor > 1 else ""
    return f"{GLOBAL_VIEWS} global views of {views.global_size} px{local}{times}"


def _warning(config: Config, there: int) -> str:
    """Unlike a sheet, a run needs at least one full batch of images."""
    if there >= config.training.batch_size:
        return ""
    return f" (a run needs --training.batch_size {there} or less: there are no more images)"
