"""How far an exported encoder is from the one it was made of, on random pictures."""

from collections.abc import Callable

import torch
from torch import Tensor

from prosmin.config import ViewsConfig
from prosmin.data.views import evaluation_view
from prosmin.encoder import Encoder
from prosmin.errors import ProsminError

BATCHES = (1, 5)
"""Batches that are compared: one picture, and a number that a traced graph could not have kept."""


def random_views(views: ViewsConfig, count: int) -> Tensor:
    """Evaluation views of random pictures, (N, 3, h, h); always the same."""
    # Coarser than the view: patches of colour differ from picture to picture, where fine noise all looks the same.
    side = max(2, views.global_size // 4)
    random = torch.Generator().manual_seed(count)
    pictures = torch.randint(0, 256, (count, 3, side, side), generator=random, dtype=torch.uint8)
    return evaluation_view(pictures, torch.tensor([side, side]).expand(count, 2), views)


@torch.inference_mode()
def outputs_of(encoder: Encoder, views: Tensor) -> dict[str, Tensor]:
    """What the encoder gives for views, by name: features, and of mean and scale what it has."""
    embedding = encoder.method.encode(views)  # type: ignore[operator]
    outputs = {"features": embedding.features}
    if embedding.mean is not embedding.features:  # a bare backbone's features stand in for a mean
        outputs["mean"] = embedding.mean
    if embedding.scale is not None and bool((embedding.scale > 0).any()):  # a deterministic twin's scale is 0
        outputs["scale"] = embedding.scale
    return outputs


def check_agreement(
    encoder: Encoder, exported: Callable[[Tensor], dict[str, Tensor]], *, tolerance: float, remedy: str
) -> dict[str, float]:
    """The largest deviation of each of `exported`'s outputs; an error where one is beyond the tolerance."""
    worst: dict[str, float] = {}
    for count in BATCHES:
        views = random_views(encoder.config.views, count)
        wanted = outputs_of(encoder, views)
        for name, got in exported(views).items():
            worst[name] = max(worst.get(name, 0.0), deviation(got, wanted[name]))
            if not worst[name] <= tolerance:  # NaN is not either
                raise ProsminError(
                    f"The exported encoder's {name} differ from the encoder's own by {worst[name]:.1e} of their size, "
                    f"on {count} random pictures; allowed: {tolerance:.0e}. Nothing was written. {remedy}"
                )
    return worst


def deviation(got: Tensor, wanted: Tensor) -> float:
    """The largest difference, in units of the largest value wanted; infinite for another shape or without numbers."""
    if got.shape != wanted.shape or not bool(got.isfinite().all()):
        return torch.inf
    difference = (got - wanted).abs().max()
    return float(difference / wanted.abs().max()) if difference > 0 else 0.0
