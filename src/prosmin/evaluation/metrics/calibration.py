"""Accuracy, likelihood and calibration of class probabilities, before and after temperature scaling."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from prosmin.errors import ProsminError
from prosmin.evaluation.metrics.bootstrap import interval, times_drawn
from prosmin.randomness import generator

FLOOR = 1e-12
"""Smallest probability in the logarithm of the NLL: an image adds at most 27.6."""

TEMPERATURES = (0.01, 100.0)
"""Range of a fitted temperature: logits that separate all labels, or none, have no optimum."""

_SIMULATIONS = 200
_ENTRIES = 2**22  # probabilities handled at once by the class-wise error


def classification_metrics(
    probabilities: Tensor, labels: Tensor, *, bins: int = 15, seed: int = 0, bootstrap: int = 200
) -> dict[str, float]:
    """All metrics of class probabilities (N, C) against labels (N,).

    top1: share of correct answers, 0 to 1. nll: mean of -ln p(label), p at least FLOOR.
    nll_low, nll_high: its 95 % interval by the standard error over the images.
    ece: top-label calibration error in equal-width bins, open on the left and closed on the right.
    ece_low, ece_high: 95 % bootstrap interval of the ece.
    ece_floor: mean ece of a perfectly calibrated model with these confidences at this N.
    adaptive_ece: the ece in bins of equal count.
    classwise_calibration_error: the binned error of every class's probability, averaged over classes.
    brier: squared error summed over classes.
    """
    _check(probabilities, labels)
    labels = labels.to(probabilities.device)
    confidence, correct = _top_label(probabilities, labels)
    gap, within = confidence - correct, _members(_equal_width(confidence, bins), bins)
    ece = _summed_error(gap @ within, len(gap)).item()
    low, high = _ece_interval(ece, gap, within, seed=seed, draws=bootstrap)
    own = probabilities.gather(1, labels[:, None])[:, 0].double()
    square = probabilities.double().square().sum(1)
    costs = -own.clamp_min(FLOOR).log()
    nll, half = costs.mean().item(), 1.96 * costs.std(correction=0).item() / len(costs) ** 0.5
    return {
        "top1": correct.mean().item(),
        "nll": nll,
        "nll_low": nll - half,
        "nll_high": nll + half,
        "ece": ece,
        "ece_low": low,
        "ece_high": high,
        "ece_floor": _ece_floor(confidence, within, seed=seed),
        "adaptive_ece": _summed_error(gap @ _members(_equal_mass(confidence, bins), bins), len(gap)).item(),
        "classwise_calibration_error": _classwise_error(probabilities, labels, bins),
        "brier": (square - 2 * own + 1).mean().item(),
    }


def image_outcomes(probabilities: Tensor, labels: Tensor) -> dict[str, np.ndarray]:
    """For each image whether its top class is correct, and -ln p(label): their means are `top1` and `nll`."""
    _check(probabilities, labels)
    labels = labels.to(probabilities.device)
    own = probabilities.gather(1, labels[:, None])[:, 0].double()
    return {
        "correct": probabilities.argmax(1).eq(labels).cpu().numpy(),
        "nll": -own.clamp_min(FLOOR).log().cpu().numpy(),
    }


def reliability(probabilities: Tensor, labels: Tensor, *, bins: int = 15) -> dict[str, list]:
    """The bins of a reliability diagram: edges, confidence, accuracy, count; None where a bin is empty."""
    _check(probabilities, labels)
    confidence, correct = _top_label(probabilities, labels.to(probabilities.device))
    rows = torch.stack([torch.ones_like(confidence), confidence, correct])
    counts, *totals = (rows @ _members(_equal_width(confidence, bins), bins)).tolist()
    means = [[t / n if n else None for t, n in zip(total, counts, strict=True)] for total in totals]
    return {
        "edges": _edges(bins).tolist(),
        "confidence": means[0],
        "accuracy": means[1],
        "count": [int(n) for n in counts],
    }


def temperature_scale(logits: Tensor, temperature: float) -> Tensor:
    """softmax(logits / temperature) over classes: (N, C) -> (N, C)."""
    if not temperature > 0:
        raise ProsminError(f"The temperature is {temperature}; allowed: a number above 0.")
    return torch.softmax(logits / temperature, dim=-1)


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature of least NLL, within TEMPERATURES: (N, C), (N,) -> T.

    The NLL is convex in a = 1/T with slope mean(sum_c p_c logit_c - logit_label), so the slope's only change
    of sign is found by halving an interval of log a. Log-probabilities serve as logits.
    Fit it on images the model was not trained on.
    """
    _check_shapes(logits, labels, "logits")
    logits = logits.double()
    own = logits.gather(1, labels.to(logits.device)[:, None])[:, 0].mean()
    low, high = 1 / TEMPERATURES[1], 1 / TEMPERATURES[0]
    while high / low > 1 + 1e-9:
        middle = (low * high) ** 0.5
        slope = (torch.softmax(middle * logits, dim=1) * logits).sum(1).mean() - own
        low, high = (low, middle) if slope > 0 else (middle, high)
    return (low * high) ** -0.5


