"""Times: warmed up, synchronised, medians of repeats."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

MOST_CALLS = 50
"""Calls a repeat makes at most."""


class Timing(NamedTuple):
    """Seconds of one call: the median of the repeats, the fastest and the slowest of them."""

    median: float
    lowest: float
    highest: float
    repeats: int
    calls: int  # in a repeat

    def row(self, pictures: int) -> dict[str, Any]:
        """The numbers of a call that works on so many pictures, as they are saved."""
        return {
            "ms": round(1e3 * self.median, 3),
            "ms_lowest": round(1e3 * self.lowest, 3),
            "ms_highest": round(1e3 * self.highest, 3),
            "images_per_second": round(pictures / self.median, 1),
            "repeats": self.repeats,
            "calls": self.calls,
        }


def measure(
    run: Callable[[], object],
    device: torch.device,
    *,
    warmup: int = 3,
    repeats: int = 5,
    seconds: float = 0.5,
    limit: float = 60.0,
) -> Timing:
    """The time of `run`.

    A repeat is as many calls as fill `seconds`, with one wait at its end: in training, too, a GPU works while the
    host prepares the next call. After `limit` seconds no other repeat begins.
    """
    for _ in range(warmup):
        run()
    calls = min(MOST_CALLS, max(1, round(seconds / elapsed(run, device))))
    began, times = time.perf_counter(), []
    for _ in range(repeats):
        times.append(elapsed(run, device, calls=calls) / calls)
        if time.perf_counter() - began > limit:
            break
    return summarise(times, calls=calls)


def summarise(times: list[float], *, calls: int) -> Timing:
    """What is told of the repeats' seconds a call."""
    return Timing(statistics.median(times), min(times), max(times), len(times), calls)


def elapsed(run: Callable[[], object], device: torch.device, *, calls: int = 1) -> float:
    """Seconds that `calls` calls take, until the device has done all of them."""
    synchronise(device)
    began = time.perf_counter()
    for _ in range(calls):
        run()
    synchronise(device)
    return time.perf_counter() - began


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
