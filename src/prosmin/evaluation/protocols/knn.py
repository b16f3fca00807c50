"""knn: a test image gets the label that its nearest training images vote for."""

import numpy as np
from torch import Tensor

from prosmin.encoder.neighbours import knn_probabilities, nearest, vote
from prosmin.evaluation.context import Context
from prosmin.evaluation.metrics.calibration import classification_metrics, image_outcomes
from prosmin.evaluation.protocol import Protocol, Result

K, WIDE_K, TEMPERATURE = 20, 200, 0.07  # the conventions of Wu et al. (2018) and DINO


def run(context: Context) -> Result:
    """Cosine similarity s, weights exp(s / 0.07), neighbours from train; all metrics at k = 20, top-1 also at 200."""
    scored = {subject: _score(context, subject) for subject in context.subjects}
    trained, *baselines = context.subjects
    metrics, outcomes = scored[trained]
    return Result(
        metrics=metrics | {"top1_half_whitened": _half_whitened(context)},
        baselines={subject: scored[subject][0] for subject in baselines},
        arrays=outcomes,
        settings={
            "k": min(K, len(context.sets["train"])),
            "wide_k": min(WIDE_K, len(context.sets["train"])),
            "temperature": TEMPERATURE,
            "similarity": "cosine",
        },
    )


def _score(context: Context, subject: str) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """The metrics, and what happens to each test image."""
    bank, queries = context.placed("train", subject), context.features("test", subject)
    bank_labels, labels = (context.labels(name).to(bank.device) for name in ("train", "test"))
    similarities, indices = nearest(bank, queries, min(WIDE_K, len(bank)))
    votes = bank_labels[indices]  # (N, k)

    def probabilities(k: int) -> Tensor:
        return vote(similarities[:, :k], votes[:, :k], classes=context.classes, temperature=TEMPERATURE)

    wide = probabilities(WIDE_K).argmax(1).eq(labels).double().mean().item()
    narrow = probabilities(K)
    metrics = classification_metrics(narrow, labels, seed=context.seed) | {"top1_k200": wide}
    return metrics, image_outcomes(narrow, labels)


def _half_whitened(context: Context) -> float:
    """Top-1 with the distances of `encoder.ood_score` and `prosmin inspect` instead of the published convention."""
    bank, queries = context.placed("train"), context.placed("test")
    space = context.encoder.background.space.to(bank.device)
    votes = knn_probabilities(
        space(bank), context.labels("train"), space(queries), classes=context.classes, k=min(K, len(bank))
    )  # fmt: skip
    return votes.argmax(1).cpu().eq(context.labels("test")).double().mean().item()


PROTOCOL = Protocol(
    name="knn",
    title="kNN",
    run=run,
    default=True,
    paper=True,
    short="kNN",
    columns=("top1", "nll"),
    expected=True,
    headlines=("top1",),
    labels_show="kNN",
)
