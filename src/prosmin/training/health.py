"""Is it learning? Numbers that show a collapse while the loss still looks fine, and a verdict in words."""

import math

import torch
from torch import Tensor

COLLAPSED_STD = 1e-3  # a healthy target has a standard deviation of a few hundredths (cosines); a collapsed one 1e-4
COLLAPSED_RANK = 2.0
SHRUNK_RANK = 0.35  # share of the first rank seen; below it features leave their dimensions while the loss looks fine


@torch.no_grad()
def target_std(target: Tensor) -> Tensor:
    """Standard deviation over the pictures, mean over views and coordinates: (G, B, K) -> ()."""
    return target.float().std(dim=1).mean()


@torch.no_grad()
def effective_rank(features: Tensor) -> Tensor:
    """RankMe (Garrido et al., 2023): exp of the entropy of the normalised singular values, (N, D) -> ()."""
    singular = torch.linalg.svdvals(features.float())
    share = singular / singular.sum().clamp_min(1e-12)
    return torch.exp(-(share * torch.log(share.clamp_min(1e-12))).sum())


def numbers(observed: dict[str, Tensor]) -> dict[str, float]:
    """The health numbers of one step, from what a method observed."""
    found: dict[str, Tensor] = {}
    if "target" in observed:
        found["target_std"] = target_std(observed["target"])
    if "features" in observed:
        found["feature_rank"] = effective_rank(observed["features"][:2048])
    if "scale" in observed:
        scale = observed["scale"].float()
        found |= {"scale_mean": scale.mean(), "scale_min": scale.min(), "scale_max": scale.max()}
    return {name: float(value) for name, value in found.items()}


def verdict(rows: list[dict[str, float]]) -> str:
    """One sentence on a run, from its logged lines in order."""
    if not rows:
        return "no steps yet"
    sick = [row for row in rows if _collapsed(row)]
    last = rows[-1]
    if sick and _collapsed(last):
        since = _since(rows)
        what = (
            f"target std {last.get('target_std', math.nan):.1e}, feature rank {last.get('feature_rank', math.nan):.1f}"
        )
        return f"collapsing: {what} since step {since}; set loss.lam to 0.5, or turn on heads.batchnorm"
    first = next((row["feature_rank"] for row in rows if "feature_rank" in row), 0.0)
    if last.get("feature_rank", first) < SHRUNK_RANK * first:
        return (
            f"shrinking: feature rank {last['feature_rank']:.1f}, {first:.1f} at the start; "
            "lower optimizer.lr, or raise target.momentum"
        )
    rank = f", feature rank {last['feature_rank']:.0f}" if "feature_rank" in last else ""
    std = f"target std {last['target_std']:.3f}" if "target_std" in last else "no target observed"
    return f"healthy: {std}{rank}"


def _collapsed(row: dict[str, float]) -> bool:
    return row.get("target_std", 1.0) < COLLAPSED_STD or row.get("feature_rank", 99.0) < COLLAPSED_RANK


def _since(rows: list[dict[str, float]]) -> int:
    """The first step of the unbroken run of collapsed lines at the end."""
    first = rows[-1]
    for row in reversed(rows):
        if not _collapsed(row):
            break
        first = row
    return int(first["step"])
