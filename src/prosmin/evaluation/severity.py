"""Does the uncertainty rise as an image gets worse? And how sharp an image is, as a control."""

import copy
import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prosmin import randomness
from prosmin.config import ViewsConfig
from prosmin.data.augment.boxes import BOX_NUMBERS, centre_boxes, random_boxes
from prosmin.data.augment.colour import grey
from prosmin.data.augment.resize import resized_crop
from prosmin.data.corruptions.generate import corrupt, framed
from prosmin.data.corruptions.parameters import AUTO, PARAMETERS, SEVERITIES, parameters_for
from prosmin.data.image_sets import Pictures, PictureSet
from prosmin.data.stream import picture_batches
from prosmin.encoder import Encoder
from prosmin.errors import ProsminError
from prosmin.evaluation.metrics.ranking import spearman

_SHARPNESS_BATCH = 256


@torch.no_grad()
def sharpness(pictures: PictureSet, views: ViewsConfig, *, device: torch.device) -> Tensor:
    """Variance of the Laplacian of what the encoder sees of each image, in grey levels of 0 to 1: (N,)."""
    parts = []
    for batch in picture_batches(pictures, size=_SHARPNESS_BATCH, device=device):
        boxes = centre_boxes(batch.sizes, share=views.crop_share)
        seen = resized_crop(batch.images, boxes, views.global_size, interpolation=views.interpolation)
        parts.append(laplacian_variance(grey(seen)[:, 0]).cpu())
    return torch.cat(parts)


def laplacian_variance(levels: Tensor) -> Tensor:
    """Variance over the inner pixels of the sum of the four neighbours less four times the pixel: (N, H, W) -> (N,)."""
    middle = levels[:, 1:-1, 1:-1]
    around = levels[:, :-2, 1:-1] + levels[:, 2:, 1:-1] + levels[:, 1:-1, :-2] + levels[:, 1:-1, 2:]
    return (around - 4.0 * middle).flatten(1).var(1, correction=0)


AREAS = (0.8, 0.6, 0.4, 0.2, 0.1)  # share of the image that a crop of severity 1 to 5 keeps
_CORRUPTIONS = {"blur": "gaussian_blur", "noise": "gaussian_noise"}
_BATCH = 256


class Worsened(NamedTuple):
    """Curves by kind, the reason for each kind left out, and the name of the table of severities."""

    curves: dict[str, Any]
    left_out: dict[str, str]
    parameters: str


def severity_curves(encoder: Encoder, pictures: Pictures, *, seed: int) -> Worsened:
    """The uncertainty by kind and severity, from 0 (the unchanged image) to 5.

    strength: share of the area kept, sigma in pixels, standard deviation. mean, low, high: mean and quartiles over
    the images. spearman: the rank correlation of an image's uncertainty with the severity, averaged over the images.
    """
    whole = seeing_all(encoder)
    seen = framed(pictures, encoder.config.views)
    parameters = parameters_for(AUTO, int(seen.sizes.max()))
    strengths = {"crop": (1.0, *AREAS)}
    strengths |= {kind: (0.0, *PARAMETERS[parameters][name]) for kind, name in _CORRUPTIONS.items()}

    def worsened(kind: str, severity: int) -> Pictures:
        if kind == "crop":  # from the whole image, as in training
            return crops(pictures, AREAS[severity - 1], encoder.config.views, seed=seed)
        name = _CORRUPTIONS[kind]
        return corrupt(seen, name, severity, seed=seed, parameters=parameters, device=encoder.device)

    clean = whole.uncertainty(seen)
    curves: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for kind, strength in strengths.items():
        try:
            worse = [whole.uncertainty(worsened(kind, severity)) for severity in SEVERITIES]
            # Crops are compared with the whole image: the encoder may see only its centre.
            full = clean if kind != "crop" else whole.uncertainty(crops(pictures, 1.0, encoder.config.views, seed=seed))
        except ProsminError as error:  # images too small for a corruption to be defined
            left_out[kind] = str(error)
            continue
        curves[kind] = {"strength": list(strength), **_curve(torch.stack([full, *worse], dim=1))}
    return Worsened(curves, left_out, parameters)


def seeing_all(encoder: Encoder) -> Encoder:
    """The encoder for images that are cropped already: it does not crop them again."""
    whole = copy.copy(encoder)
    whole.config = dataclasses.replace(encoder.config, views=dataclasses.replace(encoder.config.views, crop_share=1.0))
    return whole


@torch.no_grad()
def crops(pictures: Pictures, area: float, views: ViewsConfig, *, seed: int) -> Pictures:
    """A random resized crop of each image that keeps this share of its area, at the size of a view.

    Crops of different areas use the same random numbers: they have about the same centre and aspect ratio.
    """
    key = randomness.key(seed, 0, "severity: crops")
    numbers = randomness.uniform(key, torch.arange(len(pictures)), BOX_NUMBERS)
    sizes = pictures.sizes.cpu()
    boxes = random_boxes(numbers[:, None], sizes, scale=(area, area), ratio=views.ratio)[:, 0]
    if area == 1.0:  # the whole image, whatever its aspect ratio
        boxes = torch.cat([torch.zeros_like(sizes), sizes], dim=1).to(boxes)
    images = pictures.images.new_empty(len(pictures), 3, views.global_size, views.global_size)
    for places in torch.arange(len(pictures)).split(_BATCH):
        box = boxes[places].to(images.device)
        view = resized_crop(pictures.images[places], box, views.global_size, interpolation=views.interpolation)
        images[places] = view.mul_(255.0).round_().to(torch.uint8)
    return dataclasses.replace(pictures, images=images, sizes=torch.full_like(pictures.sizes, views.global_size))


def _curve(uncertainty: Tensor) -> dict[str, Any]:
    """The curve of uncertainties by severity (N, 6)."""
    severity = torch.arange(uncertainty.shape[1])
    # An image whose uncertainty is constant has no correlation: it counts as 0.
    each = spearman(uncertainty, severity.expand_as(uncertainty)).nan_to_num(0.0)
    low, high = torch.quantile(uncertainty.double(), torch.tensor([0.25, 0.75], dtype=torch.float64), dim=0)
    return {
        "severity": severity.tolist(),
        "mean": uncertainty.double().mean(0).tolist(),
        "low": low.tolist(),
        "high": high.tolist(),
        "spearman": each.mean().item(),
    }
