"""Whitening of the features of views, and the heads that forecast one view's from another's.

Shapes: (N, 2 + V, K): of N images the evaluation view, the typical view, then V random views, in K whitened
coordinates.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from prosmin.calibrate.views import FeaturesError
from prosmin.config import ViewsConfig
from prosmin.encoder.calibrated import ForecastHeads
from prosmin.evaluation.forecasts import Forecasts
from prosmin.evaluation.metrics.coverage import LEVELS, joint_pit, standardised
from prosmin.models.condition import condition
from prosmin.models.radius import RadiusForecast, log_radius, region_radius
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
"""Steps between scores on held-out images, of which the best heads are kept, and without a better one until the end.

Heads for few images overfit as soon as the rate has risen, and a falling rate does not bring them back: their best step
is the same without an early stop, and shorter schedules made forecasts no better.
"""
LEVEL = 0.9
"""Share of the held-out coordinates that their intervals of this level contain: it sets the factor of the scale."""
EMPTY = 1e-3  # share of the mean variance below which a direction is left out: its coordinates would be noise
CONSTANT = 1e-10  # variance of the features, relative to their squared mean, that is rounding alone
LEAST_SPREAD = 0.1  # of log R on the images that choose it, as a share of the learned one
HELD_OUT, LEAST_HELD_OUT = 10, 20  # one image in so many, and at least so many images


TYPICAL, RANDOM = 1, 2
"""Places of the typical view and of the first random one; the evaluation view is the first."""


class Examples(NamedTuple):
    """Views of N images: x (N, 2 + V, K) in whitened coordinates, and their parameters (N, 2 + V, P)."""

    x: Tensor
    parameters: Tensor

    def of(self, images: Tensor) -> "Examples":
        """Some of the images."""
        return Examples(self.x[images], self.parameters[images])

    def pair(self, image: Tensor | slice, given: Tensor | int, target: Tensor | int) -> tuple[Tensor, Tensor, Tensor]:
        """Of these images a view, the condition of another view's forecast, and that view."""
        told = condition(self.parameters[image, given], self.parameters[image, target])
        return self.x[image, given], told, self.x[image, target]


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
        views = part[:, RANDOM:].flatten(0, 1).double()
        images, count, total = images + len(part), count + len(views), total + views.sum(0)
    centre = total / count
    moments = torch.zeros(len(centre), len(centre), dtype=torch.float64)
    for part in parts():
        offset = part[:, RANDOM:].flatten(0, 1).double() - centre
        moments += offset.T @ offset / count
    variance, axes = torch.linalg.eigh(moments)
    typical = moments.diagonal().mean()
    if not typical > CONSTANT * centre.square().mean():
        raise FeaturesError(
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


def split(images: Tensor, *, seed: int) -> Split:
    """These images (N,) at random: a tenth is held out, half of it for each purpose."""
    order = images[torch.randperm(len(images), generator=generator(seed, 0, "calibrate split"))]
    held = max(LEAST_HELD_OUT, len(images) // HELD_OUT)
    return Split(order[held:], order[: held // 2], order[held // 2 : held])


class Fitted(NamedTuple):
    """Trained heads; the radius of their forecasts, of those of the typical view; heads before the MLP was trained."""

    heads: ForecastHeads
    radius: RadiusForecast
    typical_radius: RadiusForecast
    linear: ForecastHeads
    step: int  # of the heads that were kept


def fit_heads(train: Examples, chosen: Examples, *, views: ViewsConfig, seed: int) -> Fitted:
    """Minimise the CRPS of forecasts of one view from any other view, then that of the radius of their errors.

    `chosen` images choose the step of both, the factor of the scale and the size of the regions.
    """
    heads = linear_heads(train, views=views, seed=seed)
    linear = _scaled(copy.deepcopy(heads), chosen)
    draw = generator(seed, 0, "calibrate pairs")

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        given, target = draw_pairs(train.x.shape[1], draw)
        return train.pair(torch.randint(len(train.x), (BATCH,), generator=draw), given, target)

    def loss() -> Tensor:
        x, told, observed = batch()
        mean, scale = heads(x, told)
        return gaussian_crps(mean, scale, observed, validate=False).mean()

    step = _minimise(heads, loss, lambda: _score(heads, chosen), title="heads")
    heads = _scaled(heads, chosen)
    with _seeded(seed):
        radius = RadiusForecast(train.x.shape[-1], unit=1.0)
    forecasts = forecasts_of_random(heads, chosen)

    def radius_loss() -> Tensor:
        x, told, observed = batch()
        mean, scale = heads(x, told)
        return radius.score(mean[None], scale[None], observed[None]).mean()

    def radius_score() -> float:
        return float(_radius_scores(radius, forecasts).mean())

    _minimise(radius, radius_loss, radius_score, title="radius")
    typical_radius = _fitting_regions(copy.deepcopy(radius), typical_forecasts(heads, chosen))
    return Fitted(heads, _fitting_regions(radius, forecasts), typical_radius, linear, step)


@torch.no_grad()
def _fitting_regions(radius: RadiusForecast, found: Forecasts) -> RadiusForecast:
    """With centre and spread moved so that regions of half and of LEVEL contain these shares of the chosen images.

    The radius was trained on the images that the heads were trained on, whose errors are smaller; and the scales of
    forecasts of the typical view have a factor of their own.
    """
    observed, last = log_radius(*found), radius.layers[-1]
    assert isinstance(last, nn.Linear)
    last.bias[0] += (observed - radius(found.mean, found.scale)[0]).median()
    centre, spread = radius(found.mean, found.scale)
    sizes = ((observed - centre) / spread).flatten().sort().values
    reached = sizes[min(len(sizes) - 1, math.ceil(LEVEL * (len(sizes) + 1)) - 1)]  # by new images, on average
    last.bias[1] += (reached / torch.special.ndtri(torch.tensor(LEVEL))).clamp_min(LEAST_SPREAD).log()
    return radius.eval().requires_grad_(False)


def _minimise(module: nn.Module, loss: Callable[[], Tensor], score: Callable[[], float], *, title: str) -> int:
    """Train the module, and keep the weights with the lowest score; returns their step, 0 if the first are the best."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS, pct_start=WARM_UP / STEPS)
    best, kept, stored = score(), 0, copy.deepcopy(module.state_dict())
    with Progress(f"{title}: step", total=STEPS) as progress:
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
            schedule.step()
            if step % CHECK == 0:
                found = score()
                progress.update(step, f"score {found:.4f}")
                if found < best:
                    best, kept, stored = found, step, copy.deepcopy(module.state_dict())
                elif step - kept >= PATIENCE:
                    break
    module.load_state_dict(stored)
    return kept


def linear_heads(train: Examples, *, views: ViewsConfig, seed: int) -> ForecastHeads:
    """Heads with the correlation of two random views of an image, coordinate by coordinate, and an MLP of zeros."""
    with _seeded(seed):
        heads = ForecastHeads(dim=train.x.shape[-1], hidden=HIDDEN, views=views)
    random = train.x[:, RANDOM:].double()
    pairs = random.shape[1] * (random.shape[1] - 1)
    together = (random.sum(1).square() - random.square().sum(1)).mean(0) / pairs  # mean product of two views
    correlation = together / random.square().mean((0, 1)).clamp_min(1e-30)
    heads.correlation.copy_(correlation.clamp(0.0, MOST_CORRELATION))
    return heads


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """For initial weights, which torch draws from its global state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _score(heads: ForecastHeads, examples: Examples) -> float:
    return float(gaussian_crps(*forecasts_of(heads, examples), validate=False).mean())


@torch.no_grad()
def _radius_scores(radius: RadiusForecast, found: Forecasts) -> Tensor:
    """CRPS of log R of each forecast: (V, N)."""
    centre, spread = radius(found.mean, found.scale)
    return gaussian_crps(centre[..., None], spread[..., None], log_radius(*found)[..., None], validate=False)


def _scaled(heads: ForecastHeads, examples: Examples) -> ForecastHeads:
    """With the factors of the scale that these images suggest."""
    heads.factor.fill_(scale_factor(forecasts_of_random(heads, examples)))
    heads.typical_factor.fill_(scale_factor(typical_forecasts(heads, examples)))
    return heads.eval().requires_grad_(False)


def draw_pairs(views: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """For each image of a batch any view, and another one that is not the evaluation view: (BATCH,) each."""
    given = torch.randint(views, (BATCH,), generator=random)
    other = 1 + torch.randint(views - 1, (BATCH,), generator=random)  # any but the evaluation view
    further = 1 + torch.randint(views - 2, (BATCH,), generator=random)  # and but one
    return given, torch.where(given == 0, other, further + (further >= given).long())


@torch.no_grad()
def forecasts_of(heads: ForecastHeads, examples: Examples) -> Forecasts:
    """Each view but the evaluation view forecasts the next, the evaluation view the typical one: (2 + V, N, K).

    For the early stop alone: errors of the typical view are smaller than those of random views, so a factor or a region
    fitted to both would be too small for random views.
    """
    views = examples.x.shape[1]
    return _joined(heads, examples, [(view, view % (views - 1) + 1) for view in range(views)])


def _joined(heads: ForecastHeads, examples: Examples, pairs: list[tuple[int, int]]) -> Forecasts:
    """Forecasts of these pairs of views, (pairs, N, K)."""
    parts = []
    for given, target in pairs:
        x, told, observed = examples.pair(slice(None), given, target)
        parts.append((*heads(x, told), observed))
    return Forecasts(*(torch.stack(part) for part in zip(*parts, strict=True)))


@torch.no_grad()
def typical_forecasts(heads: ForecastHeads, examples: Examples) -> Forecasts:
    """Those that users get, of the typical view from the evaluation view: (1, N, K)."""
    mean, scale = heads(examples.x[:, 0])
    return Forecasts(mean[None], scale[None], examples.x[None, :, TYPICAL])


def scale_factor(found: Forecasts) -> float:
    """The factor of the scale with which the intervals of LEVEL hold this share of the coordinates."""
    sizes = standardised(found).abs().flatten().sort().values
    return float(sizes[int(LEVEL * (len(sizes) - 1))] / torch.special.ndtri(torch.tensor((1 + LEVEL) / 2)))


@torch.no_grad()
def judge(fitted: Fitted, examples: Examples) -> dict[str, float]:
    """Coverage of what users get: forecasts of the typical view, given the evaluation view.

    `random_...` and `skill` describe forecasts of the random views, given the same view.
    """
    of_random = forecasts_of_random(fitted.heads, examples)
    random = _coverage(of_random, fitted.radius)
    return (
        _coverage(typical_forecasts(fitted.heads, examples), fitted.typical_radius)
        | {f"random_{name}": share for name, share in random.items()}
        | {"skill": skill(of_random)}
    )


@torch.no_grad()
def forecasts_of_random(heads: ForecastHeads, examples: Examples) -> Forecasts:
    """The evaluation view forecasts each random view: (V, N, K)."""
    return _joined(heads, examples, [(0, view) for view in range(RANDOM, examples.x.shape[1])])


def _coverage(found: Forecasts, radius: RadiusForecast) -> dict[str, float]:
    errors, size = standardised(found), log_radius(*found).exp()
    centre, spread = radius(found.mean, found.scale)
    inside, joint = torch.special.erf(errors.abs() / 2**0.5), joint_pit(errors)
    figures: dict[str, float] = {}
    for level in LEVELS:
        shares = {
            "coverage_{}": inside <= level,
            "joint_coverage_{}": joint <= level,
            "joint_coverage_{}_radius": size <= region_radius(centre, spread, level),
        }
        figures |= {name.format(f"{100 * level:.0f}"): x.double().mean().item() for name, x in shares.items()}
    return figures


def skill(found: Forecasts) -> float:
    """Share of the CRPS of the climatological forecast N(0, 1) that these forecasts save."""
    observed = found.observed
    blind = gaussian_crps(torch.zeros_like(observed), torch.ones_like(observed), observed, validate=False).mean()
    return float(1 - gaussian_crps(*found, validate=False).mean() / blind)