def _check_shapes(values: Tensor, labels: Tensor, name: str) -> None:
    if values.ndim != 2 or labels.shape != values.shape[:1] or len(labels) == 0:
        raise ProsminError(
            f"The {name} have shape {tuple(values.shape)} and the labels {tuple(labels.shape)}; "
            "allowed: (N, C) and (N,) with at least one image."
        )
    first, last = int(labels.min()), int(labels.max())
    if first < 0 or last >= values.shape[1]:
        raise ProsminError(
            f"The labels run from {first} to {last}, but there are {values.shape[1]} classes; "
            "allowed: 0 to one less than the number of classes. Do both splits have the same classes?"
        )
    if not bool(torch.isfinite(values).all()):
        raise ProsminError(f"The {name} contain values that are not finite; look for NaN in the features.")


def _check(probabilities: Tensor, labels: Tensor) -> None:
    _check_shapes(probabilities, labels, "probabilities")
    if bool((probabilities < 0).any()) or float((probabilities.sum(1) - 1).abs().max()) > 1e-3:
        raise ProsminError("The probabilities of an image must be 0 or more and sum to 1; give a softmax, not logits.")


def _top_label(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Confidence and correctness of the top class, (N,) each."""
    confidence, prediction = probabilities.max(dim=1)
    return confidence.double().clamp_max(1.0), (prediction == labels).double()


def _edges(bins: int) -> Tensor:
    return torch.linspace(0, 1, bins + 1, dtype=torch.float64)


def _equal_width(values: Tensor, bins: int) -> Tensor:
    """The bin of each value, open on the left and closed on the right; 0 is in the first."""
    return torch.bucketize(values, _edges(bins)[1:-1].to(values.device))


def _equal_mass(values: Tensor, bins: int) -> Tensor:
    """The bin of each value's middle rank; equal values share a bin."""
    ordered = values.sort().values
    before, up_to = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return (before + up_to) * bins // (2 * len(values))


def _members(bin_of: Tensor, bins: int) -> Tensor:
    """1 where an image is in a bin: (N, bins). Sums are products with it: bincount varies on a GPU."""
    return (bin_of[:, None] == torch.arange(bins, device=bin_of.device)).double()


def _summed_error(sums: Tensor, count: int) -> Tensor:
    """sum over bins of |sum of gaps in the bin| / N, with gap = confidence - correct: (..., bins) -> (...)."""
    return sums.abs().sum(-1) / count


def _ece_interval(ece: float, gap: Tensor, within: Tensor, *, seed: int, draws: int) -> tuple[float, float]:
    """2.5 % and 97.5 % points of the ECE over resampled test sets, shifted so that their mean is the measured ECE.

    Resampling adds the noise that lifts the ECE above zero a second time. Without the shift, the interval of a
    well calibrated model would often lie above its estimate.
    """
    if draws < 2:
        raise ProsminError(f"The bootstrap has {draws} draws; allowed: 2 or more.")
    times = times_drawn(len(gap), draws=draws, seed=seed, purpose="ece bootstrap", device=gap.device)
    resampled = _summed_error(times @ (gap[:, None] * within), len(gap)).cpu()  # (draws,)
    low, high = interval(resampled - resampled.mean() + ece)
    return max(low, 0.0), high


def _ece_floor(confidence: Tensor, within: Tensor, *, seed: int) -> float:
    """Mean ECE when every answer is right with exactly the probability its confidence states, at this N."""
    correct = _chances(len(confidence), seed, confidence.device) < confidence  # (simulations, N)
    return _summed_error(confidence @ within - correct.double() @ within, len(confidence)).mean().item()


@lru_cache(maxsize=2)
def _chances(count: int, seed: int, device: torch.device) -> Tensor:
    """The uniform numbers of the simulated answers of N images, cached as those of the bootstrap are."""
    random = generator(seed, 0, "ece floor")
    return torch.rand(_SIMULATIONS, count, generator=random, dtype=torch.float64).to(device)


def _classwise_error(probabilities: Tensor, labels: Tensor, bins: int) -> float:
    """The binned error of p(c) against label = c, averaged over the classes c."""
    count, classes = probabilities.shape
    labels = labels.cpu()
    total, step = 0.0, max(1, _ENTRIES // count)
    for first in range(0, classes, step):
        part = probabilities[:, first : first + step].double().cpu().contiguous()  # (N, c)
        column = torch.arange(part.shape[1])
        gap = part - (labels[:, None] == first + column).double()
        slot = _equal_width(part, bins) + column * bins
        total += torch.bincount(slot.flatten(), weights=gap.flatten(), minlength=bins).abs().sum().item()
    return total / (count * classes)


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Logits (N, C) of the test images, the temperature fitted on other images, and how both were chosen."""

    logits: Tensor
    temperature: float
    settings: dict[str, Any]

    def metrics(self, labels: Tensor, *, seed: int) -> dict[str, float]:
        """All metrics before and, except top-1, which cannot change, as NAME_calibrated after temperature scaling."""
        plain, calibrated = (
            classification_metrics(temperature_scale(self.logits, t), labels, seed=seed)
            for t in (1.0, self.temperature)
        )
        after = {f"{name}_calibrated": value for name, value in calibrated.items() if name != "top1"}
        return plain | after | {"temperature": self.temperature}

    def outcomes(self, labels: Tensor) -> dict[str, np.ndarray]:
        """What happens to each image, before temperature scaling."""
        return image_outcomes(temperature_scale(self.logits, 1.0), labels)

    def diagrams(self, labels: Tensor) -> dict[str, Any]:
        """The reliability diagrams before and after."""
        return {
            "reliability": reliability(temperature_scale(self.logits, 1.0), labels),
            "reliability_calibrated": reliability(temperature_scale(self.logits, self.temperature), labels),
        }


def calibrated_nll(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """The temperature of least NLL on held-out labels, and that NLL; infinite if the network diverged.

    Learning rates are compared by it. Before temperature scaling, the NLL would prefer a network that has hardly
    learned to one that is right more often but overconfident.
    """
    if not bool(torch.isfinite(logits).all()):
        return 1.0, math.inf
    temperature = fit_temperature(logits, labels)
    return temperature, F.cross_entropy(logits / temperature, labels).item()


def choose_rate(
    logits: Mapping[float, Tensor], labels: Tensor, *, training: str
) -> tuple[float, float, dict[str, Any]]:
    """The learning rate whose held-out logits have the least calibrated NLL, its temperature, and the settings."""
    tried = {rate: calibrated_nll(rows, labels) for rate, rows in logits.items()}
    rate = min(tried, key=lambda rate: tried[rate][1])
    temperature, nll = tried[rate]
    if not math.isfinite(nll):
        raise ProsminError(
            f"{training} diverged at every learning rate of {', '.join(map(str, tried))}; "
            "check the encoder's weights for NaN."
        )
    return rate, temperature, {"lr": rate, "lr_tried": {str(rate): round(nll, 4) for rate, (_, nll) in tried.items()}}
