"""The methods: views in, one loss per image out. docs/extending.md explains how to add one."""

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
    """What the loop, the checkpoints and the encoder need from a method (an nn.Module)."""

    online: nn.Module
    target: nn.Module
    spans_batch: bool
    """Whether an image's loss depends on the other images, so that a batch cannot be split."""

    def __call__(self, views: Views, draws: Draws) -> Output:
        """Score the views of a batch."""

    def update(self, statistics: dict[str, Tensor], *, momentum: float) -> None:
        """Update the target after an optimizer step of the online network."""

    def encode(self, x: Tensor) -> Embedding:
        """Embed evaluation views, (N, 3, h, w)."""


_REQUIRED = ("online", "target", "spans_batch", "update", "encode")


@runtime_checkable
class Observes(Protocol):
    """A method that forecasts: it also returns the embeddings to compare forecasts with."""

    def observe(self, x: Tensor) -> Tensor:
        """Views (N, 3, h, w) -> the target's embeddings (N, K), comparable to `encode`'s mean."""


METHODS: dict[str, Callable[[Config], nn.Module]] = {
    "prosmin": ProSMIN,
    "dino": DINO,
    "ibot": IBOT,
    "mocov3": MoCoV3,
}


class _Float32Default:
    """Within the block torch's default dtype is float32, whatever the calling program has set.

    The setting is shared by all threads: the first to enter changes it, the last to leave restores it.
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
    """The method named in the configuration; its initial weights depend on the seed alone."""
    method = seeded(partial(METHODS[config.method.name], config), config)
    if missing := [name for name in _REQUIRED if not hasattr(method, name)]:
        raise ProsminError(
            f"The method {config.method.name} has no {', '.join(missing)}; every method needs {', '.join(_REQUIRED)} "
            "(docs/extending.md)."
        )
    return method


def seeded(build: Callable[[], nn.Module], config: Config) -> nn.Module:
    """The network that `build` returns, initialised from the configuration's seed."""
    with float32_default, torch.random.fork_rng(devices=[]):
        torch.manual_seed(randomness.key(config.training.seed, 0, "weights"))
        return build()
