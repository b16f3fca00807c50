"""Whitening of the features of views, and the heads that forecast one view's from another's.

Shapes: (N, 1 + V, K): of N images the evaluation view, then V random views, in K whitened coordinates.
"""

import copy
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from prosmin.encoder.calibrated import ForecastHeads
from prosmin.errors import ProsminError
from prosmin.evaluation.forecasts import Forecasts
from prosmin.evaluation.metrics.coverage import LEVELS, joint_pit, standardised
from prosmin.progress import Progress
from prosmin.randomness import generator
from prosmin.scoring import gaussian_crps

DIM = 256
"""Coordinates of the forecast, at most: the principal directions of the features."""
IMAGES_PER_DIRECTION = 4
"""With fewer images there are fewer coordinates: a direction fitted to noise is no coordinate of other images."""
MOST_CORRELATION = 0.99
HIDDEN = 256
STEPS, BATCH, RATE, WARM_UP, DECAY = 3_000, 256, 3e-3, 300, 1e-2
CHECK, PATIENCE = 50, 600
"""Steps between scores on held-out images, of which the best heads are kept, and without a better one until the end."""
LEVEL = 0.9
"""Share of the held-out coordinates that their intervals of this level contain: it sets the factor of the scale."""
EMPTY = 1e-3  # share of the mean variance below which a direction is left out: its coordinates would be noise
CONSTANT = 1e-10  # variance of the features, relative to their squared mean, that is rounding alone
HELD_OUT, LEAST_HELD_OUT = 10, 20  # one image in so many, and at least so many images


class Directions(NamedTuple):
    """x -> (x - centre) @ axes."""

    centre: Tensor  # (D,)
    axes: Tensor  # (D, K)


