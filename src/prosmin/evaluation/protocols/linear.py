"""linear: logistic regression on frozen features, its strength chosen on a held-out tenth of train."""

import dataclasses

from prosmin.evaluation.context import TRAINED, Context
from prosmin.evaluation.protocol import Protocol, Result


def run(context: Context) -> Result:
    """Accuracy and calibration of the probe, as fitted and after temperature scaling."""
    scored = {subject: _score(context, subject) for subject in context.subjects}
    trained = scored.pop(TRAINED)
    return dataclasses.replace(trained, baselines={subject: result.metrics for subject, result in scored.items()})


def _score(context: Context, subject: str) -> Result:
    predictions, labels = context.probe(subject).predict(context.features("test", subject)), context.labels("test")
    return Result(
        metrics=predictions.metrics(labels, seed=context.seed),
        settings=predictions.settings | {"held_out": "a tenth of train"},
        curves=predictions.diagrams(labels),
        arrays=predictions.outcomes(labels),
    )


PROTOCOL = Protocol(
    name="linear",
    title="Linear probe",
    run=run,
    needs_held_out=True,
    default=True,
    paper=True,
    short="linear",
    columns=("top1", "nll", "ece"),
    expected=True,
    headlines=("top1", "nll", "ece"),
    labels_show="linear probe and its calibration",
)
