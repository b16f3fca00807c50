"""lowshot: logistic regression on frozen features with 1 % and 10 % of the labels."""

from typing import Any

from torch import Tensor

from prosmin.evaluation.context import TRAINED, Context, place
from prosmin.evaluation.probes.label_subsets import FOLDS, check_labelled_shares, labelled_shares, over_draws
from prosmin.evaluation.probes.linear import linear_probe
from prosmin.evaluation.protocol import Protocol, Result


def run(context: Context) -> Result:
    """Mean and standard deviation over the draws; l2 and temperature are chosen within the labels of a draw."""
    shares, left_out = labelled_shares(context)
    metrics: dict[str, dict[str, float]] = {subject: {} for subject in context.subjects}
    sets: dict[str, dict[str, dict[str, float]]] = {}
    settings: dict[str, Any] = {}
    for share in shares:
        for subject in context.subjects:
            scored = [_score(context, subject, subset) for subset in share.subsets]
            metrics[subject] |= over_draws([row for row, _ in scored], share.name)
            if subject == TRAINED:
                sets[share.name] = {f"draw {i}": row for i, (row, _) in enumerate(scored)}
                settings[share.name] = {"labels": len(share.subsets[0]), "l2": [l2 for _, l2 in scored]}
    return Result(
        metrics=metrics.pop(TRAINED),
        baselines=metrics,
        sets=sets,
        settings={"shares": settings, "left_out": left_out, "held_out": f"{FOLDS} folds of a draw's labels"},
    )


def _score(context: Context, subject: str, subset: Tensor) -> tuple[dict[str, float], float]:
    """The metrics of one draw, and its l2."""
    groups = context.groups("train")
    probe = linear_probe(
        place(context.features("train", subject)[subset], context.encoder.device),
        context.labels("train")[subset],
        classes=context.classes,
        seed=context.seed,
        folds=FOLDS,
        groups=None if groups is None else groups[subset],
    )
    predictions = probe.predict(context.features("test", subject))
    return predictions.metrics(context.labels("test"), seed=context.seed), probe.l2


PROTOCOL = Protocol(
    name="lowshot",
    title="Low-shot: frozen features, few labels",
    run=run,
    check=check_labelled_shares,
    paper=True,
    short="low-shot",
    columns=("top1_1pct", "top1_10pct"),
)
