"""The backbone as a checkpoint that timm.create_model loads, beside a card with the call."""

from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from prosmin.encoder import Encoder
from prosmin.encoder.foreign import is_foreign
from prosmin.errors import ProsminError, UsageError
from prosmin.export.card import Form, card_of, check_agreement, describe_encoder, describe_preprocessing, write_card
from prosmin.files import writing
from prosmin.models.backbones import vit_options
from prosmin.models.resnet import RESNETS

TOLERANCE = 1e-5
"""Of the features' size: the weights are the same, a ViT's first layer sums in another order."""


def write(encoder: Encoder, file: Path) -> list[str]:
    """Write the weights, let timm load them, and compare."""
    name, options = _call(encoder)
    backbone = encoder.method.get_submodule("online.backbone")
    with writing(file) as part:
        save_file({key: tensor.detach().contiguous().clone() for key, tensor in backbone.state_dict().items()}, part)
    network = _loaded(name, options, file)
    found = check_agreement(
        encoder,
        lambda views: {"features": _features(network, views)},
        tolerance=TOLERANCE,
        remedy="This version of timm builds another network under that name; `--format onnx` does not need it.",
    )
    written = ", ".join(f"{key}={value!r}" for key, value in options.items())
    card = {
        "format": 1,
        "made_of": describe_encoder(encoder),
        "call": f"timm.create_model({name!r}, checkpoint_path={file.name!r}, {written})",
        "name": name,
        "kwargs": options,
        "timm": timm.__version__,
        "features": network.num_features,
        "preprocessing": describe_preprocessing(encoder.config.views),
        "checked": {"with": "timm", "tolerance": TOLERANCE, "deviation": found},
    }
    write_card(card_of(file), card)
    return [f"{card['call']} gives its features, compared to {found['features']:.0e}"]


def _call(encoder: Encoder) -> tuple[str, dict[str, Any]]:
    """timm's name of the backbone, and what create_model is given besides."""
    views, backbone = encoder.config.views, encoder.config.backbone
    if backbone.name in RESNETS:
        raise UsageError(
            f"The backbone {backbone.name} is a network of prosmin's own, which timm does not have. "
            "Export it with --format onnx or --format safetensors."
        )
    if is_foreign(encoder.card.get("encoder", "")):  # of others: its card says how it was built
        own = dict(encoder.card["backbone"])
        name, given = own.pop("name"), own
    else:
        name, given = backbone.name, vit_options(backbone, views.global_size)
    # timm's own transforms read these, where the name's card would say what other weights want.
    prepared = {
        "input_size": [3, views.global_size, views.global_size],
        "crop_pct": views.crop_share,
        "interpolation": views.interpolation,
        "mean": list(views.mean),
        "std": list(views.std),
    }
    return name, {"num_classes": 0, **given, "pretrained_cfg_overlay": prepared}


def _loaded(name: str, options: dict[str, Any], file: Path) -> nn.Module:
    """The network as a user of the file gets it."""
    # timm adds to the overlay it is given.
    given: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in options.items()}
    try:
        return timm.create_model(name, checkpoint_path=str(file), **given).eval()
    except (RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".: ")
        raise ProsminError(
            f"timm cannot load the backbone {name} again: {reason}. Nothing was written. "
            "Export it with --format onnx or --format safetensors."
        ) from error


@torch.inference_mode()
def _features(network: nn.Module, views: Tensor) -> Tensor:
    return network(views)


FORM = Form(write=write, suffix=".safetensors", entry="call")
