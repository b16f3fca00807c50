"""ood: does a score, without labels or fine-tuning, tell strange pictures from test pictures of the training kind?"""

import torch
from torch import Tensor

from prosmin.evaluation.context import TRAINED, Context
from prosmin.evaluation.ood import DETECTORS, SCORES, Detector, ood_metrics
from prosmin.evaluation.result import Result

DEFAULT = "knn_distance"


def run(context: Context) -> Result:
    """Every label-free score for every set; `auroc` is the default score's mean over the sets."""
    train = context.features("train")
    detectors = {name: fit(train) for name, fit in DETECTORS.items()}
    inside = _scores(context, "test", detectors)
    outside = {name: _scores(context, name, detectors) for name in context.ood}
    sets = {
        name: {score: ood_metrics(inside[score], scores[score]) for score in inside} for name, scores in outside.items()
    }
    baselines = {}
    for subject in context.subjects:
        if subject != TRAINED:
            detector = DETECTORS[DEFAULT](context.features("train", subject))
            ins = detector(context.features("test", subject))
            found = [ood_metrics(ins, detector(context.features(name, subject)))["auroc"] for name in context.ood]
            baselines[subject] = {"auroc": sum(found) / len(found)}
    metrics = {f"auroc_{score}": sum(sets[n][score]["auroc"] for n in sets) / len(sets) for score in inside}
    arrays = {f"in/{score}": values.numpy() for score, values in inside.items()}
    arrays |= {
        f"out/{name}/{score}": values.numpy() for name, scores in outside.items() for score, values in scores.items()
    }
    return Result(
        metrics={"auroc": metrics[f"auroc_{DEFAULT}"], **metrics},
        baselines=baselines,
        sets=sets,
        settings={
            "default_score": DEFAULT,
            "in_distribution": "test",
            "positive_class": "out of distribution",
        },
        arrays=arrays,
    )


def _scores(context: Context, name: str, detectors: dict[str, Detector]) -> dict[str, Tensor]:
    """Every score of a set, higher is stranger: detectors on features, spread of the forecasts over views."""
    features = context.features(name)
    scores = {score: detector(features) for score, detector in detectors.items()}
    views = context.views(name)
    mean = torch.stack([view.mean for view in views])  # (V, N, K)
    scales = [view.scale for view in views if view.scale is not None]
    if scales:
        scale = torch.stack(scales)
        scores |= {score: measure(mean, scale) for score, measure in SCORES.items()}
    return scores
