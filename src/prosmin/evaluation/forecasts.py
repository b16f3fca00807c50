"""Forecasts of views and the target embeddings they predict; scores from several views of an image."""

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from prosmin.data.image_sets import Pictures, PictureSet
from prosmin.data.stream import Batch
from prosmin.data.views import draws_of_step, render, view_parameters
from prosmin.encoder import UNCERTAINTY_VIEWS, Encoder
from prosmin.encoder.detectors import SCORES, SURPRISES
from prosmin.evaluation.batches import set_batches
from prosmin.methods import Observes

_BATCH = 256


class Forecasts(NamedTuple):
    """mean, scale and observed embedding, (2, N, K) each: each of two random views forecasts the other."""

    mean: Tensor
    scale: Tensor
    observed: Tensor


def no_forecasts(encoder: Encoder, *, has_scale: bool) -> str | None:
    """Why forecasts cannot be compared with observations; None if they can."""
    if not isinstance(encoder.method, Observes):
        return "the method does not forecast an embedding that could be observed"
    return None if has_scale else "the forecast has no scale"


@torch.inference_mode()
def make_forecasts(encoder: Encoder, pictures: Pictures, *, seed: int) -> Forecasts:
    """Two random global views of each image, drawn by its position and the seed; each forecasts the other.

    The two views may have different probabilities of blur and solarisation, so both directions are measured.
    """
    device = encoder.device
    config = dataclasses.replace(encoder.config.views, local=0)
    means, scales, observed = [], [], []
    for places in torch.arange(len(pictures)).split(_BATCH):
        images, sizes = pictures.images[places].to(device), pictures.sizes[places].to(device)
        draws = draws_of_step(config, seed=seed, step=0, positions=places.to(device))
        views = render(images, sizes, config, draws).global_views.flatten(0, 1)
        given = view_parameters(sizes, config, draws)
        forecast = encoder._encode(views, given=given.flatten(0, 1), target=given.flip(0).flatten(0, 1))
        assert forecast.scale is not None
        mean, scale, seen = (
            x.unflatten(0, (2, -1)).float() for x in (forecast.mean, forecast.scale, encoder._observe(views))
        )
        means.append(mean)
        scales.append(scale)
        observed.append(seen.flip(0))
    return Forecasts(*(torch.cat(parts, dim=1) for parts in (means, scales, observed)))


@torch.inference_mode()
def radius_forecasts(encoder: Encoder, forecasts: Forecasts) -> tuple[Tensor, Tensor] | None:
    """Centre and spread of log R of each forecast, (2, N) each; None if the encoder does not forecast the radius."""
    radius = getattr(encoder.method, "radius", None)
    return None if radius is None else radius(forecasts.mean, forecasts.scale)


BETWEEN_VIEWS = "between_view_variance"


@torch.inference_mode()
def view_scores(
    encoder: Encoder, pictures: PictureSet, *, seed: int, count: int = UNCERTAINTY_VIEWS
) -> dict[str, Tensor]:
    """The variance of the mean between random global views; with a scale SCORES; with a target network SURPRISES: (N,).

    The views are drawn by an image's position and the seed, as in Encoder.views. The target network sees another of
    them, or the typical view if that is what the forecasts are of.
    """
    parts = [_scores(encoder, batch, seed=seed, count=count) for batch in set_batches(pictures, encoder, title="views")]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def view_variance(encoder: Encoder, pictures: PictureSet) -> Tensor:
    """`Encoder.forecast_uncertainty` of forecasts without a scale, (N,)."""
    batches = set_batches(pictures, encoder, title="views")
    return torch.cat([encoder._same_views_variance(batch).cpu() for batch in batches])


def _scores(encoder: Encoder, batch: Batch, *, seed: int, count: int) -> dict[str, Tensor]:
    # The same views and arithmetic as in Encoder.views, so that the scores are of the forecasts that users get.
    views = list(encoder._random_views(batch, count=count, seed=seed))
    embeddings = list(encoder._encode_views(views, batch.sizes))
    mean = torch.stack([embedding.mean.float() for embedding in embeddings])  # (V, n, K)
    scales = [embedding.scale.float() for embedding in embeddings if embedding.scale is not None]
    scores = {BETWEEN_VIEWS: mean.var(0).mean(1)}
    if scales:
        scale = torch.stack(scales)
        scores |= {name: measure(mean, scale) for name, measure in SCORES.items()}
        if isinstance(encoder.method, Observes) and bool((scale > 0).any()):
            if encoder.is_conditional:
                seen = encoder._observe(encoder._typical_view(batch)).float().expand_as(mean)
            else:
                seen = torch.stack([encoder._observe(view).float() for view, _ in views])
            scores |= {name: surprise(mean, scale, seen) for name, surprise in SURPRISES.items()}
    return {name: values.cpu() for name, values in scores.items()}
