"""Does a run forget the encoder it started from? The same images, seen by the start and by the current encoder.

Its features and its weights are stored in the run folder, so that a continued run has the same start. With
training.guard the encoder is the average of the starting and the last weights that keeps enough of the start (WiSE-FT,
Wortsman et al., 2022).
"""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from prosmin.config import Config
from prosmin.data.stream import Feed
from prosmin.errors import ProsminError
from prosmin.files import writing
from prosmin.randomness import generator
from prosmin.training.features import current_features

START = "start.safetensors"
_WEIGHTS = "online.backbone."  # how the names of the starting weights begin
SHARES = 20
"""Averages that are tried: the last weights have a share of 20/20, 19/20, ... 0."""
SAMPLE = 1_000
NEIGHBOURS = 10
PER_RUN = 20
"""Comparisons in a run, if training.guard_every does not say otherwise."""


def neighbours_kept(start: Tensor, now: Tensor) -> Tensor:
    """The share of each image's nearest neighbours by cosine that stay its neighbours: (N, D), (N, E) -> ().

    10 neighbours, or a tenth of fewer than 100 other images, so that chance stays below about a tenth.
    """
    others = len(start) - 1
    k = min(NEIGHBOURS, max(1, others // 10))
    first, second = (_nearest(x, k) for x in (start, now))  # (N, k)
    return (first[:, :, None] == second[:, None, :]).any(-1).double().mean()


def _nearest(x: Tensor, k: int) -> Tensor:
    unit = F.normalize(x.double(), dim=1)
    cosines = unit @ unit.T
    return cosines.fill_diagonal_(-torch.inf).topk(k, dim=1).indices


def linear_cka(x: Tensor, y: Tensor) -> Tensor:
    """||Y'X||^2 / (||X'X|| ||Y'Y||) of centred features, Frobenius norms: (N, D), (N, E) -> ().

    Linear centred kernel alignment (Kornblith et al., 2019): 1 for features that differ by a rotation and a factor.
    """
    x, y = (z.double() - z.double().mean(0) for z in (x, y))
    size = (x.T @ x).norm() * (y.T @ y).norm()
    return (y.T @ x).square().sum() / size.clamp_min(1e-30)


class Guard:
    """Compares the current encoder with the start on a fixed sample of the training images."""

    def __init__(self, feed: Feed, config: Config, stored: dict[str, Tensor]) -> None:
        self._feed, self._config, self._numbers, self._start = feed, config, stored["numbers"], stored["features"]
        self._weights = {name: tensor for name, tensor in stored.items() if name.startswith(_WEIGHTS)}

    def __call__(self, method: nn.Module) -> dict[str, float]:
        """The columns of metrics.jsonl; the method does not change."""
        now, numbers = current_features(method, self._feed, self._numbers, self._config)
        same = (numbers == self._numbers).to(now.device)  # an image may have become unreadable since
        start, now = self._start.to(now.device)[same], now[same]
        if not bool(now.isfinite().all()) or len(now) < 2:
            return {}
        return {"start_neighbours": float(neighbours_kept(start, now)), "start_cka": float(linear_cka(start, now))}

    @torch.no_grad()
    def average(self, method: nn.Module, *, limit: float) -> tuple[float, float]:
        """Move the backbone no further towards its start than the limit needs.

        Returns the share of the last weights, and that of the starting encoder's neighbours which the result keeps.
        """
        state = method.state_dict()
        last = {name: state[name].clone() for name in self._weights if state[name].is_floating_point()}
        for share in (tried / SHARES for tried in range(SHARES, -1, -1)):
            for name, tensor in last.items():
                start = self._weights[name].to(tensor.device)
                state[name].copy_(start.lerp(tensor, share) if share else start)  # lerp makes NaN of an infinite weight
            kept = self(method).get("start_neighbours", 0.0)
            if kept >= limit:
                break
        return share, kept


def guard_every(config: Config, steps: int) -> int:
    """Steps between comparisons in a run of so many steps."""
    return config.training.guard_every or max(1, round(steps / PER_RUN))


def open_guard(method: nn.Module, feed: Feed, config: Config, folder: Path, *, is_new: bool) -> Guard | None:
    """The guard of a run that starts or continues; None for one that a version without guards started."""
    return make_guard(method, feed, config, folder) if is_new else read_guard(feed, config, folder)


def make_guard(method: nn.Module, feed: Feed, config: Config, folder: Path) -> Guard:
    """The guard of a run that starts: the starting encoder's features are stored in its folder."""
    draw = torch.randperm(len(feed), generator=generator(0, 0, "guard"))[:SAMPLE].sort().values
    features, numbers = current_features(method, feed, draw, config)
    if not bool(features.isfinite().all()):
        raise ProsminError("The starting encoder gives features that are not finite. Choose other backbone.weights.")
    numbers, place = torch.unique(numbers, return_inverse=True)  # an unreadable image stands for another in the sample
    first = torch.full_like(numbers, len(place)).scatter_reduce_(0, place, torch.arange(len(place)), "amin")
    features = features.cpu()[first].contiguous()
    weights = {name: tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)  # training changes the others
               for name, tensor in method.state_dict().items() if name.startswith(_WEIGHTS)}  # fmt: skip
    stored = {"features": features, "numbers": numbers, **weights}
    with writing(folder / START) as part:
        save_file(stored, part)
    return Guard(feed, config, stored)


def read_guard(feed: Feed, config: Config, folder: Path) -> Guard | None:
    """The guard of a run that continues; None if the run was started by a version without one."""
    file = folder / START
    if not file.exists():
        if config.training.guard:
            raise ProsminError(
                f"{folder} has no {START}, its starting encoder. Put it back, or continue with --training.guard 0."
            )
        return None
    try:
        return Guard(feed, config, load_file(file))
    except (OSError, SafetensorError, KeyError) as error:
        raise ProsminError(
            f"{file}, the starting encoder, cannot be read: {error}. Put it back, or remove it and "
            "continue with --training.guard 0."
        ) from None
