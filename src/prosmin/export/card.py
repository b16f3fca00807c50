"""The card of an exported file, the record of an export format, and the comparison with the original encoder."""

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
from prosmin.models.vit import patch_tokens

BATCHES = (1, 5)
"""Sizes of the batches that are compared: one image, and another size than the graph was traced with."""


def random_views(views: ViewsConfig, count: int) -> Tensor:
    """Evaluation views of random images, (N, 3, h, h), the same in every call."""
    # Coarser than the view: patches of colour give different features, fine noise gives nearly the same.
    side = max(2, views.global_size // 4)
    random = torch.Generator().manual_seed(count)
    pictures = torch.randint(0, 256, (count, 3, side, side), generator=random, dtype=torch.uint8)
    return evaluation_view(pictures, torch.tensor([side, side]).expand(count, 2), views)


@torch.inference_mode()
def outputs_of(encoder: Encoder, views: Tensor, *, patches: bool = False) -> dict[str, Tensor]:
    """The outputs of the encoder for views, by name: features, mean and scale if it has them, `patches` of a ViT."""
    embedding = encoder.method.encode(views)  # type: ignore[operator]
    outputs = {"features": embedding.features}
    if embedding.mean is not embedding.features:  # a backbone of timm has no mean
        outputs["mean"] = embedding.mean
    if embedding.scale is not None and bool((embedding.scale > 0).any()):  # a deterministic network has scale 0
        outputs["scale"] = embedding.scale
    if patches:
        outputs["patches"] = patch_tokens(encoder.method.get_submodule("online.backbone"), views)
    return outputs


def check_agreement(
    encoder: Encoder, exported: Callable[[Tensor], dict[str, Tensor]], *, tolerance: float, remedy: str
) -> dict[str, float]:
    """The largest deviation of each output of `exported`; an error if one is above the tolerance."""
    worst: dict[str, float] = {}
    for count in BATCHES:
        views = random_views(encoder.config.views, count)
        outputs = exported(views)
        expected = outputs_of(encoder, views, patches="patches" in outputs)
        for name, found in outputs.items():
            worst[name] = max(worst.get(name, 0.0), deviation(found, expected[name]))
            if not worst[name] <= tolerance:  # also for NaN
                raise ProsminError(
                    f"The {name} of the exported file differ from the encoder's by {worst[name]:.1e} of their size, "
                    f"on {count} random images; allowed: {tolerance:.0e}. Nothing was written. {remedy}"
                )
    return worst


def deviation(found: Tensor, expected: Tensor) -> float:
    """The largest difference in units of the largest expected value; infinite for another shape or NaN."""
    if found.shape != expected.shape or not bool(found.isfinite().all()):
        return torch.inf
    difference = (found - expected).abs().max()
    return float(difference / expected.abs().max()) if difference > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Form:
    """A format: it writes one file with this suffix and its card, or, without a suffix, a folder."""

    write: Callable[[Encoder, Path], list[str]]  # returns lines that say what was written
    write_half: Callable[[Encoder, Path], list[str]] | None = None  # the same with weights in float16
    write_patches: Callable[[Encoder, Path], list[str]] | None = None  # the same with an output of patch features
    write_page: Callable[[Encoder, Path | str, Path], None] | None = None  # for readers, from the run and the folder
    suffix: str = ""
    entry: str  # an entry that only the cards of this format have
    names: tuple[str, ...] = ()  # files in the folder; or endings of further files
    packages: tuple[str, ...] = ()  # beyond the requirements of prosmin

    def folder(self, out: Path) -> Path:
        """The folder of the files."""
        return out.parent if self.suffix else out

    def files(self, out: Path) -> list[Path]:
        """The files that are written for `out`."""
        if not self.suffix:
            return [out / name for name in self.names]
        return [out, card_of(out), *(out.with_name(out.name + name) for name in self.names)]

    def card(self, out: Path) -> Path:
        """The card among them."""
        return next(file for file in self.files(out) if file.suffix == ".json")

    def described_by(self, card: Path) -> Path:
        """The file that a card of this form describes."""
        return card.with_suffix(self.suffix) if self.suffix else card.parent / self.names[0]


def card_of(file: Path) -> Path:
    """The card of a file."""
    return file.with_suffix(".json")


def describe_encoder(encoder: Encoder) -> dict[str, Any]:
    """Which encoder this is, for a card."""
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
    """The evaluation view of an image, in numbers and in steps that another program can follow."""
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
            "Rotate the image by its EXIF orientation. Of an animation use the first frame.",
            "Convert it to RGB bytes: grey is repeated, transparency is dropped and not blended, a 16 bit value v "
            "becomes (255 v + 32767) // 65535.",
            "If its shorter side is above max_shorter or its longer side above max_longer, reduce it by the factor "
            "min(max_shorter / shorter, max_longer / longer), sides rounded, bilinear with antialiasing, to bytes. "
            "A JPEG whose longer side is at least twice that of the result is first decoded at 1/2, 1/4 or 1/8, the "
            "smallest size that is not below the result. Without this step the outputs differ slightly for such "
            "large images.",
            "Divide the bytes by 255, for values from 0 to 1.",
            "Crop the centred square whose side is crop_share times the shorter side, rounded; "
            "its top and left are half of what remains, rounded down.",
            "Resize the square to size x size with this interpolation and antialiasing; clamp to 0..1.",
            "Subtract mean and divide by std, channel by channel.",
        ],
    }


def write_card(file: Path, card: dict[str, Any]) -> None:
    """JSON with one line per entry."""
    file.write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
