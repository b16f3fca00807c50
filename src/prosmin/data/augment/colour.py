"""Colour changes and blur with a separate strength for every image of a batch: torchvision's operations, batched.

Images are (N, 3, h, w) float in [0, 1]; strengths are (N,). Brightness, contrast and saturation are one
operation, a blend of the image x with a reference r,

    clamp(f x + (1 - f) r),    r = 0, the image's mean grey, its grey image,

so a different order for each image takes four rounds and no sorting.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from prosmin.data.augment.separable import Taps, combine
from prosmin.data.augment.sync_free import apply_to, constants

GREY = (0.2989, 0.587, 0.114)
"""Luma of red, green and blue, to the digits torchvision uses."""

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
NAMES = ("brightness", "contrast", "saturation", "hue")
OPERATIONS = len(NAMES)


def _spread(strength: Tensor) -> Tensor:
    """(N,) -> (N, 1, 1, 1), to broadcast with images."""
    return strength[:, None, None, None]


def grey(images: Tensor) -> Tensor:
    """The luma of each pixel: (N, 3, h, w) -> (N, 1, h, w)."""
    red, green, blue = images.split(1, dim=1)
    return (red * GREY[0]).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2])


def greyscale(images: Tensor) -> Tensor:
    """The grey image in all three channels."""
    return grey(images).repeat(1, 3, 1, 1)


def solarise(images: Tensor) -> Tensor:
    """Light pixels inverted, 1 - x where x >= 1/2: the smaller of the two, for x in [0, 1]."""
    return torch.minimum(images, 1.0 - images)


def blend(images: Tensor, own: Tensor, flat: Tensor, pale: Tensor) -> Tensor:
    """clamp(own x + flat mean(grey(x)) + pale grey(x)).

    With a factor f: brightness is (f, 0, 0), contrast (f, 1 - f, 0), saturation (f, 0, 1 - f).
    """
    luma = constants(GREY, images.device)
    mean = images.mean((2, 3)).mul_(luma).sum(1)  # (N,)
    reference = torch.addcmul(_spread(flat * mean), grey(images), _spread(pale))  # (N, 1, h, w)
    return torch.addcmul(reference, images, _spread(own)).clamp_(0.0, 1.0)


def shift_hue(images: Tensor, shift: Tensor) -> Tensor:
    """The hue shifted by `shift` turns, as through HSV and back.

    With channels R, G, B scaled so that the lowest is 0 and the highest 1, the hue in sixths of a turn from
    red, in [-3, 3], is 1 + G + B - R with the sign of G - B. A channel is clamp(2 - d), d the distance of the
    hue from its own: 0, 2 and -2. No branches: a select costs a CPU ten times an addition.
    """
    red, green, blue = images.split(1, dim=1)  # (N, 1, h, w)
    low, high = images.amin(1, keepdim=True), images.amax(1, keepdim=True)
    chroma = high - low
    scale = chroma.clamp(min=1e-12).reciprocal_()  # without chroma the hue has no effect, but must be finite
    hue = (green + blue).sub_(red).sub_(low).mul_(scale).add_(1.0).copysign_(green - blue)
    own = constants((0.0, 2.0, -2.0), images.device)[:, None, None]
    distance = hue + (6.0 * _spread(shift) - own)  # (N, 3, h, w), in [-8, 8]
    distance.abs_().sub_(3.0).abs_().sub_(3.0).abs_()  # to the nearest of -6, 0 and 6
    return torch.addcmul(high + chroma, chroma, distance.clamp_(1.0, 2.0), value=-1.0)  # low + chroma (2 - d)


def jitter(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue of each image, in its own order.

    factors (N, 4): three factors and the shift of the hue in turns; order (N, 4): operations 0..3 in turn.
    """
    own = torch.where(order == HUE, 1.0, factors.gather(1, order))  # (N, 4), a column a round
    rest = 1.0 - own
    flat = torch.where(order == CONTRAST, rest, 0.0)
    pale = torch.where(order == SATURATION, rest, 0.0)
    for turn in range(OPERATIONS):
        images = blend(images, own[:, turn], flat[:, turn], pale[:, turn])
        images = apply_to(order[:, turn] == HUE, images, shift_hue, factors[:, HUE])
    return images


def blur_radius(sigma: float, size: int) -> int:
    """The radius of a kernel of three deviations, limited by reflection at the image's edges."""
    return min(math.ceil(3.0 * sigma), size - 1)


def blur(images: Tensor, sigma: Tensor, *, radius: int) -> Tensor:
    """Gaussian blur of standard deviation `sigma` pixels: torchvision's with the kernel size 2 radius + 1."""
    rows, columns = (_blur_taps(sigma, pixels, radius) for pixels in images.shape[-2:])
    return combine(images, rows, columns)[:, 0]


def _blur_taps(sigma: Tensor, pixels: int, radius: int) -> Taps:
    """The taps of an axis, reflected at its ends: one view of N images.

    A pixel near an end counts once for itself and once for each mirror image within the radius.
    """
    offset = torch.arange(-radius, radius + 1, device=sigma.device)
    kernel = torch.exp(-0.5 * (offset / sigma[:, None]) ** 2)
    kernel = F.pad(kernel / kernel.sum(1, keepdim=True), (1, 1))  # (N, 2 radius + 3): no weight beyond the radius
    own = torch.arange(pixels, device=sigma.device)[:, None]
    count, last, far = min(pixels, 2 * radius + 1), pixels - 1, pixels + radius
    places = (own - radius).clamp(0, pixels - count) + torch.arange(count, device=sigma.device)  # (pixels, T)
    mirrored = (-places).masked_fill(places == 0, -far), (2 * last - places).masked_fill(places == last, far)
    distances = ((place - own).clamp(-radius - 1, radius + 1) for place in (places, *mirrored))
    weights = torch.stack([kernel[:, distance + radius + 1] for distance in distances]).sum(0)  # (N, pixels, T)
    return Taps(places.expand(len(sigma), 1, -1, -1), weights[:, None])
