"""kNN on a held-out tenth of the training images, for choices that must not use test."""

import torch
from torch import Tensor

from prosmin.data.image_sets import Pictures, PictureSet, report_unread
from prosmin.data.subsets import held_out_mask
from prosmin.encoder import Encoder
from prosmin.encoder.neighbours import knn_top1
from prosmin.errors import ProsminError
from prosmin.evaluation.batches import set_batches


def held_out_knn(encoder: Encoder, pictures: PictureSet, *, seed: int = 0) -> dict[str, float]:
    """kNN top-1 (k = 20) of the held-out tenth, with the other nine tenths as the bank."""
    if pictures.labels is None:
        raise ProsminError(f"{pictures.spec} has no labels; kNN needs them.")
    features, readable = _embed(encoder, pictures)
    labels, keys = pictures.labels[readable], [pictures.keys[i] for i in readable.tolist()]
    held = held_out_mask(labels, keys, pictures.spec, seed=seed)
    return {"knn_top1": knn_top1(features.to(encoder.device), labels, held)}


def _embed(encoder: Encoder, pictures: PictureSet) -> tuple[Tensor, Tensor]:
    """Features, not forecasts, which may take gigabytes; and the indices of the readable images."""
    if isinstance(pictures, Pictures):
        return encoder.features(pictures), torch.arange(len(pictures))
    features, places = [], []
    for batch in set_batches(pictures, encoder, title="held-out kNN"):
        features.append(encoder.batch_features(batch).cpu())
        places.append(batch.index)
    readable = torch.cat(places)
    report_unread(pictures, readable)
    return torch.cat(features), readable
