"""What images look like to an encoder in general: the background that an image's features are compared against.

The photographs inside the package stand for images of all kinds, so every encoder has a background. One that we train
also carries features of some of its training images: an image can be unlike those, whatever else the world contains.
"""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from prosmin.data.sources.photos import open_photos
from prosmin.encoder.file import read_beside, tensors_hash
from prosmin.encoder.space import Space, fit_space
from prosmin.files import writing

FILE = "background.safetensors"
SAMPLE = 4000
"""Training images whose features are stored, at most."""

_STEP = 5  # every fifth patch of the photographs: 672, and all 3,360 gain nothing (benchmarks/geometry.py)
_TRAINING_SHARE = 3  # patches of photographs for each training image in the space


class Background(NamedTuple):
    """The space of images in general, and features (M, D) of training images; None of an encoder we did not train."""

    space: Space
    sample: Tensor | None

    def to(self, device: torch.device | str) -> "Background":
        """The same on the device."""
        return Background(self.space.to(device), None if self.sample is None else self.sample.to(device))


def make_background(features_of: Callable[[Tensor], Tensor], sample: Tensor | None) -> Background:
    """The background of an encoder, given its features of images (N, 3, H, W) and of its training images (M, D)."""
    features = features_of(_patches())
    if sample is not None and len(sample):
        # evenly spaced, as the sample may be sorted
        count = min(len(sample), len(features) // _TRAINING_SHARE)
        some = torch.linspace(0, len(sample) - 1, count).round().long()
        features = torch.cat([features, sample[some].to(features)])
    return Background(fit_space(features), sample)


@lru_cache(1)
def _patches() -> Tensor:
    return open_photos("train").images[::_STEP]


def write_background(folder: Path, background: Background, *, encoder: str) -> None:
    """Write it beside the encoder of this hash; the sample in float16 if that moves no neighbour."""
    tensors = {"mean": background.space.mean.cpu(), "matrix": background.space.matrix.cpu().contiguous()}
    if background.sample is not None:
        tensors["sample"] = _narrowed(background.sample.cpu().contiguous())
    with writing(folder / FILE) as part:
        save_file(tensors, part, metadata={"encoder": encoder, "hash": tensors_hash(tensors)})


def _narrowed(sample: Tensor) -> Tensor:
    """In float16, unless it rounds by more than 1 % of the spread: values above 65,504, or a large common part."""
    narrow = sample.half()
    error, spread = (narrow.float() - sample).square().mean(), (sample - sample.mean(0)).square().mean()
    return narrow if bool(error < 1e-4 * spread) else sample


def read_background(folder: Path, *, encoder: str) -> Background | None:
    """The background of the encoder of this hash; None if there is none, or one of other weights."""
    remedy = "Copy the encoder's folder again, or remove this file."
    tensors = read_beside(folder / FILE, encoder=encoder, remedy=remedy)
    if tensors is None:
        return None
    sample = tensors.get("sample")
    return Background(Space(tensors["mean"], tensors["matrix"]), None if sample is None else sample.float())
