"""Blurred images: defocus, glass, motion, zoom, gaussian. (B, 3, H, W) uint8 -> the same."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from prosmin.data.corruptions.primitives import Draws, gaussian, to_bytes, to_unit


def gaussian_blur(images: Tensor, sigma: float, draws: Draws) -> Tensor:
    """A Gaussian, four deviations wide."""
    return to_bytes(gaussian(to_unit(images), sigma))


def defocus_blur(images: Tensor, c: tuple[float, float], draws: Draws) -> Tensor:
    """Correlation with a disc, the image mirrored at its edges; through Fourier space, whatever the disc's size."""
    kernel = _disc(*c)
    pad = len(kernel) // 2
    x = F.pad(to_unit(images), (pad,) * 4, mode="reflect")
    size = (x.shape[-2], x.shape[-1])
    transfer = torch.fft.rfft2(kernel.to(x.device), s=size).conj()  # the conjugate: correlation
    blurred = torch.fft.irfft2(torch.fft.rfft2(x) * transfer, s=size)
    return to_bytes(blurred[..., : images.shape[-2], : images.shape[-1]])


def _disc(radius: float, rim: float) -> Tensor:
    """A disc of sum 1 whose rim is softened by a small Gaussian, itself mirrored at the edge of the kernel."""
    reach, pad = (8, 1) if radius <= 8 else (int(radius), 2)
    offset = torch.arange(-reach, reach + 1, dtype=torch.float32)
    disc = (offset[:, None] ** 2 + offset**2 <= radius**2).float()
    soft = torch.exp(-0.5 * (torch.arange(-pad, pad + 1, dtype=torch.float64) / rim) ** 2)
    soft = (soft / soft.sum()).float()
    wide = F.pad((disc / disc.sum())[None, None], (pad,) * 4, mode="reflect")
    return F.conv2d(wide, (soft[:, None] * soft)[None, None])[0, 0]


def motion_blur(images: Tensor, c: tuple[int, float], draws: Draws) -> Tensor:
    """Half a Gaussian along a line, at a random angle of -45 to 45 degrees for each image."""
    angle = draws.on_host().uniform("angle").double() * 90 - 45
    return to_bytes(streak(to_unit(images), *c, angle))


def streak(x: Tensor, radius: int, sigma: float, angle: Tensor) -> Tensor:
    """sum over i of w_i x shifted by i pixels at an angle in degrees: (B, C, H, W), (B,) on the CPU -> (B, C, H, W).

    Edge pixels are repeated. Shifts by the whole height or width or more are left out with their weight, so small
    images become darker.
    """
    height, width = x.shape[-2:]
    steps = torch.arange(2 * radius + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (steps / sigma) ** 2)
    weights = weights / weights.sum()
    # Images sorted by angle: neighbours have equal shifts, so each shift is a few slices of the batch.
    turned, order = angle.sort()
    turned = torch.deg2rad(turned)[:, None]
    down = -torch.ceil(steps * turned.sin() - 0.5).long()  # (B, T)
    right = -torch.ceil(steps * turned.cos() - 0.5).long()
    inside = (down.abs() < height) & (right.abs() < width)
    down, right = (move.masked_fill(~inside, 0) for move in (down, right))
    top, left = int(down.max()), int(right.max())
    pad = (left, -int(right.min()), top, -int(down.min()))
    wide = F.pad(x[order.to(x.device)], pad, mode="replicate")
    total = x.new_zeros(x.shape)
    weight = weights.tolist()
    for i, first, last, dy, dx in _runs(down, right, inside):
        some = wide[first:last, :, top - dy : top - dy + height, left - dx : left - dx + width]
        total[first:last].add_(some, alpha=weight[i])
    return torch.empty_like(total).index_copy_(0, order.to(x.device), total)


def _runs(down: Tensor, right: Tensor, inside: Tensor) -> list[list[int]]:
    """Runs of images with equal shifts, without those left out, of (B, T): step, first, last + 1, both shifts."""
    begins = torch.ones_like(inside)
    begins[1:] = (down.diff(dim=0) != 0) | (right.diff(dim=0) != 0) | (inside[1:] != inside[:-1])
    step, first = begins.T.nonzero().unbind(1)
    last = first.roll(-1)
    last[last == 0] = len(inside)  # if the next run belongs to the next step
    runs = torch.stack([step, first, last, down[first, step], right[first, step]], dim=1)
    return runs[inside[first, step]].tolist()


def zoom_blur(images: Tensor, c: tuple[float, float], draws: Draws) -> Tensor:
    """The mean of the image and its enlargements."""
    end, step = c
    factors = np.arange(1, end, step)
    x = to_unit(images)
    total = x.clone()
    for factor in factors:
        total += _enlarged(x, float(factor))
    return to_bytes(total / (len(factors) + 1))


def _enlarged(x: Tensor, factor: float) -> Tensor:
    """The enlarged centre, with corner pixels aligned, cut to the image's size from the top left."""
    box, size = [], []
    for pixels in x.shape[-2:]:
        part = math.ceil(pixels / factor)
        box.append(((pixels - part) // 2, part))
        size.append(round(part * factor))
    centre = x.narrow(-2, *box[0]).narrow(-1, *box[1])
    large = F.interpolate(centre, size=size, mode="bilinear", align_corners=True)
    return large[..., : x.shape[-2], : x.shape[-1]]


def glass_blur(images: Tensor, c: tuple[float, int, int], draws: Draws) -> Tensor:
    """Blur, copy a random neighbour to every pixel in some passes, blur again.

    The published code intends to swap two pixels but copies one to the other; so does this. A pass goes from the last
    pixel to the first, and each takes its neighbour's present value: the one before the pass if the neighbour comes
    later or is in the margin, else the one it has just taken.
    """
    sigma, reach, passes = c
    height, width = images.shape[-2:]
    pixels = to_bytes(gaussian(to_unit(images), sigma)).flatten(2)  # (B, 3, H W)
    offsets = (draws.uniform("offsets", passes, 2, height, width) * (2 * reach)).long() - reach
    for pass_offsets in offsets.unbind(1):
        origin = _origins(*pass_offsets.unbind(1), margin=reach).flatten(1)  # (B, H W)
        pixels = pixels.gather(2, origin[:, None].expand(pixels.shape))
    return to_bytes(gaussian(to_unit(pixels.view(images.shape)), sigma))


def _origins(dx: Tensor, dy: Tensor, *, margin: int) -> Tensor:
    """Where each pixel's value was before a pass: offsets (B, H, W) -> places (B, H, W) in the flat image.

    A place of `count` or more is final. The others point to another pixel and are followed; each round of following
    doubles the length of the steps.
    """
    height, width = dx.shape[-2:]
    count = height * width
    row = torch.arange(height, device=dx.device)[:, None]
    column = torch.arange(width, device=dx.device)
    moves = _within(row, margin, height) & _within(column, margin, width)  # (H, W)
    own = row * width + column
    from_row, from_column = row + torch.where(moves, dy, 0), column + torch.where(moves, dx, 0)
    source = from_row * width + from_column
    done_before = _within(from_row, margin, height) & _within(from_column, margin, width) & (source > own)
    pointer = torch.where(done_before, source, source + count).flatten(1)
    while bool((pointer < count).any()):
        pointer = torch.where(pointer < count, pointer.gather(1, pointer.remainder(count)), pointer)
    return (pointer - count).view(dx.shape)


def _within(place: Tensor, margin: int, size: int) -> Tensor:
    """The pixels that a pass changes."""
    return (place > margin) & (place <= size - margin)
