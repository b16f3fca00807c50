"""What several random views of a picture say together, batch by batch on the encoder's device.

The forecasts of all views of a set would take gigabytes; of each batch only the scores are kept.
"""

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from prosmin.data.feed import Batch
from prosmin.data.streamed import PictureSet
from prosmin.data.views import GLOBAL_VIEWS, make_views
from prosmin.encoder import UNCERTAINTY_VIEWS, Encoder
from prosmin.evaluation.batches import set_batches
from prosmin.evaluation.ood import SCORES
from prosmin.methods.output import Embedding

BETWEEN_VIEWS = "between_view_variance"


@torch.inference_mode()
def view_scores(
    encoder: Encoder, pictures: PictureSet, *, seed: int, count: int = UNCERTAINTY_VIEWS
) -> dict[str, Tensor]:
    """The variance of the mean between random global views and, of forecasts with a scale, SCORES: (N,) each.

    The views follow from a picture's place and the seed, as those of Encoder.views do.
    """
    parts = [_scores(encoder, batch, seed=seed, count=count) for batch in set_batches(pictures, encoder, title="views")]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _scores(encoder: Encoder, batch: Batch, *, seed: int, count: int) -> dict[str, Tensor]:
    embeddings = list(_embeddings(encoder, batch, seed=seed, count=count))
    mean = torch.stack([embedding.mean.float() for embedding in embeddings])  # (V, n, K)
    scales = [embedding.scale.float() for embedding in embeddings if embedding.scale is not None]
    scores = {BETWEEN_VIEWS: mean.var(0).mean(1)}
    if scales:
        scale = torch.stack(scales)
        scores |= {name: measure(mean, scale) for name, measure in SCORES.items()}
    return {name: values.cpu() for name, values in scores.items()}


def _embeddings(encoder: Encoder, batch: Batch, *, seed: int, count: int) -> Iterator[Embedding]:
    config = dataclasses.replace(encoder.config.views, local=0)
    positions = batch.index.to(encoder.device)
    for first in range(0, count, GLOBAL_VIEWS):
        views = make_views(
            batch.images, batch.sizes, config, seed=seed, step=first // GLOBAL_VIEWS, positions=positions
        ).global_views
        for view in views[: count - first]:
            yield encoder.method.encode(view)  # type: ignore[operator]
