"""linear-paper: the paper's linear protocol, SGD on augmented images through the frozen encoder."""

from prosmin.evaluation.context import Context
from prosmin.evaluation.probes.linear_sgd import train_linear_heads
from prosmin.evaluation.protocol import Protocol, Result


def run(context: Context) -> Result:
    """Accuracy and calibration; the learning rate and the temperature are chosen on a held-out tenth of train."""
    predictions = train_linear_heads(
        context.encoder,
        context.sets["train"],
        context.sets["test"],
        classes=context.classes,
        epochs=context.options.linear_epochs,
        seed=context.seed,
    )
    labels = context.labels("test")
    return Result(
        metrics=predictions.metrics(labels, seed=context.seed),
        settings=predictions.settings,
        curves=predictions.diagrams(labels),
    )


PROTOCOL = Protocol(
    name="linear-paper",
    title="Linear classifier on augmented images",
    run=run,
    needs_held_out=True,
    paper=True,
    short="linear-paper",
    columns=("top1",),
)
