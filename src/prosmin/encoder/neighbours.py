"""The nearest-neighbour search by cosine similarity, and classification by the votes of the neighbours.

One rule holds everywhere: an image is never its own neighbour. Where a query may be an image of the bank, both have
groups, and rows of the query's own group are left out. A group is an image, or images that overlap.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from prosmin.errors import ProsminError

_SIMILARITIES = 2**25  # computed at once: 128 MiB in float32, whatever the size of the bank


def nearest(
    bank: Tensor,
    queries: Tensor,
    k: int,
    *,
    exclude_self: bool = False,
    groups: Tensor | None = None,
    query_groups: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The k most similar rows of the bank, best first: (M, D), (N, D) -> cosines (N, k), indices (N, k).

    `groups` (M,) and `query_groups` (N,) are the groups of the bank and of the queries. With `exclude_self` the queries
    are the bank row by row, and each row is its own group unless `groups` are given.
    """
    if exclude_self and groups is None:
        groups = torch.arange(len(bank))
    if exclude_self:
        query_groups = groups
    _check(bank, queries, k, groups, query_groups)
    if groups is not None and query_groups is not None:
        groups, query_groups = groups.to(bank.device), query_groups.to(bank.device)
    return search(F.normalize(bank.float(), dim=1), queries, k, groups=groups, query_groups=query_groups)


