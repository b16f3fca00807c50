"""The card beside an exported file, what a format declares, and the comparison with the original encoder."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prosmin import __version__
from prosmin.config import ViewsConfig
from prosmin.data.decode import MAX_LONGER, MAX_SHORTER
from prosmin.data.views import evaluation_view
from prosmin.encoder import Encoder
from prosmin.errors import ProsminError

BATCHES = (1, 5)
"""Batches that are compared: one image, and a number that a traced graph could not have kept."""


def random_views(views: ViewsConfig, count: int) -> Tensor:
    """Evaluation views of random images, (N, 3, h, h); always the same."""
    # Coarser than the view: patches of colour differ from image to image, where fine noise all looks the same.
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
                    f"on {count} random images; allowed: {tolerance:.0e}. Nothing was written. {remedy}"
                )
    return worst


def deviation(got: Tensor, wanted: Tensor) -> float:
    """The largest difference, in units of the largest value wanted; infinite for another shape or without numbers."""
    if got.shape != wanted.shape or not bool(got.isfinite().all()):
        return torch.inf
    difference = (got - wanted).abs().max()
    return float(difference / wanted.abs().max()) if difference > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form writes either one file with this suffix and a card beside it, or, without a suffix, a folder."""

    write: Callable[[Encoder, Path], list[str]]  # where to -> sentences that say what was written
    write_half: Callable[[Encoder, Path], list[str]] | None = None  # the same with weights in float16
    suffix: str = ""
    entry: str  # of its card, and of no other form's: by it a card is known for this form's
    names: tuple[str, ...] = ()  # the files in the folder; endings of further files beside the one file
    packages: tuple[str, ...] = ()  # beyond what prosmin always needs

    def folder(self, out: Path) -> Path:
        """The folder that the files go to."""
        return out.parent if self.suffix else out

    def files(self, out: Path) -> list[Path]:
        """What is written for `out`."""
        if not self.suffix:
            return [out / name for name in self.names]
        return [out, card_of(out), *(out.with_name(out.name + name) for name in self.names)]

    def card(self, out: Path) -> Path:
        """The card among them."""
        return next(file for file in self.files(out) if file.suffix == ".json")

    def beside(self, card: Path) -> Path:
        """The file that a card of this form describes."""
        return card.with_suffix(self.suffix) if self.suffix else card.parent / self.names[0]


def card_of(file: Path) -> Path:
    """The card beside a file."""
    return file.with_suffix(".json")


def describe_encoder(encoder: Encoder) -> dict[str, Any]:
    """Which encoder this is; `hash` is that of its own card."""
    card = encoder.card
    named = "encoder" in card  # timm's, or a shipped one
    return {
        "prosmin": __version__,
        "encoder": card["encoder"].partition("@")[0] if named else encoder.config.method.name,
        "backbone": encoder.config.backbone.name,
        "step": card["step"],
        "hash": card["hash"],
    }


def describe_preprocessing(views: ViewsConfig) -> dict[str, Any]:
    """The evaluation view of an image in numbers, and in words that leave nothing open."""
    return {
        "max_shorter": MAX_SHORTER,
        "max_longer": MAX_LONGER,
        "size": views.global_size,
        "crop_share": views.crop_share,
        "interpolation": views.interpolation,
        "antialias": True,
        "mean": list(views.mean),
        "std": list(views.std),
        "steps": [
            "Turn the image as its EXIF orientation says. Of an animation the first frame counts.",
            "Make it RGB in bytes: grey is repeated, transparency is dropped and not blended, a 16 bit value v becomes "
            "(255 v + 32767) // 65535.",
            "Where its shorter side is above max_shorter or its longer side above max_longer, reduce it by the factor "
            "min(max_shorter / shorter, max_longer / longer), sides rounded, bilinear with antialiasing, to bytes. "
            "A JPEG whose longer side is at least twice that of the result is first decoded at a half, a quarter or "
            "an eighth, the least that is no smaller than the result. Without this step the outputs differ slightly "
            "for such large images, and for no others.",
            "Divide the bytes by 255, for values from 0 to 1.",
            "Cut the centred square whose side is crop_share times the shorter side, rounded; "
            "its top and left are half of what remains, rounded down.",
            "Resize the square to size x size with this interpolation and antialiasing; clamp to 0..1.",
            "Subtract mean and divide by std, channel by channel.",
        ],
    }


def write_card(file: Path, card: dict[str, Any]) -> None:
    """JSON with a line an entry."""
    file.write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
