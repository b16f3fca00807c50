"""The views of a batch of images, made on the images' device: crop, flip, colour, blur, normalise.

Every image and view has its own parameters, a function of (seed, step, position, view): `draw` makes the uniform
numbers, `render` turns images and numbers into views. `render` never waits for a GPU and, compiled, has no shape that
depends on data: one graph serves every step.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from prosmin import randomness
from prosmin.config import ViewsConfig
from prosmin.data.augment import colour
from prosmin.data.augment.boxes import BOX_NUMBERS, centre_boxes, random_boxes
from prosmin.data.augment.resize import crop_views, resized_crop
from prosmin.data.augment.sync_free import apply_to, constants, host_may_look

GLOBAL_VIEWS = 2
_CHOICES = ("flip", "jitter", "grey", "blur", "solarise", "sigma")
_NUMBERS = (BOX_NUMBERS, colour.OPERATIONS, colour.OPERATIONS, len(_CHOICES))
"""Uniform numbers per view: its box, the order of the jitter, its strengths, and one for each choice."""
_CPU_BLOCK = 2**20
"""Values a CPU works on at once, 4 MB: such temporaries stay in its cache and in mapped memory."""
PARAMETERS = ("top", "left", "height", "width", "flip", *colour.NAMES, "grey", "blur", "solarise")
"""What `view_parameters` says of a view: its box in shares of the image; the strengths of the jitter relative to their
reach, from -1 to 1, and of the blur, from 0 to 1; whether it is flipped, grey and solarised, 0 or 1."""


class Views(NamedTuple):
    """Normalised views: global (G, B, 3, h, h) and local (L, B, 3, l, l), None without local views.

    For methods that tell a forecast which view it is of, the PARAMETERS of all V = G + L views too: (V, B, P).
    """

    global_views: Tensor
    local_views: Tensor | None = None
    parameters: Tensor | None = None

    @property
    def groups(self) -> list[Tensor]:
        """The views of each size: global, and local ones if there are any."""
        return [self.global_views] if self.local_views is None else [self.global_views, self.local_views]


class Draws(NamedTuple):
    """The uniform numbers of all views: (B, G, n) and (B, L, n)."""

    global_views: Tensor
    local_views: Tensor


class _Group(NamedTuple):
    """The size and scale of the views of one kind, and each one's probabilities."""

    size: int
    scale: tuple[float, float]
    blur: tuple[float, ...]
    solarise: tuple[float, ...]


class _Changes(NamedTuple):
    """What happens to each view of one group: (B, V) and (B, V, .)."""

    boxes: Tensor  # integers: top, left, height, width
    flip: Tensor
    jitter: Tensor
    factors: Tensor
    order: Tensor
    grey: Tensor
    blur: Tensor
    sigma: Tensor
    solarise: Tensor


def make_views(images: Tensor, sizes: Tensor, config: ViewsConfig, *, seed: int, step: int, positions: Tensor) -> Views:
    """Two global and `config.local` local views of each image.

    images (B, 3, H, W) uint8, padded at the bottom and on the right; sizes (B, 2): the true heights and
    widths; positions (B,): the images' positions in the global batch.
    """
    return render(images, sizes, config, draws_of_step(config, seed=seed, step=step, positions=positions))


def draws_of_step(config: ViewsConfig, *, seed: int, step: int, positions: Tensor) -> Draws:
    """The random numbers of a step's views, by the images' positions (B,) in the global batch."""

    def uniform(purpose: str, count: int) -> Tensor:
        return randomness.uniform(randomness.key(seed, step, purpose), positions, count)

    return draw(config, uniform)


def view_parameters(sizes: Tensor, config: ViewsConfig, draws: Draws) -> Tensor:
    """PARAMETERS of the views that `render` makes of these numbers, the global ones first: (V, B, P)."""
    parts = [
        _group_parameters(sizes, config, group, numbers)
        for group, numbers in zip(_groups(config), draws, strict=True)
        if group is not None
    ]
    return torch.cat(parts)


