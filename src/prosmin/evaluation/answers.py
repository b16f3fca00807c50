"""A classifier's answers for the test pictures, judged before and after temperature scaling."""

from typing import Any

from torch import Tensor

from prosmin.evaluation.calibration import classification_metrics, reliability, temperature_scale


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
