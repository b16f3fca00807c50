"""ood: does a score, without labels or fine-tuning, tell strange pictures from test pictures of the training kind?"""

import torch
from torch import Tensor

from prosmin.evaluation.context import TRAINED, Context
from prosmin.evaluation.ood import DETECTORS, SCORES, ood_metrics
from prosmin.evaluation.result import Result

DEFAULT = "knn_distance"


def run(context: Context) -> Result:
    """Every label-free score for every set; `auroc` is the default score's mean over the sets."""
    inside = _scores(context, "test")
    outside = {name: _scores(context, name) for name in context.ood}
    sets = {
        name: {score: ood_metrics(inside[score], scores[score]) for score in inside}
        for name, scores in outside.items()
    }
    baselines = {}
    for subject in context.subjects:
        if subject != TRAINED:
            detector = DETECTORS[DEFAULT](context.features("train", subject))
            ins = detector(context.features("test", subject))
            found = [
                ood_metrics(ins, detector(context.features(name, subject)))["auroc"] for name in context.ood
            ]
            baselines[subject] = {"auroc": sum(found) / len(found)}
    metrics = {f"auroc_{score}": sum(sets[n][score]["auroc"] for n in sets) / len(sets) for score in inside}
    arrays = {f"in/{score}": values.numpy() for score, values in inside.items()}
    arrays |= {
        f"out/{name}/{score}": values.numpy()
        for name, scores in outside.items()
        for score, values in scores.items()
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


def _scores(context: Context, name: str) -> dict[str, Tensor]:
    """Every score of a set, higher is stranger: detectors on features, spread of the forecasts over views."""
    train, features = context.features("train"), context.features(name)
    scores = {score: fit(train)(features) for score, fit in DETECTORS.items()}
    views = context.views(name)
    mean = torch.stack([view.mean for view in views])  # (V, N, K)
    scales = [view.scale for view in views if view.scale is not None]
    if scales:
        scale = torch.stack(scales)
        scores |= {score: measure(mean, scale) for score, measure in SCORES.items()}
    return scores