def _group_parameters(sizes: Tensor, config: ViewsConfig, group: _Group, numbers: Tensor) -> Tensor:
    """(B, 2), (B, V, n) -> (V, B, P)."""
    done = _changes(sizes, config, group, numbers)
    reach = constants(config.jitter, sizes.device)
    jitter = (done.factors - _middle(sizes.device)) / reach.clamp(min=1e-12) * (done.jitter[..., None] & (reach > 0))
    blur = done.blur * (done.sigma / config.blur_sigma[1])
    rest = torch.stack([done.grey, blur, done.solarise], dim=-1)
    parameters = torch.cat([_shares(done.boxes, sizes[:, None]), done.flip[..., None], jitter, rest], dim=-1)
    return parameters.transpose(0, 1)


def evaluation_parameters(sizes: Tensor, config: ViewsConfig) -> Tensor:
    """PARAMETERS of the evaluation view: (B, 2) -> (B, P)."""
    return _centred_parameters(sizes, share=config.crop_share)


def typical_parameters(sizes: Tensor, config: ViewsConfig) -> Tensor:
    """PARAMETERS of the typical view: (B, 2) -> (B, P)."""
    return _centred_parameters(sizes, share=_typical_share(config))


def _centred_parameters(sizes: Tensor, *, share: float) -> Tensor:
    box = _shares(centre_boxes(sizes, share=share), sizes)
    return torch.cat([box, box.new_zeros(len(box), len(PARAMETERS) - 4)], dim=-1)


