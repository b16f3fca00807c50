"""uncertainty: does the encoder know where its representation is wrong, and does its forecast hold what it promises?

Only the first question needs labels; without them the second and what moves the uncertainty remain.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from prosmin.encoder import UNCERTAINTY_VIEWS
from prosmin.encoder.detectors import fit_knn_distance
from prosmin.encoder.neighbours import nearest
from prosmin.evaluation.context import Context, sample
from prosmin.evaluation.forecasts import BETWEEN_VIEWS, make_forecasts, no_forecasts
from prosmin.evaluation.metrics.coverage import judge_coverage
from prosmin.evaluation.metrics.ranking import spearman
from prosmin.evaluation.metrics.retrieval import r_auroc, right_neighbours, risk_coverage
from prosmin.evaluation.metrics.skill import judge_skill
from prosmin.evaluation.protocol import Protocol, Result
from prosmin.evaluation.protocols.gallery import Ranked, gallery
from prosmin.evaluation.severity import severity_curves, sharpness

FORECAST, FITTED, WORSENED = 512, 256, 256  # images at most: held-out forecasts, constant scale, severities

Part = tuple[dict[str, float], dict[str, Any], dict[str, Any]]
"""Metrics, settings and curves."""


def run(context: Context) -> Result:
    """R-AUROC and risk against coverage beside rival uncertainties; calibration of the forecasts; what moves it.

    Where there are no labels to judge by, R-AUROC, recall and risk are absent and the settings say why.
    """
    uncertainty = context.uncertainty("test")
    distance = _distance(context)
    controls = {
        "sharpness": sharpness(context.sets["test"], context.encoder.config.views, device=context.encoder.device),
        "feature_norm": context.features("test").norm(dim=1),
    }
    scaled = context.has_scale
    metrics = {f"spearman_{name}": spearman(uncertainty, values).item() for name, values in controls.items()}
    settings: dict[str, Any] = {"uncertainty": "mean log scale" if scaled else "variance between views"}
    curves: dict[str, Any] = {}
    for part in (_calibration(context), _severity(context, scaled=scaled)):
        metrics, settings, curves = metrics | part[0], settings | part[1], curves | part[2]
    arrays = {"uncertainty": uncertainty.numpy()}
    sets: dict[str, dict[str, dict[str, float]]] = {}
    if context.unlabelled:
        settings["answer"] = f"not judged: {context.unlabelled}; R-AUROC, recall and risk against coverage need labels"
    else:
        rivals = {"uncertainty": uncertainty, "knn_distance": distance("test")}
        rivals |= {f"low_{name}": -values for name, values in controls.items()}
        if scaled:
            rivals[BETWEEN_VIEWS] = context.view_scores("test")[BETWEEN_VIEWS]
        judged, sets["test"], risk, correct = _answers(context, rivals)
        metrics, settings["answer"] = judged | metrics, "nearest training image"
        curves, arrays["correct"] = {"risk_coverage": risk} | curves, correct.numpy()
    strange = [Ranked(context.sets[name], distance(name)) for name in context.ood]
    return Result(
        metrics=metrics,
        settings=settings,
        sets=sets,
        curves=curves,
        arrays=arrays | gallery(Ranked(context.sets["test"], uncertainty), strange),
    )


def _distance(context: Context) -> Callable[[str], Tensor]:
    """The distance to the training images of each image of a set, (N,)."""
    distance = fit_knn_distance(context.placed("train"))
    return lambda name: distance(context.features(name)).cpu()


def _answers(
    context: Context, rivals: dict[str, Tensor]
) -> tuple[dict[str, float], dict[str, dict[str, float]], dict[str, Any], Tensor]:
    """Metrics of the uncertainty, the same of its rivals, the risk-coverage curve, and which answers are right."""
    features, labels = context.placed("test"), context.labels("test")
    right = right_neighbours(features, labels, context.groups("test")).cpu()
    _, neighbours = nearest(context.placed("train"), features, 1)
    correct = context.labels("train")[neighbours[:, 0].cpu()] == labels
    risks: dict[str, dict[str, Any]] = {name: risk_coverage(correct, values) for name, values in rivals.items()}
    sets = {name: {"r_auroc": r_auroc(right, rivals[name]), "aurc": risk["aurc"]} for name, risk in risks.items()}
    own = risks["uncertainty"]
    metrics = {"recall_at_1": right.double().mean().item(), "r_auroc": sets["uncertainty"]["r_auroc"]}
    metrics |= {name: value for name, value in own.items() if isinstance(value, float)}
    return metrics, sets, {name: own[name] for name in ("coverage", "risk")}, correct


def _calibration(context: Context) -> Part:
    """Coverage, PIT and energy-score skill of the forecasts; nothing where there is no forecast to hold to account."""
    encoder, seed = context.encoder, context.seed
    if reason := no_forecasts(encoder, has_scale=context.has_scale):
        return {}, {"calibration": f"not measured: {reason}"}, {}
    tenth = context.sets["train"].subset(context.held_out)
    test = sample(context.sets["test"], FORECAST, seed=seed, purpose="forecasts")
    known = sample(tenth, FITTED, seed=seed, purpose="constant scale")
    forecasts = make_forecasts(encoder, test, seed=seed)
    coverage, curves = judge_coverage(forecasts, seed=seed)
    skill, scale = judge_skill(forecasts, make_forecasts(encoder, known, seed=seed), seed=seed)
    settings = {
        "pictures": len(test),
        "forecast": "from a random global view",
        "observation": "the target network's centred embedding of another random global view",
        "joint": f"chi-square of {forecasts.mean.shape[-1]} degrees: the forecast's coordinates are independent",
        "constant_scale": scale,
        "reference": f"{len(known)} images of the held-out tenth of train",
    }
    return coverage | skill, {"calibration": settings}, curves


def _severity(context: Context, *, scaled: bool) -> Part:
    """The uncertainty of some test images, made worse step by step."""
    # Without a scale every image takes the passes of its views, beside the one that finds that there is none.
    count = WORSENED if scaled else WORSENED // (UNCERTAINTY_VIEWS + 1)
    pictures = sample(context.sets["test"], count, seed=context.seed, purpose="severity")
    found = severity_curves(context.encoder, pictures, seed=context.seed)
    metrics = {f"spearman_{kind}": curve["spearman"] for kind, curve in found.curves.items()}
    settings = {"pictures": len(pictures), "parameters": found.parameters, "left_out": found.left_out}
    return metrics, {"severity": settings}, {"severity": found.curves}


PROTOCOL = Protocol(
    name="uncertainty",
    title="Uncertainty",
    run=run,
    labels="used",
    ood="used",
    needs_held_out=True,
    default=True,
    paper=True,
    columns_without_labels=(
        "recall_at_1",
        "r_auroc",
        "coverage_90",
        "energy_skill",
        "spearman_crop",
        "spearman_blur",
        "spearman_noise",
    ),
    expected=True,
    headlines=("r_auroc",),
    headlines_without_labels=("energy_skill", "spearman_blur"),
    labels_show="R-AUROC, recall and risk against coverage of the uncertainty",
)
