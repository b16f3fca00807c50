"""Is it learning? Numbers that show a collapse while the loss still looks fine, and a verdict in words."""

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from prosmin.config import Config

COLLAPSED_STD = 1e-3  # a healthy target has a standard deviation of a few hundredths (cosines); a collapsed one 1e-4
COLLAPSED_RANK = 2.0
PATIENCE = 3  # logged lines in a row before a collapse is one: a single batch may look odd
HOST_RANK = 1024  # sides of a Gram matrix up to which the host finds its spectrum while a GPU goes on; above, too slow
SHRUNK_RANK = 0.35  # share of the first rank seen; below it features leave their dimensions while the loss looks fine
RISEN = 10.0  # sizes of the first loss, at least 1, by which a loss may rise: healthy ones end below where they began
LARGEST_LOSS = 1e4  # losses compare vectors of length one and are tens at most; for runs with a single logged line


LOOKED_AT = 2048  # features whose rank is taken, at most
Together = Callable[[Tensor, int], Tensor]
Trouble = Literal["shrinking", "collapsing", "diverging"]
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


def _rank(gram: Tensor) -> Tensor:
    """By way of the Gram matrix singular values come far faster, in float64 exact to 1e-8 of the largest."""
    # Features that are no numbers are no error here: the loss of the same step ends the run, with a sentence.
    singular = torch.linalg.eigvalsh(gram.nan_to_num(0.0, 0.0, 0.0)).clamp_min(0.0).sqrt()
    share = singular / singular.sum().clamp_min(1e-12)
    return torch.exp(-(share * torch.log(share.clamp_min(1e-12))).sum())


@torch.no_grad()
def measure(observed: dict[str, Tensor], together: Together = lambda x, dim: x, *, world: int = 1) -> dict[str, Tensor]:
    """What the health numbers of a step are made of, from what a method observed: on the device, without waiting.

    `together` puts the tensors of `world` processes side by side along a dimension: the numbers are of all images.
    """
    found: dict[str, Tensor] = {}
    if "target" in observed:
        found["target_std"] = target_std(together(observed["target"], 1))
    if "features" in observed:
        gram = _gram(together(observed["features"][: LOOKED_AT // world], 0))
        found |= {"feature_gram": gram} if len(gram) <= HOST_RANK else {"feature_rank": _rank(gram)}
    if "scale" in observed:
        scale = together(observed["scale"], 1).float()
        found |= {"scale_mean": scale.mean(), "scale_min": scale.min(), "scale_max": scale.max()}
    return found


def numbers(measured: dict[str, Tensor]) -> dict[str, float]:
    """The health numbers of a step, on the host."""
    found = dict(measured)
    if "feature_gram" in found:
        found["feature_rank"] = _rank(found.pop("feature_gram"))
    return {name: float(value) for name, value in found.items()}


def verdict(rows: list[dict[str, float]], config: Config | None = None) -> str:
    """One sentence on a run, from its logged lines in order; advice follows from its configuration."""
    if not rows:
        return "no steps yet"
    last = rows[-1]
    match trouble(rows, last):
        case "diverging":
            began = f", {rows[0]['loss']:.4g} at the start" if len(rows) > 1 else ""
            return f"diverging: loss {last['loss']:.4g}{began}; {_calmer(config)}"
        case "collapsing":
            return f"collapsing: {_signs(last)} since step {_since(rows)}; {_advice(config)}"
        case "shrinking":
            began = f"{_first_rank(rows):.1f} at the start"
            return f"shrinking: feature rank {last['feature_rank']:.1f}, {began}; {_advice(config)}"
    if not {"target_std", "feature_rank"} & last.keys():
        return "unknown: the method gives neither features nor target to observe"
    rank = f", feature rank {last['feature_rank']:.0f}" if "feature_rank" in last else ""
    std = f"target std {last['target_std']:.3f}" if "target_std" in last else "no target observed"
    return f"healthy: {std}{rank}"


def trouble(rows: list[dict[str, float]], row: dict[str, float]) -> Trouble | None:
    """What is wrong with one logged line of a run."""
    if is_diverged([rows[0], row]):
        return "diverging"
    if is_collapsed(row):
        return "collapsing"
    first = _first_rank(rows)
    return "shrinking" if row.get("feature_rank", first) < SHRUNK_RANK * first else None


class Watch:
    """Looks at every logged line while training goes on."""

    def __init__(self, config: Config, rows: list[dict[str, float]]) -> None:
        self.config = config
        self.rows = list(rows)
        self.sentence = ""
        self._lasting = self._worst_common()  # how bad each of the newest lines is at least, 0: one of them is fine
        self._told = 0

    @property
    def gives_up(self) -> bool:
        """Whether the run should end, as `training.on_collapse` decides."""
        return self._lasting >= _badness("collapsing") and self.config.training.on_collapse == "stop"

    def see(self, row: dict[str, float]) -> str:
        """Take a line; the verdict comes back when a trouble has lasted for some lines, and when it gets worse."""
        self.rows.append(row)
        self._lasting = self._worst_common()
        self.sentence = verdict(self.rows, self.config) if self._lasting else ""
        is_new, self._told = self._lasting > self._told, self._lasting and max(self._told, self._lasting)
        return self.sentence if is_new else ""

    def _worst_common(self) -> int:
        newest = [_badness(trouble(self.rows, each)) for each in self.rows[-PATIENCE:]]
        return min(newest) if len(newest) == PATIENCE else 0


def _badness(kind: Trouble | None) -> int:
    return 0 if kind is None else 1 + _TROUBLES.index(kind)


def is_collapsed(row: dict[str, float]) -> bool:
    """Whether a logged line shows a target without spread or features without dimensions."""
    return row.get("target_std", 1.0) < COLLAPSED_STD or row.get("feature_rank", 99.0) < COLLAPSED_RANK


def is_diverged(rows: list[dict[str, float]]) -> bool:
    """Whether the last logged loss is no number, or far above the first: in its size, since losses may be negative."""
    first, last = rows[0].get("loss", 0.0), rows[-1].get("loss", 0.0)
    highest = min(first + RISEN * max(abs(first), 1.0), LARGEST_LOSS)
    return not last <= highest  # nor is NaN


def _first_rank(rows: list[dict[str, float]]) -> float:
    return next((row["feature_rank"] for row in rows if "feature_rank" in row), 0.0)


def _signs(row: dict[str, float]) -> str:
    return f"target std {row.get('target_std', math.nan):.1e}, feature rank {row.get('feature_rank', math.nan):.1f}"


def _advice(config: Config | None) -> str:
    """What to change, as far as the configuration has it to change."""
    steps = []
    if config is not None and getattr(config.loss, "lam", 0.5) < 0.5:
        steps.append("raise loss.lam to 0.5")
    if config is not None and getattr(config.heads, "batchnorm", True) is False:
        steps.append("turn on heads.batchnorm")
    if config is not None and getattr(config.heads, "bottleneck_batchnorm", True) is False:
        steps.append("turn on heads.bottleneck_batchnorm")
    return ", or ".join([*steps, "lower optimizer.lr"])


def _calmer(config: Config | None) -> str:
    unclipped = config is not None and config.optimizer.clip is None
    return "lower optimizer.lr" + (", or set optimizer.clip" if unclipped else "")


def _since(rows: list[dict[str, float]]) -> int:
    """The first step of the unbroken run of collapsed lines at the end."""
    first = rows[-1]
    for row in reversed(rows):
        if not is_collapsed(row):
            break
        first = row
    return int(first["step"])
