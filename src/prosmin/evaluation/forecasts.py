"""A method's forecasts beside what they forecast: the target network's embedding of another view of the picture."""

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from prosmin.data.pictures import Pictures
from prosmin.data.views import make_views
from prosmin.encoder import Encoder
from prosmin.methods import Observes

_BATCH = 256


class Forecasts(NamedTuple):
    """mean, scale and what was observed, (2, N, K) each: either of two random views forecasts the other."""

    mean: Tensor
    scale: Tensor
    observed: Tensor


def no_forecasts(encoder: Encoder, *, has_scale: bool) -> str | None:
    """Why there is no forecast to hold against an observation; None where there is one."""
    if not isinstance(encoder.method, Observes):
        return "the method does not forecast an embedding that could be observed"
    return None if has_scale else "the forecast has no scale"


@torch.inference_mode()
def make_forecasts(encoder: Encoder, pictures: Pictures, *, seed: int) -> Forecasts:
    """Two random global views of each picture, by its place and the seed, each as forecast and as observation.

    Views of the two kinds may be made with other chances of blur and solarisation, so both ways are measured.
    """
    method, device = encoder.method, encoder.device
    assert isinstance(method, Observes)
    config = dataclasses.replace(encoder.config.views, local=0)
    means, scales, observed = [], [], []
    for places in torch.arange(len(pictures)).split(_BATCH):
        images, sizes = pictures.images[places].to(device), pictures.sizes[places].to(device)
        views = make_views(images, sizes, config, seed=seed, step=0, positions=places.to(device)).global_views
        forecast = method.encode(views.flatten(0, 1))  # type: ignore[operator]
        mean, scale, seen = (
            x.unflatten(0, (2, -1)).float()
            for x in (forecast.mean, forecast.scale, method.observe(views.flatten(0, 1)))
        )
        means.append(mean)
        scales.append(scale)
        observed.append(seen.flip(0))
    return Forecasts(*(torch.cat(parts, dim=1) for parts in (means, scales, observed)))
