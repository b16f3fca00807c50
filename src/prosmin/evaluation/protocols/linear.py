"""linear: logistic regression on frozen features, its strength chosen on a held-out tenth of train."""

from typing import Any

from prosmin.evaluation.calibration import classification_metrics, reliability
from prosmin.evaluation.context import Context
from prosmin.evaluation.linear import linear_probe
from prosmin.evaluation.result import Result


def run(context: Context) -> Result:
    """Accuracy and calibration of the probe, as fitted and after temperature scaling."""
    trained, *baselines = context.subjects
    metrics, settings, curves = _score(context, trained)
    return Result(
        metrics=metrics,
        baselines={subject: _score(context, subject)[0] for subject in baselines},
        settings=settings,
        curves=curves,
    )


def _score(context: Context, subject: str) -> tuple[dict[str, float], dict[str, Any], dict[str, dict[str, list]]]:
    features, labels = context.features("test", subject), context.labels("test")
    probe = linear_probe(
        context.features("train", subject),
        context.labels("train"),
        classes=context.classes,
        seed=context.seed,
    )
    plain, calibrated = probe.probabilities(features), probe.probabilities(features, calibrated=True)
    metrics = classification_metrics(plain, labels, seed=context.seed)
    after = classification_metrics(calibrated, labels, seed=context.seed)
    metrics |= {f"{name}_calibrated": after[name] for name in ("nll", "ece", "ece_low", "ece_high", "brier")}
    curves = {
        "reliability": reliability(plain, labels),
        "reliability_calibrated": reliability(calibrated, labels),
    }
    return (
        metrics | {"temperature": probe.temperature},
        {"l2": probe.l2, "held_out": "a tenth of train"},
        curves,
    )
