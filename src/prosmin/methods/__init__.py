"""The methods: views in, one loss per image out. docs/extending.md tells how to add one."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from prosmin import randomness
from prosmin.config import Config
from prosmin.data.views import Views
from prosmin.errors import ProsminError
from prosmin.methods.dino import DINO
from prosmin.methods.ibot import IBOT
from prosmin.methods.mocov3 import MoCoV3
from prosmin.methods.output import Draws, Embedding, Output
from prosmin.methods.prosmin import ProSMIN

__all__ = [
    "DINO",
    "IBOT",
    "METHODS",
    "Draws",
    "Embedding",
    "Method",
    "MoCoV3",
    "Observes",
    "Output",
    "ProSMIN",
    "build_method",
]


class Method(Protocol):
    """What the loop, the checkpoints and the encoder ask of a method (an nn.Module)."""

    online: nn.Module
    target: nn.Module
    spans_batch: bool
    """Whether an image's loss depends on the other images, so that a batch cannot be taken in parts."""

    def __call__(self, views: Views, draws: Draws) -> Output:
        """Score the views of a batch."""

    def update(self, statistics: dict[str, Tensor], *, momentum: float) -> None:
        """Follow the online network after its update."""

    def encode(self, x: Tensor) -> Embedding:
        """Embed evaluation views, (N, 3, h, w)."""


_ASKED = ("online", "target", "spans_batch", "update", "encode")


@runtime_checkable
class Observes(Protocol):
    """What a method may offer beside: what its forecasts were made for, so that they can be held against it."""

    def observe(self, x: Tensor) -> Tensor:
        """The embeddings that forecasts are scored against, of views (N, 3, h, w): (N, K) as `encode`'s mean."""


METHODS: dict[str, Callable[[Config], nn.Module]] = {
    "prosmin": ProSMIN,
    "dino": DINO,
    "ibot": IBOT,
    "mocov3": MoCoV3,
}


class _Float32Default:
    """In its block torch takes float32 where no dtype is named, whatever the program around it has set.

    That is one setting for all threads: the first to come in changes it, the last to leave puts it back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = torch.float32

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = torch.get_default_dtype()
                torch.set_default_dtype(torch.float32)
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                torch.set_default_dtype(self._before)


float32_default = _Float32Default()


def build_method(config: Config) -> nn.Module:
    """The method with the weights its seed gives, whatever was drawn before."""
    method = seeded(partial(METHODS[config.method.name], config), config)
    if missing := [name for name in _ASKED if not hasattr(method, name)]:
        raise ProsminError(
            f"The method {config.method.name} has no {', '.join(missing)}; asked of every method: {', '.join(_ASKED)} "
            "(docs/extending.md)."
        )
    return method


def seeded(build: Callable[[], nn.Module], config: Config) -> nn.Module:
    """What `build` makes of the random numbers that a configuration's seed gives for weights."""
    with float32_default, torch.random.fork_rng(devices=[]):
        torch.manual_seed(randomness.key(config.training.seed, 0, "weights"))
        return build()
