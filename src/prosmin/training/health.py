"""Is the run learning? Numbers that show a collapse while the loss still looks fine, and a verdict in words."""

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from prosmin.config import Config
from prosmin.scoring import approximate_energy_score

COLLAPSED_STD = 1e-3  # the standard deviation of a healthy target is a few hundredths, of a collapsed one 1e-4
COLLAPSED_RANK = 2.0
PATIENCE = 3  # rows in a row before a problem counts: a single batch may look odd
HOST_RANK = 1024  # side of a Gram matrix up to which the host computes its spectrum while a GPU trains
SHRUNK_RANK = 0.35  # share of the first rank below which features lose dimensions while the loss looks fine
RISEN = 10.0  # how far a loss may rise, in units of the first loss (at least 1); a healthy loss falls
LARGEST_LOSS = 1e4  # for runs with a single row; losses compare unit vectors and are tens at most
SINGULAR = 0.5  # variance of a whitened target, 1 by construction, below which most directions are missing
FORGOTTEN = 0.3  # share of the starting encoder's neighbours below which it is forgotten, without training.guard
RANK_FEATURES = 2048  # the rank is computed from this many features at most

Gather = Callable[[Tensor, int], Tensor]
Trouble = Literal["forgetting", "singular", "shrinking", "collapsing", "diverging"]
_TROUBLES: tuple[Trouble, ...] = get_args(Trouble)  # the worst last


@torch.no_grad()
def target_std(target: Tensor) -> Tensor:
    """Standard deviation over the images, mean over views and coordinates: (G, B, K) -> ()."""
    return target.float().std(dim=1).mean()


@torch.no_grad()
def effective_rank(features: Tensor) -> Tensor:
    """RankMe (Garrido et al., 2023): exp of the entropy of the normalised singular values, (N, D) -> ()."""
    return _rank(_gram(features))


def _gram(features: Tensor) -> Tensor:
    """The smaller Gram matrix: (N, D) -> (min(N, D), min(N, D)), in float64."""
    x = features.double()
    return x.T @ x if x.shape[0] >= x.shape[1] else x @ x.T


def _covariance(x: Tensor) -> Tensor:
    """(..., K) -> (K, K), in float64."""
    x = x.flatten(0, -2).double()
    offset = x - x.mean(0)
    return offset.T @ offset / len(x)


def _rank(gram: Tensor) -> Tensor:
    """From the Gram matrix: far faster than singular values, and in float64 exact to 1e-8 of the largest."""
    # NaN is no error here: the loss of the same step stops the run, with a message.
    singular = torch.linalg.eigvalsh(gram.nan_to_num(0.0, 0.0, 0.0)).clamp_min(0.0).sqrt()
    share = singular / singular.sum().clamp_min(1e-12)
    return torch.exp(-(share * torch.log(share.clamp_min(1e-12))).sum())


