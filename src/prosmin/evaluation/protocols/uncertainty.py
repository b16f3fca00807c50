"""uncertainty: does it predict where the representation is wrong, are the forecasts calibrated, what does it react to?

Only the first question needs labels.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from prosmin.encoder import UNCERTAINTY_VIEWS
from prosmin.encoder.detectors import SURPRISES, fit_knn_distance
from prosmin.encoder.neighbourhood import Neighbourhood
from prosmin.encoder.neighbours import nearest
from prosmin.evaluation.context import Context, sample
from prosmin.evaluation.forecasts import BETWEEN_VIEWS, make_forecasts, no_forecasts, radius_forecasts
from prosmin.evaluation.metrics.coverage import judge_coverage
from prosmin.evaluation.metrics.ranking import spearman
from prosmin.evaluation.metrics.retrieval import r_auroc, right_neighbours, risk_coverage
from prosmin.evaluation.metrics.skill import judge_skill
from prosmin.evaluation.protocol import Protocol, Result
from prosmin.evaluation.protocols.gallery import Ranked, gallery
from prosmin.evaluation.severity import severity_curves, sharpness

FORECAST, FITTED, WORSENED = 512, 256, 256  # images at most: test forecasts, reference forecasts, severities

Part = tuple[dict[str, float], dict[str, Any], dict[str, Any]]
"""Metrics, settings and curves."""


def run(context: Context) -> Result:
    """R-AUROC and risk against coverage, also of other scores; calibration of the forecasts; reaction to severity.

    Without labels, R-AUROC, recall and risk are missing, and the settings say why.
    """
    uncertainty = context.uncertainty("test")
    distance = _distance(context)
    controls = {
        "sharpness": sharpness(context.sets["test"], context.encoder.config.views, device=context.encoder.device),
        "feature_norm": context.features("test").norm(dim=1),
    }
    scaled = context.has_scale
    metrics = {f"spearman_{name}": spearman(uncertainty, values).item() for name, values in controls.items()}
    forecast = "mean log scale" if scaled else "variance between views"
    alone = context.encoder.known.images is None  # there are no images to compare with: the forecast's uncertainty
    settings: dict[str, Any] = {"uncertainty": forecast if alone else context.encoder.scores["uncertainty"]}
    curves: dict[str, Any] = {}
    for part in (_calibration(context), _severity(context, in_views=alone and not scaled)):
        metrics, settings, curves = metrics | part[0], settings | part[1], curves | part[2]
    arrays = {"uncertainty": uncertainty.numpy()}
    sets: dict[str, dict[str, dict[str, float]]] = {}
    if context.unlabelled:
        settings["answer"] = f"not measured: {context.unlabelled}; R-AUROC, recall and risk need labels"
    else:
        scores = {"uncertainty": uncertainty, "knn_distance": distance("test"), **_around(context)}
        scores |= {f"low_{name}": -values for name, values in controls.items()}
        if scaled:
            scores["mean_log_scale"] = context.log_scale("test")
            seen = context.view_scores("test")
            scores |= {score: seen[score] for score in (BETWEEN_VIEWS, *SURPRISES) if score in seen}
        judged, sets["test"], risk, correct = _answers(context, scores)
        metrics, settings["answer"] = judged | metrics, "nearest training image"
        curves, arrays["correct"] = {"risk_coverage": risk} | curves, correct.numpy()
    ood = [Ranked(context.sets[name], distance(name)) for name in context.ood]
    return Result(
        metrics=metrics,
        settings=settings,
        sets=sets,
        curves=curves,
        arrays=arrays | gallery(Ranked(context.sets["test"], uncertainty), ood),
    )


def _distance(context: Context) -> Callable[[str], Tensor]:
    """The distance to the training images of each image of a set, (N,)."""
    distance = fit_knn_distance(context.placed("train"))
    return lambda name: distance(context.features(name)).cpu()


def _around(context: Context) -> dict[str, Tensor]:
    """Rankings by the training images around each test image, (N,) each: how far they are, and how far apart."""
    train, test = context.placed("train"), context.placed("test")
    around = Neighbourhood(features=train, space=context.encoder.background.space.to(train.device))
    centre = train.mean(0)
    centred = fit_knn_distance(train - centre)
    return {
        "centred_distance": centred(test - centre).cpu(),
        "neighbour_distance": around(test).cpu(),
        "neighbour_dispersion": around.dispersion(test).cpu(),
    }


def _answers(
    context: Context, scores: dict[str, Tensor]
) -> tuple[dict[str, float], dict[str, dict[str, float]], dict[str, Any], Tensor]:
    """Metrics of the uncertainty, those of all scores, the risk-coverage curve, and which answers are right."""
    features, labels = context.placed("test"), context.labels("test")
    right = right_neighbours(features, labels, context.groups("test")).cpu()
    _, neighbours = nearest(context.placed("train"), features, 1)
    correct = context.labels("train")[neighbours[:, 0].cpu()] == labels
    risks: dict[str, dict[str, Any]] = {name: risk_coverage(correct, values) for name, values in scores.items()}
    sets = {name: {"r_auroc": r_auroc(right, scores[name]), "aurc": row["aurc"]} for name, row in risks.items()}
    risk = risks["uncertainty"]
    metrics = {"recall_at_1": right.double().mean().item(), "r_auroc": sets["uncertainty"]["r_auroc"]}
    metrics |= {name: value for name, value in risk.items() if isinstance(value, float)}
    return metrics, sets, {name: risk[name] for name in ("coverage", "risk")}, correct


def _calibration(context: Context) -> Part:
    """Coverage, PIT and energy-score skill of the forecasts; empty if there are none."""
    encoder, seed = context.encoder, context.seed
    if reason := no_forecasts(encoder, has_scale=context.has_scale):
        return {}, {"calibration": f"not measured: {reason}"}, {}
    tenth = context.sets["train"].subset(context.held_out)
    test = sample(context.sets["test"], FORECAST, seed=seed, purpose="forecasts")
    known = sample(tenth, FITTED, seed=seed, purpose="constant scale")
    forecasts = make_forecasts(encoder, test, seed=seed)
    coverage, curves = judge_coverage(forecasts, seed=seed, radius=radius_forecasts(encoder, forecasts))
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


def _severity(context: Context, *, in_views: bool) -> Part:
    """The uncertainty of some test images at rising severities."""
    # If it is a variance over views, each image takes UNCERTAINTY_VIEWS + 1 passes, so fewer images are used.
    count = WORSENED // (UNCERTAINTY_VIEWS + 1) if in_views else WORSENED
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
    uncertainty=True,
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
