"""Contrast, elastic distortion, pixelation, JPEG and saturation. (B, 3, H, W) uint8 -> the same."""

import io
import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from prosmin.data.corruptions.primitives import Draws, convolve, gaussian_kernel, resample, to_bytes, to_unit
from prosmin.data.decode import decode
from prosmin.data.image_sets import CHUNK, worker_count


def contrast(images: Tensor, factor: float, draws: Draws) -> Tensor:
    """Every channel moved towards its mean."""
    x = to_unit(images)
    mean = x.mean((-2, -1), keepdim=True, dtype=torch.float64).float()
    return to_bytes((x - mean).mul_(factor).add_(mean))


def saturate(images: Tensor, c: tuple[float, float], draws: Draws) -> Tensor:
    """The saturation S of hue, saturation, value becomes a S + b.

    With the value V, the highest channel, a channel is V - (V - x), and V - x is multiplied by S' / S. A grey pixel has
    no hue; the reference treats it as red, so green and blue are reduced.
    """
    factor, summand = c
    x = to_unit(images)
    value = x.amax(1, keepdim=True)
    lack = value - x
    saturation = lack.amax(1, keepdim=True) / value.clamp_min(1e-12)
    target = (saturation * factor + summand).clamp_(0.0, 1.0)
    colourless = saturation == 0
    red = torch.tensor([0.0, 1.0, 1.0], device=x.device)[:, None, None]
    lack = torch.where(colourless, value * red, lack / torch.where(colourless, 1.0, saturation))
    return to_bytes(value - lack * target)


def elastic_transform(images: Tensor, c: tuple[float, float, float], draws: Draws) -> Tensor:
    """An affine move of three corners of a square, then displacements of all pixels by a smoothed random field."""
    strength, sigma, corners = c
    height, width = images.shape[-2:]
    x = to_unit(images)
    if corners:
        x = _moved(x, draws.on_host().uniform("corners", 3, 2).double().mul_(2).sub_(1).mul_(corners * height))
    if not strength:
        return to_bytes(x)
    # Displacements in pixels, x before y; mirrored at the edges.
    field = draws.uniform("field", 2, height, width).mul_(2).sub_(1).mul_(strength * height)
    for dim, size in ((-2, height), (-1, width)):
        field = convolve(field, gaussian_kernel(sigma * size, truncate=3.0), dim=dim, border="symmetric")
    column = torch.arange(width, device=images.device) + field[:, 0]  # (B, H, W)
    row = torch.arange(height, device=images.device)[:, None] + field[:, 1]
    grid = torch.stack([(2 * column + 1) / width - 1, (2 * row + 1) / height - 1], dim=-1)
    return to_bytes(F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=False))


def _moved(x: Tensor, moves: Tensor) -> Tensor:
    """The affine map that moves three corners of the middle third by (B, 3, 2) pixels, x before y.

    Mirrored about the edge pixels. The moves are float64 on the CPU.
    """
    height, width = x.shape[-2:]
    # The published code exchanges the centre's row and column, which are equal in its square images.
    down, right, side = height // 2, width // 2, min(height, width) // 3
    old = torch.tensor([[right + side, down + side], [right + side, down - side], [right - side, down - side]])
    old = old.double().expand(moves.shape)
    new = torch.cat([old + moves, torch.ones_like(old[..., :1])], dim=-1)
    back = torch.linalg.solve(new, old)  # (B, 3, 2): new places to old ones
    row, column = torch.meshgrid(torch.arange(height).double(), torch.arange(width).double(), indexing="ij")
    source = torch.stack([column, row, torch.ones_like(row)], dim=-1).flatten(0, 1) @ back  # (B, H W, 2)
    grid = source * 2 / torch.tensor([width - 1, height - 1]) - 1
    grid = grid.view(len(x), height, width, 2).to(x.device, x.dtype)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=True)


def pixelate(images: Tensor, share: float, draws: Draws) -> Tensor:
    """Reduced by averaging over boxes, enlarged by repeating pixels: Pillow's BOX, then NEAREST."""
    x = images.to(torch.float32)
    for dim in (-1, -2):  # Pillow reduces the width first and rounds after each
        size = images.shape[dim]
        places, weights = _boxes(size, int(size * share))
        x = resample(x, places, weights, dim=dim).add_(0.5).floor_()
    for dim in (-1, -2):
        x = x.index_select(dim, _nearest(x.shape[dim], images.shape[dim]).to(x.device))
    return x.to(torch.uint8)


def _boxes(size: int, small: int) -> tuple[Tensor, Tensor]:
    """The pixels whose centres lie in each of `small` equal boxes, and equal weights: (small, T) each.

    The arithmetic is Pillow's, so that centres on an edge belong to the same box.
    """
    ratio = size / small
    centre = (torch.arange(small, dtype=torch.float64)[:, None] + 0.5) * ratio
    first = (centre - 0.5 * ratio + 0.5).long()
    last = (centre + 0.5 * ratio + 0.5).long().clamp_(max=size)
    places = first + torch.arange(int((last - first).max()))
    distance = (places - centre + 0.5) * (1.0 / ratio)
    weights = ((places < last) & (distance > -0.5) & (distance <= 0.5)).double()
    return places.clamp_(max=size - 1), weights / weights.sum(1, keepdim=True)


def _nearest(small: int, size: int) -> Tensor:
    """The source of each of `size` pixels. Like Pillow it adds up the steps: a product would round differently."""
    steps = itertools.accumulate(itertools.repeat(small / size, size - 1), initial=0.5 * small / size)
    return torch.tensor([int(place) for place in steps])


def jpeg_compression(images: Tensor, quality: int, draws: Draws) -> Tensor:
    """Encoded as JPEG and decoded, in threads, by Pillow for every device: its quantisation is the reference."""

    def through(pictures: Tensor) -> list[Tensor]:
        files = [_as_jpeg(picture, quality) for picture in pictures.permute(0, 2, 3, 1).numpy()]
        return [decode(file) for file in files]  # after all were encoded: alternating is half as fast

    with ThreadPoolExecutor(worker_count()) as pool:
        done = list(itertools.chain.from_iterable(pool.map(through, images.cpu().split(CHUNK))))
    return torch.stack(done).to(images.device)


def _as_jpeg(picture: np.ndarray, quality: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=quality)
    return file.getvalue()
