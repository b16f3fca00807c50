"""A CUDA graph: the kernels of a piece of work, recorded once and then launched as one.

A small network's kernels take a GPU less time than Python needs to launch them, and the GPU waits. A recorded piece
reads its inputs from the same memory every time and leaves its results in the same memory, so that whatever changes
from step to step has to be a tensor: `HeldDraws` are a method's draws in that form.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

from prosmin import randomness
from prosmin.methods.output import Draws, as_scalar

WARM_UP = 3
"""Runs before the recording: compiling, choosing algorithms and first allocations cannot be recorded."""

Result = TypeVar("Result")


class Recorded(Generic[Result]):
    """A function without arguments: run as it is a few times, then recorded, then replayed."""

    def __init__(self, function: Callable[[], Result]) -> None:
        self._function = function
        self._runs = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Result | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether results now lie in memory that the next call writes again."""
        return self._graph is not None

    def __call__(self) -> Result:
        """The results of one more run."""
        if self._graph is None and self._runs < WARM_UP:
            self._runs += 1
            return self._aside()
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            # Other threads, which decode pictures, may allocate memory meanwhile: only this one must not.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._result = self._function()
        self._graph.replay()
        assert self._result is not None
        return self._result

    def _aside(self) -> Result:
        """One run in a stream of its own, as is asked for before a recording."""
        current, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            result = self._function()
        current.wait_stream(aside)
        return result


class HeldDraws(Draws):
    """Draws whose keys and scalars stay in their places while their values go from step to step."""

    def __init__(self, seed: int, step: int, positions: Tensor, epoch: float) -> None:
        super().__init__(seed, step, positions, epoch)
        self.keys: dict[str, Tensor] = {}
        self.scalars: dict[str, tuple[Tensor, Callable[[float], float]]] = {}

    def move(self, step: int, epoch: float) -> None:
        """On to another step: every value is written into its place."""
        self.step, self.epoch = step, epoch
        for purpose, place in self.keys.items():
            place.fill_(randomness.key(self.seed, step, purpose))
        for place, of in self.scalars.values():
            place.fill_(of(epoch))

    def key(self, purpose: str) -> Tensor:
        """The key's place."""
        if purpose not in self.keys:
            key = randomness.key(self.seed, self.step, purpose)
            self.keys[purpose] = torch.full((), key, dtype=torch.int64, device=self.positions.device)
        return self.keys[purpose]

    def scalar(self, purpose: str, of: Callable[[float], float]) -> Tensor:
        """The number's place."""
        if purpose not in self.scalars:
            self.scalars[purpose] = (as_scalar(of(self.epoch), self.positions.device), of)
        return self.scalars[purpose][0]
