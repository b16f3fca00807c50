"""ood: do label-free scores separate out-of-distribution images from test images?"""

import statistics
from typing import Any

import torch
from torch import Tensor

from prosmin.encoder.detectors import DETECTORS, JOINT, SCORES, SURPRISES, Detector, KnnDistance, fit_distance_and_scale
from prosmin.encoder.neighbourhood import Neighbourhood
from prosmin.errors import UsageError
from prosmin.evaluation.context import TRAINED, Context
from prosmin.evaluation.metrics.ranking import ood_metrics
from prosmin.evaluation.protocol import Protocol, Result

DEFAULT = "knn_distance"
EMBED = "neighbour_distance"
"""The score of `encoder.ood_score`, `prosmin embed` and `prosmin inspect`. DEFAULT is the published convention."""
IN_GROUPS = ("auroc", "fpr_at_95_tpr_in")
"""Metrics of the default score by near and far sets, as in OpenOOD; its version 1.5 uses fpr_at_95_tpr_out."""

Rows = dict[str, dict[str, dict[str, float]]]
"""Metrics by set and score."""


def run(context: Context) -> Result:
    """Every label-free score for every set; `auroc` is the default score's mean over the sets.

    If --near names some sets, there are also means over the near and over the far sets.
    """
    groups = near_and_far(context)
    train = context.placed("train")
    detectors: dict[str, Detector] = {name: fit(train) for name, fit in DETECTORS.items()}
    space = context.encoder.background.space.to(train.device)
    detectors[EMBED] = Neighbourhood(features=train, space=space)
    found = {name: _scores(context, name, detectors) for name in ("test", *context.ood)}
    if context.has_scale:
        _add_joint(context, found, detectors)
    inside, outside = found["test"], {name: found[name] for name in context.ood}
    among = {name: mask for name in context.ood if (mask := of_its_classes(context, name)) is not None}
    sets: Rows = {
        name: {score: ood_metrics(_inside(inside[score], among.get(name)), scores[score]) for score in inside}
        for name, scores in outside.items()
    }
    means = {f"auroc_{score}": _mean(sets, score, "auroc", context.ood) for score in inside}
    arrays = {f"in/{score}": values.numpy() for score, values in inside.items()}
    arrays |= {
        f"out/{name}/{score}": values.numpy() for name, scores in outside.items() for score, values in scores.items()
    }
    return Result(
        metrics={"auroc": means[f"auroc_{DEFAULT}"], **means, **_by_group(sets, groups)},
        baselines=_baselines(context, groups, among),
        sets=sets,
        settings=_settings(context, groups, among),
        arrays=arrays | {f"in_mask/{name}": mask.numpy() for name, mask in among.items()},
    )


def near_and_far(context: Context) -> dict[str, tuple[str, ...]]:
    """The sets by group; empty without --near. A near set that --ood does not give is an error."""
    unknown = [name for name in context.options.near if name not in context.ood]
    if unknown:
        given = ", ".join(context.ood) or "none"
        raise UsageError(f"--near names {', '.join(unknown)}; allowed: sets that --ood gives, here {given}.")
    near = tuple(name for name in context.ood if name in context.options.near)
    far = tuple(name for name in context.ood if name not in near)
    return {name: group for name, group in (("near", near), ("far", far)) if group} if near else {}


def check(context: Context) -> str | None:
    """An error if --near names a set that --ood does not."""
    near_and_far(context)
    return None


def of_its_classes(context: Context, name: str) -> Tensor | None:
    """Which test images have one of the set's classes, (N,), if the set has some of the test classes and no others.

    ImageNet-O is such a set: its folders have the names of 200 ImageNet classes, and in published figures it is
    compared only with validation images of those classes. Classes named by numbers are not compared.
    """
    test, classes = context.sets["test"], context.sets[name].classes
    named = bool(classes) and not all(text.isdigit() for text in classes)
    if test.labels is None or not named or not set(classes) < set(test.classes):
        return None
    return torch.tensor([text in classes for text in test.classes])[test.labels.cpu()]


def _scores(context: Context, name: str, detectors: dict[str, Detector]) -> dict[str, Tensor]:
    """Every score of a set, higher means more likely OOD: detectors on features, and scores of forecasts over views."""
    features = context.placed(name)
    scores = {score: detector(features).cpu() for score, detector in detectors.items()}
    if context.has_scale:
        seen = context.view_scores(name)
        scores |= {score: seen[score] for score in (*SCORES, *SURPRISES) if score in seen}
    return scores


def _add_joint(context: Context, found: dict[str, dict[str, Tensor]], detectors: dict[str, Detector]) -> None:
    """Add the joint score of distance and scale to the scores of each set."""
    knn = detectors["knn_distance"]
    assert isinstance(knn, KnnDistance)
    joint = fit_distance_and_scale(knn, context.placed("train"), context.log_scale("train"))
    for name, scores in found.items():
        scores[JOINT] = joint(scores["knn_distance"], context.log_scale(name).cpu())


def _baselines(
    context: Context, groups: dict[str, tuple[str, ...]], among: dict[str, Tensor]
) -> dict[str, dict[str, float]]:
    """The default score on the features of the baselines."""
    found: dict[str, dict[str, float]] = {}
    for subject in context.subjects:
        if subject == TRAINED:
            continue
        detector = DETECTORS[DEFAULT](context.placed("train", subject))
        scores = {name: detector(context.features(name, subject)).cpu() for name in ("test", *context.ood)}
        sets: Rows = {
            name: {DEFAULT: ood_metrics(_inside(scores["test"], among.get(name)), scores[name])} for name in context.ood
        }
        found[subject] = {"auroc": _mean(sets, DEFAULT, "auroc", context.ood), **_by_group(sets, groups)}
    return found


def _inside(scores: Tensor, mask: Tensor | None) -> Tensor:
    return scores if mask is None else scores[mask]


def _mean(sets: Rows, score: str, metric: str, names: tuple[str, ...]) -> float:
    return statistics.fmean(sets[name][score][metric] for name in names)


def _by_group(sets: Rows, groups: dict[str, tuple[str, ...]]) -> dict[str, float]:
    """near_auroc, far_auroc, ...: means of the default score; near_auroc_SCORE: of each score."""
    found: dict[str, float] = {}
    for group, names in groups.items():
        found |= {f"{group}_{metric}": _mean(sets, DEFAULT, metric, names) for metric in IN_GROUPS}
        scores = sets[names[0]]
        if len(scores) > 1:
            found |= {f"{group}_auroc_{score}": _mean(sets, score, "auroc", names) for score in scores}
    return found


def _settings(context: Context, groups: dict[str, tuple[str, ...]], among: dict[str, Tensor]) -> dict[str, Any]:
    """Settings: the in-distribution images and the groups."""
    settings: dict[str, Any] = {"default_score": DEFAULT, "positive_class": "out of distribution"}
    settings["in_distribution"] = "test"
    if among:
        settings["in_distribution_of_sets"] = {
            name: f"the {int(mask.sum())} test images of its {len(context.sets[name].classes)} classes"
            for name, mask in among.items()
        }
    return settings | {group: list(names) for group, names in groups.items()}


PROTOCOL = Protocol(
    name="ood",
    title="Out-of-distribution detection",
    run=run,
    check=check,
    labels="unused",
    ood="needed",
    default=True,
    paper=True,
    short="OOD",
    columns=("auroc",),
    expected=True,
    headlines=("auroc",),
)
