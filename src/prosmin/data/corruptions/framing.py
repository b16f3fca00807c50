"""The part of a picture that an encoder looks at, as a picture: corruptions are made at the size it sees."""

import dataclasses

import torch
from torch import Tensor

from prosmin.config import ViewsConfig
from prosmin.data.boxes import centre_boxes
from prosmin.data.pictures import Pictures
from prosmin.data.resize import resized_crop

_BATCH = 256


def framed_sides(sizes: Tensor, views: ViewsConfig) -> Tensor:
    """The sides of the framed pictures, which are square: (N, 2) -> (N,)."""
    return centre_boxes(sizes, share=views.crop_share)[:, 2].clamp(max=views.global_size)


@torch.no_grad()
def framed(pictures: Pictures, views: ViewsConfig) -> Pictures:
    """The evaluation view of each picture as uint8, reduced to the view's size where it is larger, never enlarged.

    So were ImageNet-C (corrupted after the resize and crop to 224 pixels) and CIFAR-10-C (at 32 pixels) made.
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
