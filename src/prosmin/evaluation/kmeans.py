"""k-means: the classes of features that have none."""

import torch
import torch.nn.functional as F
from torch import Tensor

from prosmin.errors import ProsminError
from prosmin.randomness import generator

_RESTARTS = 4
_MAX_ROUNDS = 100


def kmeans(points: Tensor, clusters: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Centres (k, D) and each point's cluster (N,), for points (N, D).

    Lloyd's rounds from k-means++ starts; of four, the one with the least summed squared distance.
    """
    if not 1 <= clusters <= len(points):
        raise ProsminError(f"{len(points)} points cannot form {clusters} clusters; allowed: 1 to {len(points)}.")
    random = generator(seed, 0, "k-means")
    norms = points.square().sum(1)
    found = [_lloyd(points, norms, _plus_plus(points, norms, clusters, random)) for _ in range(_RESTARTS)]
    centres, assignment, _ = min(found, key=lambda result: result[2])
    return centres, assignment


def _squared_distances(points: Tensor, norms: Tensor, centres: Tensor) -> Tensor:
    """(N, D), (N,), (k, D) -> (N, k)."""
    return (norms[:, None] - points @ (2 * centres).T + centres.square().sum(1)).clamp_min(0)


def _plus_plus(points: Tensor, norms: Tensor, clusters: int, random: torch.Generator) -> Tensor:
    """Starting centres (k, D): each next one is a point drawn in proportion to its squared distance."""
    centres = points[torch.randint(len(points), (1,), generator=random).to(points.device)]
    distance = _squared_distances(points, norms, centres)[:, 0]
    while len(centres) < clusters:
        # Drawn by inverting the cumulative sum on the CPU: every device draws the same, for any N.
        sums = distance.double().cpu().cumsum(0)
        chosen = torch.searchsorted(sums, torch.rand(1, generator=random, dtype=torch.float64) * sums[-1])
        new = points[chosen.clamp_max(len(points) - 1).to(points.device)]
        centres = torch.cat([centres, new])
        distance = torch.minimum(distance, _squared_distances(points, norms, new)[:, 0])
    return centres


def _lloyd(points: Tensor, norms: Tensor, centres: Tensor) -> tuple[Tensor, Tensor, float]:
    """Centres, assignment and the summed squared distance once no point changes its cluster."""
    distances, assignment = _squared_distances(points, norms, centres).min(dim=1)
    for _ in range(_MAX_ROUNDS):
        members = F.one_hot(assignment, len(centres)).to(points.dtype)  # (N, k)
        counts = members.sum(0)
        # A product, not scattered additions: a GPU repeats it to the bit. An empty cluster keeps its centre.
        means = (members.T @ points) / counts.clamp_min(1)[:, None]
        centres = torch.where(counts[:, None] > 0, means, centres)
        distances, moved = _squared_distances(points, norms, centres).min(dim=1)
        if torch.equal(moved, assignment):
            break
        assignment = moved
    return centres, assignment, distances.sum().item()
