"""semi: the whole backbone fine-tuned on 1 % and 10 % of the labels."""

from typing import Any

from prosmin.data.image_sets import where_it_fits
from prosmin.evaluation.context import Context
from prosmin.evaluation.probes.finetune import fine_tune
from prosmin.evaluation.probes.label_subsets import check_labelled_shares, labelled_shares, over_draws
from prosmin.evaluation.protocol import Protocol, Result


def run(context: Context) -> Result:
    """Mean and standard deviation over the draws; rate and temperature are chosen within the labels of a draw."""
    shares, left_out = labelled_shares(context)
    train, test = context.sets["train"], context.sets["test"]
    metrics: dict[str, float] = {}
    sets: dict[str, dict[str, dict[str, float]]] = {}
    settings: dict[str, Any] = {}
    for share in shares:
        tuned = [
            fine_tune(
                context.encoder,
                where_it_fits(train.subset(subset)),
                test,
                classes=context.classes,
                seed=context.seed + draw,
                epochs=context.options.finetune_epochs,
            )
            for draw, subset in enumerate(share.subsets)
        ]
        rows = [predictions.metrics(context.labels("test"), seed=context.seed) for predictions in tuned]
        metrics |= over_draws(rows, share.name)
        sets[share.name] = {f"draw {i}": row for i, row in enumerate(rows)}
        settings[share.name] = {
            "labels": len(share.subsets[0]),
            "draws": [one.settings for one in tuned],
        }
    return Result(metrics=metrics, sets=sets, settings={"shares": settings, "left_out": left_out})


PROTOCOL = Protocol(
    name="semi",
    title="Semi-supervised: fine-tuned on few labels",
    run=run,
    check=check_labelled_shares,
    paper=True,
    short="semi",
    columns=("top1_1pct", "top1_10pct"),
)
