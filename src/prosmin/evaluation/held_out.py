"""Choices are made on a held-out tenth of the training pictures, never on test: which tenth, and kNN on it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from prosmin.data import photos
from prosmin.data.pictures import Pictures
from prosmin.encoder import Encoder
from prosmin.errors import ProsminError
from prosmin.evaluation.knn import knn_probabilities
from prosmin.evaluation.subsets import held_out_tenth

K = 20


def held_out_mask(labels: Tensor, keys: Sequence[str], spec: str, *, seed: int = 0) -> Tensor:
    """True for the held-out tenth, balanced over the classes: (N,) mask.

    Patches of the embedded photographs overlap within a block of theirs, so there whole blocks are held out: a patch
    whose half is in the bank would be found without any learning.
    """
    if spec.partition("@")[0] != "photos":
        return held_out_tenth(labels, seed=seed)
    blocks, block = _number(photos.block_names(keys))
    block_labels = torch.empty(blocks, dtype=labels.dtype, device=labels.device)
    block_labels[block] = labels
    return held_out_tenth(block_labels, seed=seed)[block]


def held_out_knn(encoder: Encoder, pictures: Pictures, *, seed: int = 0) -> dict[str, float]:
    """kNN top-1 (k 20) of the held-out tenth, the other nine tenths as the bank."""
    if pictures.labels is None:
        raise ProsminError(f"{pictures.spec} has no labels; kNN needs them.")
    features = encoder.features(pictures).to(encoder.device)  # alone: K numbers a picture may be gigabytes
    held = held_out_mask(pictures.labels, pictures.keys, pictures.spec, seed=seed)
    return {"knn_top1": knn_top1(features, pictures.labels, held)}


def knn_top1(features: Tensor, labels: Tensor, held: Tensor) -> float:
    """Top-1 of the pictures under the mask by the vote of their neighbours outside it: (N, D), (N,), (N,) -> share."""
    labels, held = labels.to(features.device), held.to(features.device)
    bank, classes = features[~held], int(labels.max()) + 1
    votes = knn_probabilities(bank, labels[~held], features[held], classes=classes, k=min(K, len(bank)))
    return float((votes.argmax(1) == labels[held]).double().mean())


def _number(names: list[str]) -> tuple[int, Tensor]:
    """How many different names there are, and the number of each."""
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return len(numbers), torch.tensor([numbers[name] for name in names])