def _shares(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Boxes (..., 4) in shares of images of these sizes (..., 2)."""
    return boxes / torch.cat([sizes, sizes], dim=-1)


def draw(config: ViewsConfig, uniform: Callable[[str, int], Tensor]) -> Draws:
    """The random numbers of a step's views; `uniform(purpose, count)` draws `count` per image."""
    each = sum(_NUMBERS)

    def numbers(purpose: str, views: int) -> Tensor:
        return uniform(purpose, views * each).unflatten(1, (views, each))

    return Draws(numbers("global views", GLOBAL_VIEWS), numbers("local views", config.local))


@torch.no_grad()
def render(images: Tensor, sizes: Tensor, config: ViewsConfig, draws: Draws) -> Views:
    """The views that `draws` determines; for a GPU, compile this function."""
    if not host_may_look(images):
        made = _render_block(images, sizes, config, draws)
        small = made.local_views
        return Views(made.global_views.contiguous(), None if small is None else small.contiguous())
    views = _empty_views(len(images), config)
    for block in torch.arange(len(images)).chunk(_cpu_blocks(images, config)):
        some = slice(int(block[0]), int(block[-1]) + 1)
        # Floats stored column by column, as the resize on a CPU needs them, once for both groups.
        pixels = images[some].mT.contiguous().to(torch.float32).div_(255.0).mT
        part = _render_block(pixels, sizes[some], config, Draws(*(numbers[some] for numbers in draws)))
        for whole, piece in zip(views.groups, part.groups, strict=True):
            whole[:, some] = piece
    return views


def render_told(images: Tensor, sizes: Tensor, config: ViewsConfig, draws: Draws) -> Views:
    """The same views with their parameters."""
    views = render(images, sizes, config, draws)
    return Views(views.global_views, views.local_views, view_parameters(sizes, config, draws))


def _empty_views(batch: int, config: ViewsConfig) -> Views:
    """Memory for the views of a batch."""
    large = torch.empty(GLOBAL_VIEWS, batch, 3, config.global_size, config.global_size, dtype=torch.float32)
    small = torch.empty(config.local, batch, 3, config.local_size, config.local_size, dtype=torch.float32)
    return Views(large, small if config.local else None)


def _cpu_blocks(images: Tensor, config: ViewsConfig) -> int:
    """Number of blocks into which a CPU splits the batch, so that each fits its cache."""
    views = max(GLOBAL_VIEWS * config.global_size**2, config.local * config.local_size**2)
    values = images.shape[1] * max(views, images.shape[2] * images.shape[3])
    return max(1, math.ceil(len(images) * values / _CPU_BLOCK))


def _render_block(images: Tensor, sizes: Tensor, config: ViewsConfig, draws: Draws) -> Views:
    """Global and local views of some of the images."""
    large, small = _groups(config)
    global_views = _render_group(images, sizes, config, large, draws.global_views)
    if small is None:
        return Views(global_views, None)
    return Views(global_views, _render_group(images, sizes, config, small, draws.local_views))


def _groups(config: ViewsConfig) -> tuple[_Group, _Group | None]:
    """Global views, and local ones if there are any."""
    first, second, local = zip(config.blur, config.solarise, strict=True)
    large = _Group(config.global_size, config.global_scale, (first[0], second[0]), (first[1], second[1]))
    if not config.local:
        return large, None
    each = (local[0],) * config.local, (local[1],) * config.local
    return large, _Group(config.local_size, config.local_scale, *each)


def _render_group(images: Tensor, sizes: Tensor, config: ViewsConfig, group: _Group, numbers: Tensor) -> Tensor:
    """The V views of one group as one batch: (B, 3, H, W), (B, V, n) -> (V, B, 3, size, size)."""
    done = _changes(sizes, config, group, numbers)
    views = crop_views(images, done.boxes, group.size, flip=done.flip, interpolation=config.interpolation)
    shape, views = views.shape, views.flatten(0, 1)  # (B V, 3, size, size)
    if config.jitter_p > 0:
        views = apply_to(done.jitter, views, colour.jitter, done.factors.flatten(0, 1), done.order.flatten(0, 1))
    if config.grey > 0:
        views = apply_to(done.grey, views, colour.greyscale)
    if any(group.blur):
        blur = partial(colour.blur, radius=colour.blur_radius(config.blur_sigma[1], group.size))
        views = apply_to(done.blur, views, blur, done.sigma.flatten())
    if any(group.solarise):
        views = apply_to(done.solarise, views, colour.solarise)
    return normalise(views, config).view(shape).transpose(0, 1)


def _changes(sizes: Tensor, config: ViewsConfig, group: _Group, numbers: Tensor) -> _Changes:
    """What the uniform numbers (B, V, n) mean for images of these sizes (B, 2)."""
    box, order, strength, choices = numbers.split(_NUMBERS, dim=-1)  # (B, V, .)
    chance = dict(zip(_CHOICES, choices.unbind(-1), strict=True))
    low, high = config.blur_sigma
    return _Changes(
        boxes=random_boxes(box, sizes, scale=group.scale, ratio=config.ratio),
        flip=chance["flip"] < config.flip,
        jitter=chance["jitter"] < config.jitter_p,
        factors=_jitter_factors(strength, config),
        order=order.argsort(-1),
        grey=chance["grey"] < config.grey,
        blur=chance["blur"] < constants(group.blur, numbers.device),
        sigma=low + (high - low) * chance["sigma"],
        solarise=chance["solarise"] < constants(group.solarise, numbers.device),
    )


def _jitter_factors(strength: Tensor, config: ViewsConfig) -> Tensor:
    """ColorJitter's ranges: factors from 1 - s to 1 + s, hue shifts from -s to s turns: (..., 4)."""
    return _middle(strength.device) + constants(config.jitter, strength.device) * (2.0 * strength - 1.0)


def _middle(device: torch.device) -> Tensor:
    """The jitter that changes nothing."""
    return constants((1.0, 1.0, 1.0, 0.0), device)


def normalise(views: Tensor, config: ViewsConfig) -> Tensor:
    """(x - mean) / std by channel, in place: (N, 3, h, w) in [0, 1] -> (N, 3, h, w)."""
    mean = constants(config.mean, views.device)[:, None, None]
    std = constants(config.std, views.device)[:, None, None]
    return views.sub_(mean).div_(std)


@torch.no_grad()
def evaluation_view(images: Tensor, sizes: Tensor, config: ViewsConfig) -> Tensor:
    """The view for evaluation, the resized centred square: (B, 3, H, W), (B, 2) -> (B, 3, h, h)."""
    return _centred_view(images, sizes, config, share=config.crop_share)


def typical_view(images: Tensor, sizes: Tensor, config: ViewsConfig) -> Tensor:
    """The middle of the evaluation view, the mean of `global_scale` of its area, without changes of colour.

    Forecasts that know which view they forecast are of this one where no other is named.
    """
    return _centred_view(images, sizes, config, share=_typical_share(config))


def _typical_share(config: ViewsConfig) -> float:
    return config.crop_share * (sum(config.global_scale) / 2) ** 0.5


def _centred_view(images: Tensor, sizes: Tensor, config: ViewsConfig, *, share: float) -> Tensor:
    boxes = centre_boxes(sizes, share=share)
    views = resized_crop(images, boxes, config.global_size, interpolation=config.interpolation)
    return normalise(views, config)
