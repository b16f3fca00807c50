"""What happened to each test image, small enough to be kept in a file, and the difference of two methods by it."""

import base64
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtr, stdtrit

KEPT = {"knn": ("correct",), "linear": ("correct", "nll")}
"""By protocol, the arrays of RUN/results/PROTOCOL.npz with one value for each test image."""


def pack(values: np.ndarray) -> str:
    """Flags as bits, numbers in half precision; as text."""
    raw = np.packbits(values) if values.dtype == bool else values.astype(np.float16)
    return base64.b64encode(raw.tobytes()).decode()


def unpack(text: str, count: int) -> np.ndarray:
    """The values of `count` images as float64."""
    raw = base64.b64decode(text)
    if len(raw) == -(-count // 8):
        return np.unpackbits(np.frombuffer(raw, np.uint8), count=count).astype(np.float64)
    return np.frombuffer(raw, np.float16, count).astype(np.float64)


def read_outcomes(folder: Path) -> dict[str, Any]:
    """The packed arrays of a judged run by protocol, and the number of images."""
    found: dict[str, Any] = {}
    for protocol, names in KEPT.items():
        with np.load(folder / "results" / f"{protocol}.npz") as arrays:
            found[protocol] = {name: pack(arrays[name]) for name in names}
            found["images"] = len(arrays[names[0]])
    return found


@dataclass(frozen=True)
class Difference:
    """Mean of one method less that of another, with the half width of its 95 % interval and a two-sided p-value."""

    mean: float
    half: float
    p: float
    seeds: tuple[int, int]


def compare(one: Sequence[np.ndarray], two: Sequence[np.ndarray], *, draws: int = 2000, seed: int = 0) -> Difference:
    """Values per image, one array per seed of each method, all of the same images in the same order.

    The variance has two parts. Over images: a paired bootstrap, which draws the same images for both methods. Over
    seeds: the variance of each method's mean. Student's distribution has the degrees of freedom of Welch and
    Satterthwaite. With one seed of a method its part is 0: then the interval is about these weights, not the method.
    """
    a, b = np.mean(one, axis=0), np.mean(two, axis=0)
    gaps = a - b  # (N,)
    random = np.random.default_rng(seed)
    resampled = [gaps[random.integers(len(gaps), size=len(gaps))].mean() for _ in range(draws)]
    over_images = float(np.var(resampled))
    over_seeds = [
        (statistics.variance([float(x.mean()) for x in side]) / len(side), len(side) - 1)
        for side in (one, two)
        if len(side) > 1
    ]
    total = over_images + sum(part for part, _ in over_seeds)
    below = sum(part**2 / freedom for part, freedom in over_seeds)
    freedom = total**2 / below if below else math.inf
    mean, spread = float(gaps.mean()), math.sqrt(total)
    if spread == 0:
        return Difference(mean, 0.0, 1.0 if mean == 0 else 0.0, (len(one), len(two)))
    p = 2 * float(stdtr(min(freedom, 1e9), -abs(mean) / spread))
    half = float(stdtrit(min(freedom, 1e9), 0.975)) * spread
    return Difference(mean, half, p, (len(one), len(two)))
