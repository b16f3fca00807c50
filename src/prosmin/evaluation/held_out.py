"""Choices are made on a held-out tenth of the training pictures, never on test: which tenth, and kNN on it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from prosmin.data.pictures import Pictures
from prosmin.data.streamed import PictureSet, tell_unread
from prosmin.encoder import Encoder
from prosmin.errors import ProsminError
from prosmin.evaluation.batches import set_batches
from prosmin.evaluation.groups import groups_of
from prosmin.evaluation.knn import knn_probabilities
from prosmin.evaluation.subsets import held_out_tenth

K = 20


def held_out_mask(labels: Tensor, keys: Sequence[str], spec: str, *, seed: int = 0) -> Tensor:
    """True for the held-out tenth, balanced over the classes and of whole groups: (N,) mask."""
    return held_out_tenth(labels, seed=seed, groups=groups_of(keys, spec))


def held_out_knn(encoder: Encoder, pictures: PictureSet, *, seed: int = 0) -> dict[str, float]:
    """kNN top-1 (k 20) of the held-out tenth, the other nine tenths as the bank."""
    if pictures.labels is None:
        raise ProsminError(f"{pictures.spec} has no labels; kNN needs them.")
    features, readable = _embed(encoder, pictures)
    labels, keys = pictures.labels[readable], [pictures.keys[i] for i in readable.tolist()]
    held = held_out_mask(labels, keys, pictures.spec, seed=seed)
    return {"knn_top1": knn_top1(features.to(encoder.device), labels, held)}


def _embed(encoder: Encoder, pictures: PictureSet) -> tuple[Tensor, Tensor]:
    """Features alone, since K numbers a picture may be gigabytes, and the places of the pictures that can be read."""
    if isinstance(pictures, Pictures):
        return encoder.features(pictures), torch.arange(len(pictures))
    features, places = [], []
    for batch in set_batches(pictures, encoder, title="held-out kNN"):
        features.append(encoder.batch_features(batch).cpu())
        places.append(batch.index)
    readable = torch.cat(places)
    tell_unread(pictures, readable)
    return torch.cat(features), readable


def knn_top1(features: Tensor, labels: Tensor, held: Tensor) -> float:
    """Top-1 of the pictures under the mask by the vote of their neighbours outside it: (N, D), (N,), (N,) -> share."""
    labels, held = labels.to(features.device), held.to(features.device)
    bank, classes = features[~held], int(labels.max()) + 1
    votes = knn_probabilities(bank, labels[~held], features[held], classes=classes, k=min(K, len(bank)))
    return float((votes.argmax(1) == labels[held]).double().mean())
