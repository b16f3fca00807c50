"""Does a run forget the encoder it started from? The same images, seen by the start and by the current encoder.

The starting features are stored in the run folder, so that a continued run compares with the same start.
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

    def __init__(self, feed: Feed, config: Config, *, numbers: Tensor, start: Tensor) -> None:
        self._feed, self._config, self._numbers, self._start = feed, config, numbers, start

    def __call__(self, method: nn.Module) -> dict[str, float]:
        """The columns of metrics.jsonl; the method does not change."""
        now, numbers = current_features(method, self._feed, self._numbers, self._config)
        same = (numbers == self._numbers).to(now.device)  # an image may have become unreadable since
        start, now = self._start.to(now.device)[same], now[same]
        if not bool(now.isfinite().all()) or len(now) < 2:
            return {}
        return {"start_neighbours": float(neighbours_kept(start, now)), "start_cka": float(linear_cka(start, now))}


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
    with writing(folder / START) as part:
        save_file({"features": features, "numbers": numbers}, part)
    return Guard(feed, config, numbers=numbers, start=features)


def read_guard(feed: Feed, config: Config, folder: Path) -> Guard | None:
    """The guard of a run that continues; None if the run was started by a version without one."""
    file = folder / START
    if not file.exists():
        if config.training.guard:
            raise ProsminError(
                f"{folder} has no {START}, the features of its starting encoder. Put the file back, or continue with "
                "--training.guard 0."
            )
        return None
    try:
        stored = load_file(file)
        return Guard(feed, config, numbers=stored["numbers"], start=stored["features"])
    except (OSError, SafetensorError, KeyError) as error:
        raise ProsminError(
            f"{file}, the features of the starting encoder, cannot be read: {error}. Put it back, or remove it and "
            "continue with --training.guard 0."
        ) from None
