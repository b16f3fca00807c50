"""Brightness, fog, frost and snow. (B, 3, H, W) uint8 -> the same."""

import importlib.util
import math
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from prosmin.data.corruptions.blur import streak
from prosmin.data.corruptions.primitives import Draws, resample, to_bytes, to_unit
from prosmin.data.corruptions.reference import INSTALL, PACKAGE
from prosmin.errors import ProsminError


def brightness(images: Tensor, more: float, draws: Draws) -> Tensor:
    """The value V in HSV, the highest channel, becomes V + more; all channels are multiplied by the same factor."""
    x = to_unit(images)
    value = x.amax(1, keepdim=True)
    target = (value + more).clamp_(max=1.0)
    return to_bytes(torch.where(value > 0, x * (target / value.clamp_min(1e-12)), target))


def fog(images: Tensor, c: tuple[float, float], draws: Draws) -> Tensor:
    """A plasma fractal is added, then all is darkened: in the thickest fog the brightest pixel keeps its value."""
    strength, decay = c
    height, width = images.shape[-2:]
    side = 2 ** math.ceil(math.log2(max(height, width)))
    plasma = _plasma(draws.uniform("plasma", side * side - 1), side, decay)[:, None, :height, :width]
    x = to_unit(images)
    brightest = x.amax((1, 2, 3), keepdim=True)
    return to_bytes((x + strength * plasma) * (brightest / (brightest + strength)))


def _plasma(numbers: Tensor, side: int, decay: float) -> Tensor:
    """Heights by the diamond-square algorithm on a torus, from 0 to 1: (B, side^2 - 1) uniform -> (B, side, side)."""
    heights = numbers.new_zeros(len(numbers), side, side)
    step, amplitude, used = side, 100.0, 0
    while step >= 2:
        half, count = step // 2, side // step
        noise = numbers[:, used : used + 3 * count * count].view(-1, 3, count, count) * 2 - 1
        noise = noise * amplitude**2
        used += 3 * count * count
        corners, middles = heights[:, ::step, ::step], heights[:, half::step, half::step]
        below = corners + corners.roll(-1, 1)
        middles.copy_((below + below.roll(-1, 2)) / 4 + noise[:, 0])
        across = middles + middles.roll(1, 1) + corners + corners.roll(-1, 2)
        heights[:, ::step, half::step] = across / 4 + noise[:, 1]
        along = middles + middles.roll(1, 2) + corners + corners.roll(-1, 1)
        heights[:, half::step, ::step] = along / 4 + noise[:, 2]
        step, amplitude = half, amplitude / decay
    heights -= heights.amin((1, 2), keepdim=True)
    return heights / heights.amax((1, 2), keepdim=True)


def frost(images: Tensor, c: tuple[float, float, int, int], draws: Draws) -> Tensor:
    """A crop of one of the six photographs of frost in imagecorruptions-imaug is added."""
    weight, added, count, every = c
    height, width = images.shape[-2:]
    which, down, right = draws.on_host().uniform("cut", 3).double().unbind(1)
    files = frost_files()[:count]
    file = (which * len(files)).long()
    ice = torch.empty_like(images)
    for number, path in enumerate(files):
        chosen = (file == number).nonzero()[:, 0]
        pane = _pane(path, height, width, every).to(images.device)
        windows = pane.unfold(1, height, 1).unfold(2, width, 1)  # (3, tops, lefts, H, W)
        top = (down[chosen] * (windows.shape[1] - 1)).long().to(images.device)
        left = (right[chosen] * (windows.shape[2] - 1)).long().to(images.device)
        ice[chosen.to(images.device)] = windows[:, top, left].transpose(0, 1)
    return to_bytes(to_unit(images).mul_(weight).add_(to_unit(ice), alpha=added))


def _pane(path: Path, height: int, width: int, every: int) -> Tensor:
    """A photograph of frost, uint8 (3, h, w), enlarged by a tenth or more, to a tenth larger than the image.

    A reduced photograph is enlarged only if it is not larger than the image.
    """
    pane = _photograph(path, every)
    if every > 1 and pane.shape[1] > height and pane.shape[2] > width:
        return pane
    scale = 1.1 * max(1.0, height / pane.shape[1], width / pane.shape[2])
    return _enlarged(path, every, tuple(math.ceil(pixels * scale) for pixels in pane.shape[1:]))


@cache
def _photograph(path: Path, every: int) -> Tensor:
    """The middle one of every `every` pixels, like OpenCV's linear interpolation at an odd reduction."""
    with Image.open(path) as image:
        whole = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    return whole[:, every // 2 :: every, every // 2 :: every]


@lru_cache(maxsize=12)
def _enlarged(path: Path, every: int, size: tuple[int, ...]) -> Tensor:
    large = F.interpolate(_photograph(path, every)[None].float(), size=size, mode="bicubic", align_corners=False)[0]
    return large.round_().clamp_(0, 255).to(torch.uint8)


@cache
def frost_files() -> list[Path]:
    """The photographs inside imagecorruptions-imaug, found without importing it."""
    spec = importlib.util.find_spec("imagecorruptions")
    folders = [Path(place) / "frost" for place in (spec.submodule_search_locations or ())] if spec else []
    files = [path for folder in folders for path in sorted(folder.glob("frost*.*"))]
    if len(files) != 6:
        raise ProsminError(f"{PACKAGE}, which contains the photographs of frost, is not installed: {INSTALL}.")
    return files


def snow(images: Tensor, c: tuple[float, float, float, float, int, float, float], draws: Draws) -> Tensor:
    """A paler image under flakes: enlarged noise above a threshold, streaked downwards, plus the same rotated."""
    mean, deviation, size, threshold, radius, sigma, weight = c
    height, width = images.shape[-2:]
    host = draws.on_host()
    noise = host.normal("flakes", 1, height, width)
    for dim in (-2, -1):
        noise = noise.narrow(dim, *_centre(noise.shape[dim], size))
    noise = noise.to(images.device).double().mul_(deviation).add_(mean)  # in float64 all devices round alike
    for dim in (-2, -1):
        noise = resample(noise, *_enlargement(noise.shape[dim], size), dim=dim)
    flakes = noise.masked_fill_(noise < threshold, 0.0).clamp_(0.0, 1.0).float()
    angle = host.uniform("angle").double() * 90 - 135
    layer = streak(flakes, radius, sigma, angle)[..., :height, :width]
    layer = layer.mul(255.0).round_().div_(255.0)
    x = to_unit(images)
    grey = (x * torch.tensor([0.299, 0.587, 0.114], device=x.device)[:, None, None]).sum(1, keepdim=True)
    pale = torch.maximum(x, grey * 1.5 + 0.5)
    return to_bytes(weight * x + (1 - weight) * pale + layer + layer.flip(-2, -1))


def _centre(pixels: int, factor: float) -> tuple[int, int]:
    """Start and length of the part of an axis that an enlargement shows."""
    part = math.ceil(pixels / factor)
    return (pixels - part) // 2, part


def _enlargement(part: int, factor: float) -> tuple[Tensor, Tensor]:
    """Places and weights (n, 2) that enlarge an axis, with corner pixels aligned."""
    n = round(part * factor)
    place = torch.arange(n, dtype=torch.float64) * ((part - 1) / (n - 1))
    first = place.long().clamp_(max=part - 2)
    upper = place - first
    return torch.stack([first, first + 1], dim=1), torch.stack([1 - upper, upper], dim=1)
