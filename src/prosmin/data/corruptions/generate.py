"""Corrupted images, generated at the size that the encoder sees."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prosmin import __version__
from prosmin.config import ViewsConfig
from prosmin.data.augment.boxes import centre_boxes
from prosmin.data.augment.resize import resized_crop
from prosmin.data.corruptions import blur, digital, noise, reference, spatter, weather
from prosmin.data.corruptions.parameters import (
    GENERATORS,
    PARAMETERS,
    check_generator,
    check_names,
    check_parameters,
    check_severities,
)
from prosmin.data.corruptions.primitives import Draws
from prosmin.data.image_sets import Pictures, worker_count
from prosmin.errors import ProsminError
from prosmin.files import writing

_BATCH = 256


def framed_sides(sizes: Tensor, views: ViewsConfig) -> Tensor:
    """The sides of the framed images, which are square: (N, 2) -> (N,)."""
    return centre_boxes(sizes, share=views.crop_share)[:, 2].clamp(max=views.global_size)


@torch.no_grad()
def framed(pictures: Pictures, views: ViewsConfig) -> Pictures:
    """The evaluation view of each image as uint8, reduced to the view's size if it is larger, never enlarged.

    ImageNet-C (corrupted after the resize and crop to 224 pixels) and CIFAR-10-C (at 32 pixels) were made this way.
    """
    boxes = centre_boxes(pictures.sizes, share=views.crop_share)
    sides = framed_sides(pictures.sizes, views)
    largest = int(sides.max())
    images = pictures.images.new_zeros(len(pictures), 3, largest, largest)
    for chosen in (boxes[:, 2] > largest).nonzero()[:, 0].split(_BATCH):
        view = resized_crop(pictures.images[chosen], boxes[chosen], largest, interpolation=views.interpolation)
        images[chosen] = view.mul_(255.0).round_().to(torch.uint8)
    for i in (boxes[:, 2] <= largest).nonzero()[:, 0].tolist():
        top, left, side, _ = boxes[i].tolist()
        images[i, :, :side, :side] = pictures.images[i, :, top : top + side, left : left + side]
    return dataclasses.replace(pictures, images=images, sizes=sides[:, None].expand(-1, 2).contiguous())


Progress = Callable[[int], None]

TORCH: dict[str, Callable[[Tensor, Any, Draws], Tensor]] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "speckle_noise": noise.speckle_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "gaussian_blur": blur.gaussian_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": weather.brightness,
    "contrast": digital.contrast,
    "saturate": digital.saturate,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
    "spatter": spatter.spatter,
}
"""Functions of a batch of images, the parameters of a severity, and random draws."""

_CPU_VALUES, _GPU_VALUES = 2**20, 2**25  # values of a batch: a CPU's cache, a part of a GPU's memory


def generators(names: Sequence[str], generator: str = GENERATORS[0]) -> tuple[dict[str, str], dict[str, str]]:
    """The generator of each corruption, and the error of each that cannot be made on this machine."""
    made: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name in names:
        try:
            _check_installed(name, generator)
            made[name] = generator
        except ProsminError as error:
            left_out[name] = str(error)
    return made, left_out


def _check_installed(name: str, generator: str) -> None:
    """Raises ProsminError if a package that it needs is not installed."""
    if generator != "torch":
        reference.library()
    elif name == "frost":
        weather.frost_files()


@torch.no_grad()
def corrupt(
    pictures: Pictures,
    name: str,
    severity: int,
    *,
    seed: int,
    parameters: str = "imagenet-c",
    device: torch.device | str = "cpu",
    generator: str = GENERATORS[0],
    workers: int | None = None,
    cache: Path | None = None,
    progress: Progress = lambda done: None,
) -> Pictures:
    """The images with one corruption at one severity, 1 to 5; randomness is a function of seed and position.

    `parameters` are "imagenet-c" or "cifar-10-c". `generator` is "torch", or "imagecorruptions", which has only
    ImageNet-C's parameters. torch works on `device`; imagecorruptions in `workers` processes (default: one per core).
    With a folder as `cache`, earlier results for the same pixels are read from it. `progress` is called with the
    number of images just finished. The result is on the images' device.
    """
    _check(pictures, name, severity, parameters, generator)
    work = _Work(name, severity, parameters, seed, torch.device(device), workers or worker_count(), progress)
    path = None if cache is None else cache / _cache_name(pictures, generator, work)
    images = None if path is None else _read(path, like=pictures.images)
    if images is None:
        images = _make(pictures, generator, work)
        if path is not None:
            with writing(path) as part, part.open("wb") as file:
                np.save(file, images.cpu().numpy())
    else:
        progress(len(pictures))
    spec = f"{pictures.spec} with {name} {severity}"
    return dataclasses.replace(pictures, images=images.to(pictures.images.device), spec=spec)


@dataclasses.dataclass(frozen=True)
class _Work:
    """One request."""

    name: str
    severity: int
    parameters: str
    seed: int
    device: torch.device
    workers: int
    progress: Progress

    def draws(self, positions: Tensor) -> Draws:
        return Draws(self.seed, self.name, self.severity, positions)


def _make(pictures: Pictures, generator: str, work: _Work) -> Tensor:
    """All images of one size, then those of the next; the padding stays zero."""
    make = _by_torch if generator == "torch" else _by_reference
    images = torch.zeros_like(pictures.images)
    for height, width in pictures.sizes.unique(dim=0).tolist():
        where = ((pictures.sizes[:, 0] == height) & (pictures.sizes[:, 1] == width)).nonzero()[:, 0]
        make(pictures.images[:, :, :height, :width], where, images[:, :, :height, :width], work)
    return images


def _by_torch(whole: Tensor, where: Tensor, out: Tensor, work: _Work) -> None:
    """Fill `out` at the indices `where`, in batches."""
    values = _CPU_VALUES if work.device.type == "cpu" else _GPU_VALUES
    for chosen in where.split(max(1, values // whole[0].numel())):
        images = whole[chosen].to(work.device).contiguous()
        draws = work.draws(chosen.to(work.device))
        strength = PARAMETERS[work.parameters][work.name][work.severity - 1]
        out[chosen] = TORCH[work.name](images, strength, draws).to(out.device)
        work.progress(len(chosen))


def _by_reference(whole: Tensor, where: Tensor, out: Tensor, work: _Work) -> None:
    """Fill `out` at the indices `where`, in processes."""
    arrays = whole[where].permute(0, 2, 3, 1).contiguous().cpu().numpy()
    seeds = work.draws(where.cpu()).numpy_seeds().numpy()
    done = reference.corrupt_arrays(
        arrays, work.name, work.severity, seeds, workers=work.workers, progress=work.progress
    )
    out[where] = torch.from_numpy(done).permute(0, 3, 1, 2).to(out.device)


def _check(pictures: Pictures, name: str, severity: int, parameters: str, generator: str) -> None:
    check_names((name,))
    check_severities((severity,))
    check_parameters(parameters, auto=False)
    if len(pictures) and int(pictures.sizes.min()) < reference.SMALLEST:
        raise ProsminError(
            f"The smallest side of an image in {pictures.spec} has {int(pictures.sizes.min())} pixels; allowed for "
            f"corruptions: {reference.SMALLEST} or more. Enlarge the images first, or leave this protocol out."
        )
    check_generator(generator, parameters)
    _check_installed(name, generator)


def _cache_name(pictures: Pictures, generator: str, work: _Work) -> str:
    """Contains a hash of everything that determines the pixels, versions and type of device included."""
    request = f"{work.name} {work.severity} {work.parameters} {work.seed}"
    versions = f"{__version__} {torch.__version__} {reference.version()}"
    text = f"{pictures.content_hash()} {request} {generator} {work.device.type} {versions}"
    return f"{work.name}-{work.severity}-{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}.npy"


def _read(path: Path, *, like: Tensor) -> Tensor | None:
    """A stored result; None if it is missing or damaged."""
    try:
        images = torch.from_numpy(np.load(path))
    except (OSError, ValueError, EOFError):
        return None
    return images if images.shape == like.shape and images.dtype == like.dtype else None
