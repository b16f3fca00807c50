"""How sharp a picture is: the control that tells whether an uncertainty is more than a blur detector."""

import torch
from torch import Tensor

from prosmin.config import ViewsConfig
from prosmin.data.boxes import centre_boxes
from prosmin.data.colour import grey
from prosmin.data.given import picture_batches
from prosmin.data.resize import resized_crop
from prosmin.data.streamed import PictureSet

_BATCH = 256


@torch.no_grad()
def sharpness(pictures: PictureSet, views: ViewsConfig, *, device: torch.device) -> Tensor:
    """Variance of the Laplacian of what the encoder sees of each picture, in grey levels of 0 to 1: (N,)."""
    parts = []
    for batch in picture_batches(pictures, size=_BATCH, device=device):
        boxes = centre_boxes(batch.sizes, share=views.crop_share)
        seen = resized_crop(batch.images, boxes, views.global_size, interpolation=views.interpolation)
        parts.append(laplacian_variance(grey(seen)[:, 0]).cpu())
    return torch.cat(parts)


def laplacian_variance(levels: Tensor) -> Tensor:
    """Variance over the inner pixels of the sum of the four neighbours less four times the pixel: (N, H, W) -> (N,)."""
    middle = levels[:, 1:-1, 1:-1]
    around = levels[:, :-2, 1:-1] + levels[:, 2:, 1:-1] + levels[:, 1:-1, :-2] + levels[:, 1:-1, 2:]
    return (around - 4.0 * middle).flatten(1).var(1, correction=0)