@torch.no_grad()
def measure(observed: dict[str, Tensor], gather: Gather = lambda x, dim: x, *, world: int = 1) -> dict[str, Tensor]:
    """The tensors that `numbers` needs, from what a method observed in a step: on the device, without waiting.

    `gather` concatenates the tensors of `world` processes along a dimension, so that all images count.
    """
    found: dict[str, Tensor] = {}
    if "target" in observed:
        found["target_std"] = target_std(gather(observed["target"], 1))
    if "features" in observed:
        gram = _gram(gather(observed["features"][: RANK_FEATURES // world], 0))
        found |= {"feature_gram": gram} if len(gram) <= HOST_RANK else {"feature_rank": _rank(gram)}
    if "scale" in observed:
        scale = gather(observed["scale"], 1).float()
        found |= {"scale_mean": scale.mean(), "scale_min": scale.min(), "scale_max": scale.max()}
    if "whitened" in observed:
        whitened = gather(observed["whitened"], 1)
        found["whitened_variance"] = whitened.flatten(0, 1).var(0).mean()
        raw = observed.get("covariance")
        found["target_covariance"] = _covariance(gather(observed["target"], 1)) if raw is None else raw
        if "scale" in observed:
            found["skill"] = climatology_skill(gather(observed["mean"], 1), scale, gather(observed["scored"], 1))
    return found


@torch.no_grad()
def climatology_skill(mean: Tensor, scale: Tensor, target: Tensor) -> Tensor:
    """1 - energy score of forecasts / that of climatology, for each of two global views that forecasts the other.

    Climatology is one forecast for all images: mean and standard deviation of each coordinate of the batch. With
    N(0, I) instead, a target of small variance would look well predicted.
    mean, scale (V, B, K), target (2, B, K) -> (). 0: no better than climatology; 1: perfect.
    """
    seen = target.float().flip(0)
    own = approximate_energy_score(mean[: len(seen)].float(), scale[: len(seen)], seen, validate=False)
    spread, middle = (x.expand_as(seen) for x in torch.std_mean(seen, (0, 1), correction=0))
    none = approximate_energy_score(middle, spread, seen, validate=False)
    return 1.0 - own.mean() / none.mean().clamp_min(1e-6)  # a constant target is no division by 0


def numbers(measured: dict[str, Tensor]) -> dict[str, float]:
    """The health numbers of a step, on the host."""
    found = dict(measured)
    if "feature_gram" in found:
        found["feature_rank"] = _rank(found.pop("feature_gram"))
    if "target_covariance" in found:
        found["target_rank"] = _rank(found.pop("target_covariance"))
    return {name: float(value) for name, value in found.items()}


def verdict(rows: list[dict[str, float]], config: Config | None = None) -> str:
    """One sentence on a run from its rows in metrics.jsonl, with advice that fits its configuration."""
    if not rows:
        return "no steps yet"
    last = rows[-1]
    match trouble(rows, last, limit=start_limit(config)):
        case "diverging":
            began = f", {rows[0]['loss']:.4g} at the start" if len(rows) > 1 else ""
            clip = ", or set optimizer.clip" if config is not None and config.optimizer.clip is None else ""
            return f"diverging: loss {last['loss']:.4g}{began}; lower optimizer.lr{clip}"
        case "collapsing":
            signs = f"target std {last.get('target_std', math.nan):.1e}, "
            signs += f"feature rank {last.get('feature_rank', math.nan):.1f}"
            return f"collapsing: {signs} since step {_collapsed_since(rows)}; {_advice(config)}"
        case "shrinking":
            began = f"{_first_rank(rows):.1f} at the start"
            return f"shrinking: feature rank {last['feature_rank']:.1f}, {began}; {_advice(config)}"
        case "singular":
            variance = f"variance {last['whitened_variance']:.2f} instead of 1"
            rank = f"target rank {last['target_rank']:.0f}" + (f" of {config.heads.dim}" if config else "")
            return f"singular: the whitened target has {variance}, {rank}; {_fuller(config)}"
        case "forgetting":
            return f"forgetting: {_kept(rows)}, less than {start_limit(config):.0%}; {_gentler(config)}"
    if not {"target_std", "feature_rank"} & last.keys():
        return "unknown: the method reports neither features nor targets"
    rank = f", feature rank {last['feature_rank']:.0f}" if "feature_rank" in last else ""
    std = f"target std {last['target_std']:.3f}" if "target_std" in last else "no target observed"
    start = f", {_kept(rows)}" if start_columns(rows) else ""
    return f"healthy: {std}{rank}{start}"


def start_limit(config: Config | None) -> float:
    """The share of the starting encoder's neighbours that a run must keep."""
    return (config.training.guard if config is not None else None) or FORGOTTEN


def start_columns(rows: list[dict[str, float]]) -> dict[str, float]:
    """The newest row that compares the encoder with its start; empty if none does."""
    return next((row for row in reversed(rows) if "start_neighbours" in row), {})


def trouble(rows: list[dict[str, float]], row: dict[str, float], *, limit: float = FORGOTTEN) -> Trouble | None:
    """The problem that one row of a run shows, if any.

    The comparison with the start is the newest one: few rows have it, and its images are always the same.
    """
    if is_diverged([rows[0], row]):
        return "diverging"
    if is_collapsed(row):
        return "collapsing"
    first = _first_rank(rows)
    if row.get("feature_rank", first) < SHRUNK_RANK * first:
        return "shrinking"
    if row.get("whitened_variance", 1.0) < SINGULAR:
        return "singular"
    return "forgetting" if start_columns(rows).get("start_neighbours", 1.0) < limit else None


class Watch:
    """Checks every row while a run trains."""

    def __init__(self, config: Config, rows: list[dict[str, float]]) -> None:
        self.config = config
        self.rows = list(rows)
        self.verdict = ""
        self._level = self._lasting_level()
        self._warned = 0

    @property
    def gives_up(self) -> bool:
        """Whether `training.on_collapse` stops the run."""
        return self._level >= _level("collapsing") and self.config.training.on_collapse == "stop"

    def add(self, row: dict[str, float]) -> str:
        """Add a row; returns a verdict to warn with when a problem has lasted for some rows or has become worse."""
        self.rows.append(row)
        self._level = self._lasting_level()
        self.verdict = verdict(self.rows, self.config) if self._level else ""
        is_new, self._warned = self._level > self._warned, self._level and max(self._warned, self._level)
        return self.verdict if is_new else ""

    def _lasting_level(self) -> int:
        """The mildest level of the newest rows; 0 if one of them is fine or there are too few."""
        limit = start_limit(self.config)
        newest = [_level(trouble(self.rows, each, limit=limit)) for each in self.rows[-PATIENCE:]]
        return min(newest) if len(newest) == PATIENCE else 0


def _level(kind: Trouble | None) -> int:
    return 0 if kind is None else 1 + _TROUBLES.index(kind)


def is_collapsed(row: dict[str, float]) -> bool:
    """Whether a row shows targets without spread or features without dimensions."""
    return row.get("target_std", 1.0) < COLLAPSED_STD or row.get("feature_rank", 99.0) < COLLAPSED_RANK


def is_diverged(rows: list[dict[str, float]]) -> bool:
    """Whether the last loss is not finite, or far above the first, relative to its size (losses may be negative)."""
    first, last = rows[0].get("loss", 0.0), rows[-1].get("loss", 0.0)
    highest = min(first + RISEN * max(abs(first), 1.0), LARGEST_LOSS)
    return not last <= highest  # true for NaN as well


def _first_rank(rows: list[dict[str, float]]) -> float:
    return next((row["feature_rank"] for row in rows if "feature_rank" in row), 0.0)


def _kept(rows: list[dict[str, float]]) -> str:
    row = start_columns(rows)
    share = f"{row['start_neighbours']:.0%} of the starting encoder's nearest neighbours kept"
    return f"{share} (CKA {row['start_cka']:.2f})"


def _gentler(config: Config | None) -> str:
    """How to change the starting encoder less, with the fields that are not set yet."""
    changes = ["lower optimizer.lr"]
    if config is None or config.backbone.freeze_epochs == 0:
        changes.append("set backbone.freeze_epochs")
    if config is None or config.optimizer.layer_decay == 1:
        changes.append("set optimizer.layer_decay below 1")
    if config is None or not config.training.guard:
        changes.append("set training.guard")
    return ", or ".join(changes)


def _fuller(config: Config | None) -> str:
    """How to get a target with more directions, with the fields that are not set yet."""
    changes = ["lower heads.dim or optimizer.lr", "raise training.batch_size"]
    if config is not None and not config.target.normalise:
        changes.insert(0, "turn on target.normalise")
    if config is not None and config.heads.last != "whiten":
        changes.insert(0, "set heads.last to whiten")
    return ", or ".join(changes)


def _advice(config: Config | None) -> str:
    """What to change, among the fields that the configuration has."""
    if config is None:
        return "lower optimizer.lr"
    heads, changes = config.heads, []
    if getattr(config.loss, "lam", 0.5) < 0.5:
        changes.append("raise loss.lam to 0.5")
    if getattr(heads, "batchnorm", True) is False:
        changes.append("turn on heads.batchnorm")
    if getattr(heads, "last", "") in ("none", "whiten"):
        changes += ["set target.whitening to whiten"] if config.target.whitening != "whiten" else []
        changes += ["turn on target.normalise"] if not config.target.normalise else []
    elif getattr(heads, "bottleneck_batchnorm", True) is False:
        changes.append("turn on heads.bottleneck_batchnorm")
    return ", or ".join([*changes, "lower optimizer.lr"])


def _collapsed_since(rows: list[dict[str, float]]) -> int:
    """The first step of the collapsed rows at the end."""
    first = rows[-1]
    for row in reversed(rows):
        if not is_collapsed(row):
            break
        first = row
    return int(first["step"])
