"""corruption: error and calibration on corrupted images of a probe fitted on clean ones."""

import sys
from typing import Any

import torch
from torch import Tensor

from prosmin.data.corruptions.parameters import COMMON, EXTRA, SEVERITIES
from prosmin.data.image_sets import Pictures
from prosmin.encoder import Encoder
from prosmin.errors import ProsminError
from prosmin.evaluation.batches import set_batches
from prosmin.evaluation.context import Context
from prosmin.evaluation.corrupted import check_corrupted, open_corrupted
from prosmin.evaluation.metrics.calibration import FLOOR, reliability
from prosmin.evaluation.metrics.corruption_error import mean_corruption_error, relative_mean_corruption_error
from prosmin.evaluation.probes.linear import LinearProbe
from prosmin.evaluation.protocol import Protocol, Result
from prosmin.evaluation.severity import seeing_all
from prosmin.progress import Progress

MEASURES = ("error", "nll", "ece")
Cells = dict[tuple[str, int], dict[str, float]]
"""The measures by corruption and severity."""


def run(context: Context) -> Result:
    """Error, NLL and ECE of the linear probe, clean and by corruption and severity; without baselines."""
    corrupted = open_corrupted(context)
    probe = context.probe()
    clean = measure(probe.probabilities(context.features("test")), context.labels("test"))
    encoder = seeing_all(context.encoder) if corrupted.framed else context.encoder
    cells: Cells = {}
    wanted = [(name, severity) for name in corrupted.generators for severity in context.options.severities]
    with Progress("corruption", total=len(wanted), hidden=not sys.stdout.isatty(), transient=True) as progress:
        for name, severity in wanted:
            pictures = corrupted.read(name, severity, lambda part: progress.update(progress.done + part))
            assert pictures.labels is not None
            cells[name, severity] = measure(_probabilities(probe, encoder, pictures), pictures.labels)
    return Result(
        metrics=summary(cells, clean, imagenet=corrupted.imagenet),
        settings=corrupted.settings | {"classifier": "linear probe on clean train", "l2": probe.l2},
        curves={"corruption": _matrix(cells, clean)},
    )


def check(context: Context) -> str | None:
    """Why the images cannot be corrupted; a stored set that cannot be used is an error."""
    try:
        check_corrupted(context)
    except ProsminError as error:
        if context.options.corrupted:
            raise
        return str(error)
    return None


def _probabilities(probe: LinearProbe, encoder: Encoder, pictures: Pictures) -> Tensor:
    """(N, C), batch by batch on the encoder's device."""
    batches = set_batches(pictures, encoder, title="")
    return torch.cat([probe.probabilities(encoder.batch_features(batch)) for batch in batches])


def measure(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Error, NLL and ECE of probabilities (N, C), as in the linear protocol but without intervals."""
    bins = reliability(probabilities, labels)
    of_label = probabilities.gather(1, labels.to(probabilities.device)[:, None]).double().clamp_min(FLOOR)
    rows = zip(bins["count"], bins["confidence"], bins["accuracy"], strict=True)
    filled = [(count / len(labels), confidence, accuracy) for count, confidence, accuracy in rows if count]
    return {
        "error": 1.0 - sum(share * accuracy for share, _, accuracy in filled),
        "nll": -of_label.log().mean().item(),
        "ece": sum(share * abs(accuracy - confidence) for share, confidence, accuracy in filled),
    }


def summary(cells: Cells, clean: dict[str, float], *, imagenet: bool) -> dict[str, float]:
    """Means over the fifteen corruptions, overall and by severity; over the extra ones; mCE for ImageNet-C."""
    severities = sorted({severity for _, severity in cells})
    common, extra = ([name for name in group if (name, severities[0]) in cells] for group in (COMMON, EXTRA))
    metrics: dict[str, float] = {}
    if common:
        metrics = {f"mean_{what}": _mean(cells, common, severities, what) for what in MEASURES}
        for severity in severities:
            at = {what: _mean(cells, common, [severity], what) for what in MEASURES}
            metrics |= {
                f"mean_error_severity_{severity}": at["error"],
                f"nll_severity_{severity}": at["nll"],
                f"ece_severity_{severity}": at["ece"],
            }
    if imagenet and len(common) == len(COMMON) and tuple(severities) == SEVERITIES:
        errors = {name: _mean(cells, [name], severities, "error") for name in COMMON}
        metrics["mce"] = mean_corruption_error(errors)
        metrics["relative_mce"] = relative_mean_corruption_error(errors, clean["error"])
    if extra:
        metrics |= {f"mean_{what}_extra": _mean(cells, extra, severities, what) for what in MEASURES}
    return metrics | {f"clean_{what}": clean[what] for what in MEASURES}


def _mean(cells: Cells, names: list[str], severities: list[int], what: str) -> float:
    values = [cells[name, severity][what] for name in names for severity in severities]
    return sum(values) / len(values)


def _matrix(cells: Cells, clean: dict[str, float]) -> dict[str, Any]:
    """A heat map: one row per corruption, one column per severity."""
    names = list(dict.fromkeys(name for name, _ in cells))
    severities = sorted({severity for _, severity in cells})
    tables = {what: [[cells[name, severity][what] for severity in severities] for name in names] for what in MEASURES}
    return {"names": names, "severities": severities, "clean": clean, **tables}


PROTOCOL = Protocol(
    name="corruption",
    title="Corrupted images",
    run=run,
    check=check,
    needs_held_out=True,
    default=True,
    paper=True,
    quick={
        "corruptions": ("gaussian_noise", "defocus_blur", "contrast", "jpeg_compression"),
        "severities": (1, 3, 5),
    },
    short="corrupted",
    columns=("mean_error",),
    labels_show="corrupted images",
)
