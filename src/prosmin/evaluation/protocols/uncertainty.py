"""uncertainty: does the encoder's own uncertainty know where its representation is wrong?"""

import numpy as np
import torch
from torch import Tensor

from prosmin.data.pictures import Pictures
from prosmin.evaluation.context import Context
from prosmin.evaluation.knn import nearest
from prosmin.evaluation.result import Result
from prosmin.evaluation.retrieval import recall_at_1_and_r_auroc, risk_coverage

GALLERY = 24  # pictures of each kind kept for the report
THUMBNAIL = 96  # their longest side


def run(context: Context) -> Result:
    """R@1 with R-AUROC, and risk against coverage of a nearest-neighbour answer, over the test pictures."""
    test = context.sets["test"]
    uncertainty = context.encoder.uncertainty(test)
    features, labels = context.features("test"), context.labels("test")
    metrics = recall_at_1_and_r_auroc(features, labels, uncertainty)
    _, neighbours = nearest(context.features("train"), features, 1)
    correct = context.labels("train")[neighbours[:, 0]] == labels
    curve = risk_coverage(correct, uncertainty)
    metrics |= {name: value for name, value in curve.items() if isinstance(value, float)}
    arrays = {"uncertainty": uncertainty.numpy(), "correct": correct.numpy(), "index": np.arange(len(test))}
    return Result(
        metrics=metrics,
        settings={"answer": "nearest training picture"},
        curves={"risk_coverage": {name: curve[name] for name in ("coverage", "risk")}},
        arrays=arrays | _gallery(context, uncertainty),
    )


def _gallery(context: Context, uncertainty: Tensor) -> dict[str, np.ndarray]:
    """The most and the least certain test pictures, and the strangest of the out-of-distribution sets."""
    test = context.sets["test"]
    order = uncertainty.argsort()
    rows = [
        ("certain", test, order[:GALLERY], uncertainty),
        ("uncertain", test, order.flip(0)[:GALLERY], uncertainty),
    ]
    context.encoder.fit_reference(context.sets["train"])
    for name in context.ood:
        strange = context.encoder.ood_score(context.sets[name])
        rows.append(("ood", context.sets[name], strange.argsort(descending=True)[:GALLERY], strange))
    pictures = [_thumbnail(pool, int(i)) for _, pool, chosen, _ in rows for i in chosen]
    return {
        "thumbnails": np.stack(pictures),
        "thumbnail_uncertainty": np.concatenate([values[chosen].numpy() for _, _, chosen, values in rows]),
        "thumbnail_kind": np.array([kind for kind, _, chosen, _ in rows for _ in chosen]),
        "thumbnail_label": np.array([_label(pool, int(i)) for _, pool, chosen, _ in rows for i in chosen]),
        "thumbnail_key": np.array([pool.keys[int(i)] for _, pool, chosen, _ in rows for i in chosen]),
    }


def _thumbnail(pool: Pictures, i: int) -> np.ndarray:
    """One picture as (s, s, 3) uint8: its centred square, reduced when it is large."""
    height, width = (int(n) for n in pool.sizes[i])
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    picture = pool.images[i, :, top : top + side, left : left + side]
    target = min(THUMBNAIL, int(pool.sizes.min()))
    if side != target:
        resized = torch.nn.functional.interpolate(picture[None].float(), size=target, mode="bilinear", antialias=True)[
            0
        ]
        picture = resized.round().clamp(0, 255).to(torch.uint8)
    return picture.permute(1, 2, 0).cpu().numpy()


def _label(pool: Pictures, i: int) -> str:
    return pool.classes[int(pool.labels[i])] if pool.labels is not None and pool.classes else ""