def fit_directions(parts: Callable[[], Iterable[Tensor]]) -> Directions:
    """Whitening of the random views: the principal directions, each divided by its standard deviation.

    Every direction that is kept gets variance 1. An empty one would have less, and its intervals, which always hold,
    would make those of the others too narrow.
    """
    images, count, total = 0, 0, torch.zeros(())
    for part in parts():
        views = part[:, 1:].flatten(0, 1).double()
        images, count, total = images + len(part), count + len(views), total + views.sum(0)
    centre = total / count
    moments = torch.zeros(len(centre), len(centre), dtype=torch.float64)
    for part in parts():
        offset = part[:, 1:].flatten(0, 1).double() - centre
        moments += offset.T @ offset / count
    variance, axes = torch.linalg.eigh(moments)
    typical = moments.diagonal().mean()
    if not typical > CONSTANT * centre.square().mean():
        raise ProsminError(
            "The features are the same for all images, so there is nothing to forecast. Give images that differ with "
            "--data, or an encoder whose features tell them apart."
        )
    dim = max(1, min(DIM, int((variance > EMPTY * typical).sum()), images // IMAGES_PER_DIRECTION))
    variance, axes = variance.flip(0)[:dim], axes.flip(1)[:, :dim]
    return Directions(centre.float(), (axes / variance.sqrt()).float())


class Split(NamedTuple):
    """Images for training, for the choice of step and factor, and for the figures that are reported."""

    train: Tensor
    choice: Tensor
    report: Tensor


def split(count: int, *, seed: int) -> Split:
    """The numbers of `count` images at random: a tenth is held out, half of it for each purpose."""
    order = torch.randperm(count, generator=generator(seed, 0, "calibrate split"))
    held = max(LEAST_HELD_OUT, count // HELD_OUT)
    return Split(order[held:], order[: held // 2], order[held // 2 : held])


class Fitted(NamedTuple):
    """Trained heads, and the same before the MLP was trained."""

    heads: ForecastHeads
    linear: ForecastHeads
    step: int  # of the heads that were kept


def fit_heads(x: Tensor, chosen: Tensor, *, seed: int) -> Fitted:
    """Minimise the CRPS of forecasts of one random view from any other view; `chosen` (M, 1 + V, K) choose the step."""
    heads = linear_heads(x, seed=seed)
    optimizer = torch.optim.AdamW(heads.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS, pct_start=WARM_UP / STEPS)
    draw = generator(seed, 0, "calibrate pairs")
    best, kept, stored = _score(heads, chosen), 0, copy.deepcopy(heads.state_dict())
    with Progress("heads: step", total=STEPS) as progress:
        for step in range(1, STEPS + 1):
            given, target = draw_pairs(x.shape[1], draw)
            image = torch.randint(len(x), (BATCH,), generator=draw)
            mean, scale = heads(x[image, given])
            loss = gaussian_crps(mean, scale, x[image, target], validate=False).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if step % CHECK == 0:
                score = _score(heads, chosen)
                progress.update(step, f"score {score:.4f}")
                if score < best:
                    best, kept, stored = score, step, copy.deepcopy(heads.state_dict())
                elif step - kept >= PATIENCE:
                    break
    heads.load_state_dict(stored)
    return Fitted(_scaled(heads, chosen), _scaled(linear_heads(x, seed=seed), chosen), kept)


def linear_heads(x: Tensor, *, seed: int) -> ForecastHeads:
    """Heads with the correlation of two random views of an image, coordinate by coordinate, and an MLP of zeros."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        heads = ForecastHeads(dim=x.shape[-1], hidden=HIDDEN)
    views = x[:, 1:].double()
    pairs = views.shape[1] * (views.shape[1] - 1)
    together = (views.sum(1).square() - views.square().sum(1)).mean(0) / pairs  # mean product of two views
    correlation = together / views.square().mean((0, 1)).clamp_min(1e-30)
    heads.correlation.copy_(correlation.clamp(0.0, MOST_CORRELATION))
    return heads


def _score(heads: ForecastHeads, x: Tensor) -> float:
    return float(gaussian_crps(*forecasts_of(heads, x), validate=False).mean())


def _scaled(heads: ForecastHeads, x: Tensor) -> ForecastHeads:
    """With the factor of the scale that these images suggest."""
    heads.factor.fill_(scale_factor(forecasts_of(heads, x)))
    return heads.eval().requires_grad_(False)


def draw_pairs(views: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """For each image of a batch a view, which may be the evaluation view 0, and another random view: (BATCH,) each."""
    given = torch.randint(views, (BATCH,), generator=random)
    other = 1 + torch.randint(views - 1, (BATCH,), generator=random)  # any random view
    further = 1 + torch.randint(views - 2, (BATCH,), generator=random)  # any but one
    return given, torch.where(given == 0, other, further + (further >= given).long())


@torch.no_grad()
def forecasts_of(heads: ForecastHeads, x: Tensor) -> Forecasts:
    """Each view forecasts the next random one: (N, 1 + V, K) -> (1 + V, N, K)."""
    views = x.transpose(0, 1)
    mean, scale = heads(views)
    observed = torch.cat([views[1:2], views[1:].roll(-1, 0)])
    return Forecasts(mean, scale, observed)


def scale_factor(found: Forecasts) -> float:
    """The factor of the scale with which the intervals of LEVEL hold this share of the coordinates."""
    sizes = standardised(found).abs().flatten().sort().values
    return float(sizes[int(LEVEL * (len(sizes) - 1))] / torch.special.ndtri(torch.tensor((1 + LEVEL) / 2)))


def judge(heads: ForecastHeads, x: Tensor) -> dict[str, float]:
    """Coverage and skill of the forecasts that the evaluation view of these images gives of their random views."""
    with torch.no_grad():
        mean, scale = heads(x[:, 0])
    observed = x[:, 1:].transpose(0, 1)
    found = Forecasts(mean.expand_as(observed), scale.expand_as(observed), observed)
    errors = standardised(found)
    inside, joint = torch.special.erf(errors.abs() / 2**0.5), joint_pit(errors)
    figures = {f"coverage_{100 * level:.0f}": (inside <= level).double().mean().item() for level in LEVELS}
    figures |= {f"joint_coverage_{100 * level:.0f}": (joint <= level).double().mean().item() for level in LEVELS}
    blind = gaussian_crps(torch.zeros_like(observed), torch.ones_like(observed), observed, validate=False).mean()
    figures["skill"] = float(1 - gaussian_crps(*found, validate=False).mean() / blind)
    return figures
