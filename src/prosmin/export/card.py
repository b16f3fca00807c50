"""The card beside an exported file: what it was made of, and how a picture becomes what the network takes."""

import json
from pathlib import Path
from typing import Any

from prosmin import __version__
from prosmin.config import ViewsConfig
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
        "size": views.global_size,
        "crop_share": views.crop_share,
        "interpolation": views.interpolation,
        "antialias": True,
        "mean": list(views.mean),
        "std": list(views.std),
        "steps": [
            "A picture is RGB with values from 0 to 1: bytes divided by 255.",
            "Cut the centred square whose side is crop_share times the shorter side, rounded; "
            "its top and left are half of what remains, rounded down.",
            "Resize the square to size x size with this interpolation and antialiasing; clamp to 0..1.",
            "Subtract mean and divide by std, channel by channel.",
        ],
    }


def write_card(file: Path, card: dict[str, Any]) -> None:
    """JSON with a line an entry."""
    file.write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