def search(
    bank: Tensor, queries: Tensor, k: int, *, groups: Tensor | None = None, query_groups: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`nearest` in a bank whose rows have length 1, without checks: on a GPU nothing waits for a result."""
    rows = max(1, _SIMILARITIES // len(bank))
    similarities = bank.new_empty(len(queries), k)
    indices = torch.empty(len(queries), k, dtype=torch.int64, device=bank.device)
    for first in range(0, len(queries), rows):
        part = slice(first, first + rows)
        similarity = F.normalize(queries[part].to(bank), dim=1) @ bank.T  # (rows, M)
        if groups is not None and query_groups is not None:
            similarity.masked_fill_(query_groups[part, None] == groups, -torch.inf)
        similarities[part], indices[part] = similarity.topk(k, dim=1)
    return similarities, indices


def _check(bank: Tensor, queries: Tensor, k: int, groups: Tensor | None, query_groups: Tensor | None) -> None:
    if bank.ndim != 2 or queries.ndim != 2 or bank.shape[1] != queries.shape[1]:
        raise ProsminError(
            f"The features have shapes {tuple(bank.shape)} and {tuple(queries.shape)}; allowed: (M, D) and (N, D)."
        )
    if query_groups is not None and (groups is None or len(groups) != len(bank) or len(query_groups) != len(queries)):
        counts = f"{0 if groups is None else len(groups)} and {len(query_groups)}"
        raise ProsminError(
            f"There are {counts} groups for {len(bank)} images of the bank and {len(queries)} queries; give one each."
        )
    largest = 0
    if query_groups is not None and groups is not None and len(bank):
        largest = int(torch.unique(groups, return_counts=True)[1].max())
    available = len(bank) - largest
    if not 1 <= k <= available:
        raise ProsminError(f"k is {k}, but {available} images can be neighbours; allowed: 1 to {available}.")
    for features in (bank, queries):
        if not bool(torch.isfinite(features).all()):
            raise ProsminError("The features contain values that are not finite; is the checkpoint sound?")


_COLUMN, _ROW, _CHANNEL = 6364136223846793005, 3935559000370003845, 2685821657736338717  # odd 64-bit multipliers


def pixel_hash(images: Tensor, sizes: Tensor) -> Tensor:
    """A number per image from its pixels and size, by which it is recognised: (N, 3, H, W), (N, 2) -> (N,) int64.

    The sum of pixel * _COLUMN^x * _ROW^y * _CHANNEL^c modulo 2^64: the padding, 0, does not change it, and a GPU gives
    the same number as a CPU.
    """

    def weighted_sum(values: Tensor, multiplier: int) -> Tensor:
        powers = torch.full(values.shape[-1:], multiplier, device=values.device).cumprod(0)
        return (values * powers).sum(-1)

    pixels = weighted_sum(weighted_sum(weighted_sum(images.long(), _COLUMN), _ROW), _CHANNEL)
    return pixels + weighted_sum(sizes.to(images.device), _COLUMN)


def first_of_each(hashes: Tensor) -> Tensor:
    """The rows (m,), rising, of a bank of images with these hashes (M,) without those that repeat an earlier one."""
    return torch.from_numpy(np.sort(np.unique(hashes.cpu().numpy(), return_index=True)[1]))


_COPY = 1e-5  # squared distance, relative to the spread of the features, below which it is rounding
_WINDOW = 8


def first_of_copies(features: Tensor) -> Tensor:
    """The row of the first copy of each image of a bank, its own if it repeats none: (M, D) -> (M,).

    Copies are equal apart from rounding. They lie side by side in the order of one random coordinate, so that not all
    pairs need to be compared. Some of many copies with rounding may be taken for others.
    """
    x = features.float() - features.float().mean(0)
    axis = torch.randn(x.shape[1], generator=torch.Generator().manual_seed(0)).to(x)
    order = (x @ axis).argsort(stable=True)
    limit = _COPY * x.square().sum(1).mean()
    pairs = [torch.empty(2, 0, dtype=torch.int64, device=x.device)]
    for apart in range(1, min(_WINDOW, len(x) - 1) + 1):
        pair = torch.stack([order[apart:], order[:-apart]])
        pairs.append(pair[:, (x[pair[0]] - x[pair[1]]).square().sum(1) <= limit])
    return _first_connected(torch.cat(pairs, 1), len(x))


def _first_connected(pairs: Tensor, count: int) -> Tensor:
    """The lowest row that each of `count` rows is connected to by pairs (2, P): (count,)."""
    found = torch.arange(count, device=pairs.device)
    while True:
        each = found[pairs]
        lower = found.scatter_reduce(0, each.flatten(), each.amin(0).repeat(2), "amin")
        lower = lower[lower]
        if torch.equal(lower, found):
            return found
        found = lower


def vote(similarities: Tensor, labels: Tensor, *, classes: int, temperature: float = 0.07) -> Tensor:
    """Class probabilities from neighbours' similarities (N, k) and labels (N, k) -> (N, C).

    A neighbour's weight is exp(similarity / temperature). A class without a vote would have probability 0 and
    an infinite NLL, so one more neighbour with the mean weight of the k votes for all classes equally:
    p = (k * share of the weight + 1 / C) / (k + 1). This keeps the order of the classes.
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
    for rank in range(k):  # one neighbour at a time: no two additions meet, so a GPU gives the same bits every time
        shares.scatter_add_(1, labels[:, rank, None], weights[:, rank, None])
    return (k * shares + 1 / classes) / (k + 1)


def knn_probabilities(
    bank: Tensor, bank_labels: Tensor, queries: Tensor, *, classes: int, k: int = 20, temperature: float = 0.07
) -> Tensor:
    """Class probabilities of queries by the vote of their k neighbours: (M, D), (M,), (N, D) -> (N, C)."""
    similarities, indices = nearest(bank, queries, k)
    return vote(similarities, bank_labels.to(bank.device)[indices], classes=classes, temperature=temperature)


HELD_OUT_K = 20


def knn_top1(features: Tensor, labels: Tensor, held: Tensor) -> float:
    """Top-1 of the images under the mask by the vote of their neighbours outside it: (N, D), (N,), (N,) -> share."""
    labels, held = labels.to(features.device), held.to(features.device)
    bank, classes = features[~held], int(labels.max()) + 1
    votes = knn_probabilities(bank, labels[~held], features[held], classes=classes, k=min(HELD_OUT_K, len(bank)))
    return float((votes.argmax(1) == labels[held]).double().mean())
