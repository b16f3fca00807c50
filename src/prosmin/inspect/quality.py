"""Which images are too bad to use: dark, bright, blurry, nearly empty, of an odd size or shape, without colour.

`measure` takes a few numbers from each decoded image, `find_quality_issues` compares them with fixed limits and, where
only the folder can say what is normal, with the rest of the folder. benchmarks/inspect_quality.py says on which images
the limits were chosen, and compares this file with cleanvision on others.
"""

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

DARK, DARK_MEAN = 0.32, 0.15
"""An image is dark if 95 % of its pixels are below the first limit or their mean is below the second; 1 is white."""
BRIGHT, BRIGHT_MEAN = 0.65, 0.88
"""An image is bright if 95 % of its pixels are above the first limit or their mean is above the second."""
LEAST_CONTRAST = 0.025
"""Standard deviation of the colours in a small version: below it there is next to nothing to see."""
SOFT, HOPELESS = 0.5, 0.28
"""Sharpness below which an image may be blurry, and below which it needs little evidence from the folder."""
DEVIATIONS = 3.0
"""A soft image is blurry if it is this many robust standard deviations below the folder's median."""
LEAST_COLOUR = 0.03
"""Difference between the colour channels: below it an image is grey."""
IQR_FACTOR, LEAST_FACTOR = 3.0, 2.0
"""An odd size or aspect ratio is this many interquartile ranges outside the quartiles, and differs by this factor."""

_SMALL = 64  # longer side of the version that shows contrast and colour but no noise
_ROUNDING = 3.0  # grey levels: rounding and compression make differences of this size in an empty image


def measure(picture: Tensor) -> dict[str, float]:
    """Numbers that tell the quality of an image: uint8 (3, H, W) -> brightness, contrast, sharpness and colour.

    The brightness of a pixel is that of its brightest channel and its whiteness that of its darkest one: a red flower
    is neither dark nor white. 5 % of the pixels are below `least_white`, and 5 % above `brightest`. All measures except
    `sharpness` lie between 0 and 1.
    """
    image = Image.fromarray(np.ascontiguousarray(picture.permute(1, 2, 0).numpy()))
    small = np.asarray(image.reduce(math.ceil(max(image.size) / _SMALL)), dtype=np.float32).reshape(-1, 3) / 255
    brightness, whiteness = small.max(axis=1), small.min(axis=1)
    return {
        "brightness": float(brightness.mean()),
        "brightest": float(np.quantile(brightness, 0.95)),
        "whiteness": float(whiteness.mean()),
        "least_white": float(np.quantile(whiteness, 0.05)),
        "contrast": float(small.std(axis=0).max()),
        "sharpness": _sharpness(np.asarray(image.convert("L"))),
        "colour": float(np.quantile(brightness - whiteness, 0.99)),
    }


def _sharpness(luma: NDArray[np.uint8]) -> float:
    """Strength of the Laplacian over the geometric mean of gradient and contrast: uint8 (H, W) -> 0 to about 3.

    The value that 1 % of the pixels exceed stands for each: the strongest edges tell blur from an out-of-focus
    background, which covers most of many good photographs. Laplacian over gradient is one over the width of an edge.
    Laplacian over contrast also counts how common edges are, and is less sensitive to noise.
    """
    padded = np.pad(luma, 1, mode="edge").astype(np.int16)
    inner = padded[1:-1, 1:-1]
    left, right, above, below = padded[1:-1, :-2], padded[1:-1, 2:], padded[:-2, 1:-1], padded[2:, 1:-1]
    laplacian = _ranked(np.abs(4 * inner - left - right - above - below), 0.99)
    gradient = _ranked(np.maximum(np.abs(right - left), np.abs(below - above)), 0.99)
    contrast = _ranked(inner, 0.99) - _ranked(inner, 0.01)
    return laplacian / math.sqrt((gradient + _ROUNDING) * (contrast + _ROUNDING))


def _ranked(values: NDArray[np.int16], share: float) -> float:
    """The value that this share of all is below; twenty times as fast as np.quantile, which converts to float64."""
    rank = int(share * values.size)
    return float(np.partition(values, rank, axis=None)[rank])


def find_quality_issues(
    measures: dict[str, NDArray[np.float64]], sizes: NDArray[np.int64]
) -> list[tuple[int, str, float]]:
    """Row, kind and score of every issue: arrays (N,) of `measure`, heights and widths (N, 2). Larger is worse.

    A score says how far beyond its limit an image is, from 0 to 1; for an odd size or aspect ratio it is the logarithm
    of the factor to the median, to base 2.
    """
    if len(sizes) == 0:
        return []
    dark = np.maximum(_shortfall(measures["brightest"], DARK), _shortfall(measures["brightness"], DARK_MEAN))
    bright = np.maximum(
        _shortfall(1 - measures["least_white"], 1 - BRIGHT), _shortfall(1 - measures["whiteness"], 1 - BRIGHT_MEAN)
    )
    low_information = _shortfall(measures["contrast"], LEAST_CONTRAST)
    # Edges and colours vanish in images that are almost black, white or empty: one issue names the cause.
    visible = (dark <= 0) & (bright <= 0) & (low_information <= 0)
    sharpness = measures["sharpness"]
    blurry = np.where(low_information <= 0, _shortfall(sharpness, _blurry_below(sharpness)), 0)
    greyscale = np.where(visible, _shortfall(measures["colour"], LEAST_COLOUR), 0)
    if np.mean(greyscale > 0) > 0.5:
        greyscale[:] = 0  # in a folder of grey images it is the rule
    height, width = np.log2(np.maximum(sizes, 1)).T
    scores = {
        "dark": dark,
        "bright": bright,
        "blurry": blurry,
        "low_information": low_information,
        "odd_size": _oddness((height + width) / 2),
        "odd_aspect_ratio": _oddness(np.abs(height - width)),
        "greyscale": greyscale,
    }
    return [(int(row), kind, float(score[row])) for kind, score in scores.items() for row in np.flatnonzero(score > 0)]


def _shortfall(values: NDArray[np.float64], limit: float) -> NDArray[np.float64]:
    """How far values are below a limit, as a share of it; 0 or less for those that are not."""
    return (limit - values) / limit


def _blurry_below(sharpness: NDArray[np.float64]) -> float:
    """The sharpness below which images of this folder are blurry: (N,) -> limit.

    What is unusual depends on the folder: enlarged images are all soft, and a folder of many sources varies more.
    """
    logarithm = np.log(np.maximum(sharpness, 1e-3))
    median = np.median(logarithm)
    deviation = 1.4826 * np.median(np.abs(logarithm - median))  # of a normal distribution, the standard deviation
    unusual = float(
        np.exp(median - DEVIATIONS * max(deviation, 0.1))
    )  # at least 0.1: in equal images nothing stands out
    return max(min(SOFT, unusual), min(HOPELESS, float(np.quantile(sharpness, 0.75)) / 2), 1e-6)


def _oddness(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distance to the median of the values that are far outside the quartiles, 0 for all others: logarithms (N,)."""
    lower, median, upper = np.quantile(values, (0.25, 0.5, 0.75))
    margin = IQR_FACTOR * (upper - lower)
    distance = np.abs(values - median)
    odd = (values < lower - margin) | (values > upper + margin)
    return np.where(odd & (distance >= math.log2(LEAST_FACTOR)), distance, 0)
