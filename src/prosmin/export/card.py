"""The card beside an exported file: what it was made of, and how a picture becomes what the network takes."""

import json
from pathlib import Path
from typing import Any

from prosmin import __version__
from prosmin.config import ViewsConfig
from prosmin.data.decode import MAX_LONGER, MAX_SHORTER
from prosmin.encoder import Encoder


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
    """The evaluation view of a picture in numbers, and in words that leave nothing open."""
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
            "Turn the picture as its EXIF orientation says. Of an animation the first frame counts.",
            "Make it RGB in bytes: grey is repeated, transparency is dropped and not blended, a 16 bit value v becomes "
            "(255 v + 32767) // 65535.",
            "Where its shorter side is above max_shorter or its longer side above max_longer, reduce it by the factor "
            "min(max_shorter / shorter, max_longer / longer), sides rounded, bilinear with antialiasing, to bytes. "
            "A JPEG whose longer side is at least twice that of the result is first decoded at a half, a quarter or "
            "an eighth, the least that is no smaller than the result. Without this step the outputs differ slightly "
            "for such large pictures, and for no others.",
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
