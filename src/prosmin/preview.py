"""`prosmin views`: the views that a step of training gives to the network, on one sheet."""

import sys
from pathlib import Path

import torch

from prosmin.config import Config
from prosmin.data.contact_sheet import draw_sheet, lay_out
from prosmin.data.feed import open_feed
from prosmin.data.views import GLOBAL_VIEWS, make_views
from prosmin.errors import UsageError
from prosmin.files import writing
from prosmin.training.order import Order

MOST = 64
"""Pictures a sheet may show: more would not fit any screen."""


def write_views(config: Config, out: Path, *, name: str, pictures: int = 8, step: int = 0) -> str:
    """Write the sheet of the first pictures of a step; what it shows comes back as a sentence.

    Pictures, order and random numbers are those of `pretrain`, for the same seed, step and position in the batch.
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
    return f"wrote {out}: {pictures} {'picture' if pictures == 1 else 'pictures'} of {name}, {about}" + _warning(
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
    """A sheet can be made of fewer pictures than a step takes; a run cannot."""
    if there >= config.training.batch_size:
        return ""
    return f" (a run needs --training.batch_size {there} or less: there are no more pictures)"
