"""k-nearest-neighbour classification by cosine similarity: one search, then a vote for any k."""

import torch
import torch.nn.functional as F
from torch import Tensor

from prosmin.errors import ProsminError

_SIMILARITIES = 2**25  # held at once: 128 MiB in float32, whatever the size of the bank


def nearest(
    bank: Tensor, queries: Tensor, k: int, *, exclude_self: bool = False, groups: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The k most similar rows of the bank, best first: (M, D), (N, D) -> cosines (N, k), indices (N, k).

    With `exclude_self` the queries are the bank, row by row, and no row is its own neighbour; with `groups` (M,), the
    number of each row's group, none of its group is.
    """
    if groups is None and exclude_self:
        groups = torch.arange(len(bank))
    groups = None if groups is None else groups.to(bank.device)
    _check(bank, queries, k, groups)
    bank = F.normalize(bank.float(), dim=1)
    rows = max(1, _SIMILARITIES // len(bank))
    similarities = bank.new_empty(len(queries), k)
    indices = torch.empty(len(queries), k, dtype=torch.int64, device=bank.device)
    for first in range(0, len(queries), rows):
        part = F.normalize(queries[first : first + rows].to(bank), dim=1)
        similarity = part @ bank.T  # (rows, M)
        if groups is not None:
            similarity[groups[first : first + rows, None] == groups] = -torch.inf
        best = similarity.topk(k, dim=1)
        similarities[first : first + rows], indices[first : first + rows] = best
    return similarities, indices


def vote(similarities: Tensor, labels: Tensor, *, classes: int, temperature: float = 0.07) -> Tensor:
    """Class probabilities from neighbours' similarities (N, k) and labels (N, k) -> (N, C).

    A neighbour's weight is exp(similarity / temperature). A class without a vote would have probability 0 and
    an infinite NLL, so one more neighbour with the mean weight of the k votes for all classes alike:
    p = (k * share of the weight + 1 / C) / (k + 1). The order of the classes stays as the votes have it.
    """
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ProsminError(
            f"The labels run from {int(labels.min())} to {int(labels.max())}; allowed: 0 to {classes - 1}. "
            "Do both splits have the same classes?"
        )
    k = similarities.shape[1]
    # softmax divides the weights by their sum and cannot overflow.
    weights = torch.softmax(similarities / temperature, dim=1)  # (N, k)
    shares = weights.new_zeros(len(weights), classes)
    for rank in range(k):  # one neighbour a time: no two additions meet, so a GPU repeats itself to the bit
        shares.scatter_add_(1, labels[:, rank, None], weights[:, rank, None])
    return (k * shares + 1 / classes) / (k + 1)


def knn_probabilities(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    *,
    classes: int,
    k: int = 20,
    temperature: float = 0.07,
) -> Tensor:
    """Class probabilities of queries by the vote of their k neighbours: (M, D), (M,), (N, D) -> (N, C)."""
    similarities, indices = nearest(bank, queries, k)
    return vote(similarities, bank_labels.to(bank.device)[indices], classes=classes, temperature=temperature)


def _check(bank: Tensor, queries: Tensor, k: int, groups: Tensor | None) -> None:
    if bank.ndim != 2 or queries.ndim != 2 or bank.shape[1] != queries.shape[1]:
        raise ProsminError(
            f"The features have shapes {tuple(bank.shape)} and {tuple(queries.shape)}; allowed: (M, D) and (N, D)."
        )
    if groups is not None and bank.shape != queries.shape:
        raise ProsminError(
            f"A search among {len(bank)} images for themselves got {len(queries)} queries; give the same."
        )
    largest = 0 if groups is None else int(torch.unique(groups, return_counts=True)[1].amax(0)) if len(bank) else 0
    available = len(bank) - largest
    if not 1 <= k <= available:
        raise ProsminError(f"k is {k}, but {available} images can be neighbours; allowed: 1 to {available}.")
    for features in (bank, queries):
        if not bool(torch.isfinite(features).all()):
            raise ProsminError("The features hold values that are not finite; is the checkpoint sound?")


HELD_OUT_K = 20


def knn_top1(features: Tensor, labels: Tensor, held: Tensor) -> float:
    """Top-1 of the images under the mask by the vote of their neighbours outside it: (N, D), (N,), (N,) -> share."""
    labels, held = labels.to(features.device), held.to(features.device)
    bank, classes = features[~held], int(labels.max()) + 1
    votes = knn_probabilities(bank, labels[~held], features[held], classes=classes, k=min(HELD_OUT_K, len(bank)))
    return float((votes.argmax(1) == labels[held]).double().mean())
