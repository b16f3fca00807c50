"""A CUDA graph: the kernels of a piece of work, recorded once and then launched together.

The kernels of a small network take less time on a GPU than Python needs to launch them one by one. A graph reads its
inputs from the same memory in every run and writes its results to the same memory, so every input that changes between
runs has to be a tensor at a fixed address (training/step.py, `StaticDraws`).
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

WARM_UP = 3
"""Runs before recording: compilation, the choice of algorithms and first allocations cannot be recorded."""

Result = TypeVar("Result")


class Recorded(Generic[Result]):
    """A function without arguments: called normally a few times, then recorded, then replayed."""

    def __init__(self, function: Callable[[], Result]) -> None:
        self._function = function
        self._runs = 0
        self._side_stream: torch.cuda.Stream | None = None  # one for all runs: freed memory is cached for each stream
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Result | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether the next call overwrites the results of this one."""
        return self._graph is not None

    def __call__(self) -> Result:
        """The results of one more run."""
        if self._graph is None and self._runs < WARM_UP:
            self._runs += 1
            return self._warm_up()
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            # "thread_local": the threads that decode images may allocate memory meanwhile.
            with torch.cuda.graph(self._graph, stream=self._side_stream, capture_error_mode="thread_local"):
                self._result = self._function()
        self._graph.replay()
        assert self._result is not None
        return self._result

    def _warm_up(self) -> Result:
        """One run in a side stream, which recording requires."""
        self._side_stream = self._side_stream or torch.cuda.Stream()
        current = torch.cuda.current_stream()
        self._side_stream.wait_stream(current)
        with torch.cuda.stream(self._side_stream):
            result = self._function()
        current.wait_stream(self._side_stream)
        return result
