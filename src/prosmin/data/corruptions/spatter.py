"""Drops of water or mud on the lens. (B, 3, H, W) uint8 -> the same.

The published code draws water with a chain of OpenCV operations; here they are integer operations on batches, with
the same result on every device.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from prosmin.data.corruptions.primitives import Draws, gaussian, to_bytes, to_unit

WATER = (175 / 255, 238 / 255, 238 / 255)  # pale turquoise
MUD = (63 / 255, 42 / 255, 20 / 255)
_LOW, _HIGH = 50, 150  # an edge begins above the second and is followed above the first
_TAN = 13573  # tan(22.5 degrees) in 15 bits
_FAR = 20  # pixels from an edge at which water is flat
_RELIEF = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))  # light from the top left
_ONE = 2**16  # a pixel, in distances of 16 bits
_MOVES = tuple(
    (dy, dx, round(length * _ONE))
    for reach, length in (((0, 1), 1.0), ((1, 1), 1.4), ((1, 2), 2.1969))
    for dy, dx in sorted({(a * s, b * t) for a, b in (reach, reach[::-1]) for s in (-1, 1) for t in (-1, 1)})
)


def spatter(images: Tensor, c: tuple[float, float, float, float, float, bool], draws: Draws) -> Tensor:
    """Drops are smoothed noise above a threshold; water is lit at its edges, mud covers the image."""
    mean, deviation, sigma, threshold, last, mud = c
    noise = draws.on_host().normal("drops", *images.shape[-2:]).to(images.device)
    # In float64 thresholds and grey levels are the same on every device.
    drops = gaussian(noise.double().mul_(deviation).add_(mean), sigma)  # (B, H, W)
    x = to_unit(images)
    if mud:
        cover = gaussian((drops > threshold).double(), last)
        cover = cover.masked_fill_(cover < 0.8, 0.0).float()[:, None]
        return to_bytes(x * (1 - cover) + cover * _colour(MUD, x))
    level = drops.masked_fill_(drops < threshold, 0.0).mul_(255.0).long().remainder_(256)
    light = (level * _lit(_distance(_edges(level)))).float()
    brightest = light.amax((1, 2), keepdim=True).clamp_min_(1.0)  # all dark without drops
    return to_bytes(x + (light / brightest * last)[:, None] * _colour(WATER, x))


def _colour(colour: tuple[float, ...], x: Tensor) -> Tensor:
    return torch.tensor(colour, device=x.device)[:, None, None]


def _edges(level: Tensor) -> Tensor:
    """Canny edges of grey levels, int64 (B, H, W) -> bool, from Sobel gradients with the L1 norm."""
    wide = _widened(level, "replicate")
    right = sum(weight * (wide[:, i : i + level.shape[1], 2:] - wide[:, i : i + level.shape[1], :-2])
                for i, weight in enumerate((1, 2, 1)))  # fmt: skip
    down = sum(weight * (wide[:, 2:, i : i + level.shape[2]] - wide[:, :-2, i : i + level.shape[2]])
               for i, weight in enumerate((1, 2, 1)))  # fmt: skip
    assert isinstance(right, Tensor)
    assert isinstance(down, Tensor)
    size = right.abs() + down.abs()
    around = F.pad(size, (1, 1, 1, 1))

    def at(dy: int, dx: int) -> Tensor:
        return around[:, 1 + dy : 1 + dy + level.shape[1], 1 + dx : 1 + dx + level.shape[2]]

    flat, steep = right.abs() * _TAN, down.abs() * 2**15
    across = (size > at(0, -1)) & (size >= at(0, 1))
    along = (size > at(-1, 0)) & (size >= at(1, 0))
    falling = (size > at(-1, -1)) & (size > at(1, 1))
    rising = (size > at(-1, 1)) & (size > at(1, -1))
    aslant = torch.where((right < 0) == (down < 0), falling, rising)
    ridge = torch.where(steep < flat, across, torch.where(steep > flat + right.abs() * 2**16, along, aslant))
    ridge &= size > _LOW
    found = ridge & (size > _HIGH)
    while True:
        grown = F.max_pool2d(found[:, None].float(), 3, stride=1, padding=1)[:, 0].bool() & ridge
        if torch.equal(grown, found):
            return found
        found = grown


def _distance(edges: Tensor) -> Tensor:
    """To the nearest edge by steps of 1, 1.4 and 2.1969 pixels, `_FAR` at most, in 16 bits: bool -> int64 (B, H, W)."""
    height, width = edges.shape[1:]
    distance = torch.where(edges, 0, _FAR * _ONE)
    for _ in range(_FAR):  # each round reaches at least one pixel further
        wide = F.pad(distance, (2, 2, 2, 2), value=_FAR * _ONE)
        nearer = distance
        for dy, dx, length in _MOVES:
            nearer = torch.minimum(nearer, wide[:, 2 + dy : 2 + dy + height, 2 + dx : 2 + dx + width] + length)
        if torch.equal(nearer, distance):
            break
        distance = nearer
    return distance


def _lit(distance: Tensor) -> Tensor:
    """Distances as a relief lit from one side: int64 (B, H, W), grey levels."""
    heights = _equalised(_summed(distance, ((1, 1, 1),) * 3) // (9 * _ONE))
    relief = _summed(heights, _RELIEF).clamp_(0, 255)
    return (2 * _summed(relief, ((1, 1, 1),) * 3) + 9) // 18  # the mean of nine, rounded


def _equalised(level: Tensor) -> Tensor:
    """Histogram equalisation; the lowest level becomes 0. A uniform image stays unchanged."""
    flat = level.flatten(1)
    count = level.new_zeros(len(level), 256).scatter_add_(1, flat, torch.ones_like(flat))
    lowest = flat.amin(1, keepdim=True)
    rest = flat.shape[1] - count.gather(1, lowest)
    above = count.cumsum(1) - count.gather(1, lowest)
    moved = (above.float() * (255.0 / rest.clamp_min(1))).round_().long().gather(1, flat)
    return torch.where(rest == 0, flat, moved).view(level.shape)


def _summed(x: Tensor, kernel: tuple[tuple[int, ...], ...]) -> Tensor:
    """Correlation with a 3 x 3 integer kernel, mirrored at the edges."""
    wide = _widened(x, "reflect")
    height, width = x.shape[1:]
    total = torch.zeros_like(x)
    for dy, row in enumerate(kernel):
        for dx, weight in enumerate(row):
            total.add_(wide[:, dy : dy + height, dx : dx + width], alpha=weight)
    return total


def _widened(x: Tensor, border: str) -> Tensor:
    """Padded by a pixel on every side, in float64: not every device can pad integers so."""
    return F.pad(x.double()[:, None], (1, 1, 1, 1), mode=border)[:, 0].long()
