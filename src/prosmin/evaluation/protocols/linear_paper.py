"""linear-paper: the paper's linear protocol, SGD on augmented images through the frozen encoder."""

from prosmin.evaluation.context import Context
from prosmin.evaluation.metrics.calibration import diagrams, judge
from prosmin.evaluation.probes.linear_sgd import train_linear_heads
from prosmin.evaluation.protocol import Protocol, Result


def run(context: Context) -> Result:
    """Accuracy and calibration; the learning rate and the temperature come from a held-out tenth of train."""
    context.labels("train")
    answers = train_linear_heads(
        context.encoder,
        context.sets["train"],
        context.sets["test"],
        classes=context.classes,
        epochs=context.options.linear_epochs,
        seed=context.seed,
    )
    labels = context.labels("test")
    return Result(
        metrics=judge(answers.logits, labels, temperature=answers.temperature, seed=context.seed),
        settings=answers.settings,
        curves=diagrams(answers.logits, labels, temperature=answers.temperature),
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
