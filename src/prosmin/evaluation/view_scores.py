"""What several random views of a picture say together, batch by batch on the encoder's device.

The forecasts of all views of a set would take gigabytes; of each batch only the scores are kept.
"""

import torch
from torch import Tensor

from prosmin.data.feed import Batch
from prosmin.data.streamed import PictureSet
from prosmin.encoder import UNCERTAINTY_VIEWS, Encoder
from prosmin.evaluation.batches import set_batches
from prosmin.evaluation.ood import SCORES

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
    # The encoder's own views and arithmetic: scores must be of the forecasts that its users are given.
    embeddings = [encoder._encode(view) for view in encoder._random_views(batch, count=count, seed=seed)]
    mean = torch.stack([embedding.mean.float() for embedding in embeddings])  # (V, n, K)
    scales = [embedding.scale.float() for embedding in embeddings if embedding.scale is not None]
    scores = {BETWEEN_VIEWS: mean.var(0).mean(1)}
    if scales:
        scale = torch.stack(scales)
        scores |= {name: measure(mean, scale) for name, measure in SCORES.items()}
    return {name: values.cpu() for name, values in scores.items()}
