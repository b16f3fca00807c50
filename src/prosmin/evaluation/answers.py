"""A classifier's answers for the test pictures, judged before and after temperature scaling."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from prosmin.evaluation.calibration import classification_metrics, fit_temperature, reliability, temperature_scale


def judge(logits: Tensor, labels: Tensor, *, temperature: float, seed: int) -> dict[str, float]:
    """All metrics of logits (N, C), and all but top-1, which cannot change, again as NAME_calibrated."""
    plain, calibrated = (
        classification_metrics(temperature_scale(logits, t), labels, seed=seed) for t in (1.0, temperature)
    )
    after = {f"{name}_calibrated": value for name, value in calibrated.items() if name != "top1"}
    return plain | after | {"temperature": temperature}


def diagrams(logits: Tensor, labels: Tensor, *, temperature: float) -> dict[str, Any]:
    """The reliability diagrams before and after."""
    return {
        "reliability": reliability(temperature_scale(logits, 1.0), labels),
        "reliability_calibrated": reliability(temperature_scale(logits, temperature), labels),
    }


def weigh(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """The temperature of least NLL on held-out labels and that NLL, by which learning rates are compared.

    Before temperature scaling the NLL would prefer a network that has hardly learned to one that is right more often
    but too sure. The NLL of a network that diverged is infinite.
    """
    if not bool(torch.isfinite(logits).all()):
        return 1.0, math.inf
    temperature = fit_temperature(logits, labels)
    return temperature, F.cross_entropy(logits / temperature, labels).item()
