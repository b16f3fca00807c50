"""A CUDA graph: the kernels of a piece of work, recorded once and then launched as one.

A small network's kernels take a GPU less time than Python needs to launch them, and the GPU waits. A recorded piece
reads its inputs from the same memory every time and leaves its results in the same memory, so that whatever changes
from run to run has to be a tensor of its own: see `HeldDraws` for a method's draws in that form.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

WARM_UP = 3
"""Runs before the recording: compiling, choosing algorithms and first allocations cannot be recorded."""

Result = TypeVar("Result")


class Recorded(Generic[Result]):
    """A function without arguments: run as it is a few times, then recorded, then replayed."""

    def __init__(self, function: Callable[[], Result]) -> None:
        self._function = function
        self._runs = 0
        self._aside: torch.cuda.Stream | None = None  # one for all: freed memory is kept apart for every stream
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
            return self._run_aside()
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            # Other threads, which decode images, may allocate memory meanwhile: only this one must not.
            with torch.cuda.graph(self._graph, stream=self._aside, capture_error_mode="thread_local"):
                self._result = self._function()
        self._graph.replay()
        assert self._result is not None
        return self._result

    def _run_aside(self) -> Result:
        """One run in a stream of its own, as is asked for before a recording."""
        self._aside = self._aside or torch.cuda.Stream()
        current = torch.cuda.current_stream()
        self._aside.wait_stream(current)
        with torch.cuda.stream(self._aside):
            result = self._function()
        current.wait_stream(self._aside)
        return result
