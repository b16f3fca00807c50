"""The backbone as a checkpoint for timm.create_model, with the call in its card."""

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
"""Of the features' size: the weights are the same, but the first layer of a ViT sums in another order."""


def write(encoder: Encoder, file: Path) -> list[str]:
    """Write the weights, load them with timm, and compare."""
    name, options = _call(encoder)
    backbone = encoder.method.get_submodule("online.backbone")
    with writing(file) as part:
        save_file({key: tensor.detach().contiguous().clone() for key, tensor in backbone.state_dict().items()}, part)
    network = _loaded(name, options, file)
    found = check_agreement(
        encoder,
        lambda views: {"features": _features(network, views)},
        tolerance=TOLERANCE,
        remedy="This version of timm builds another network of that name; use --format onnx.",
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
    return [f"{card['call']} gives the features, with a deviation of {found['features']:.0e}"]


def _call(encoder: Encoder) -> tuple[str, dict[str, Any]]:
    """timm's name of the backbone, and the other arguments of create_model."""
    views, backbone = encoder.config.views, encoder.config.backbone
    if backbone.name in RESNETS:
        raise UsageError(
            f"timm does not have the backbone {backbone.name}, which is a network of prosmin. "
            "Export it with --format onnx or --format safetensors."
        )
    if is_foreign(encoder.card.get("encoder", "")):
        given = dict(encoder.card["backbone"])
        name = given.pop("name")
    else:
        name, given = backbone.name, vit_options(backbone, views.global_size)
    # For timm's transforms, instead of the preprocessing of timm's weights of that name.
    preprocessing = {
        "input_size": [3, views.global_size, views.global_size],
        "crop_pct": views.crop_share,
        "interpolation": views.interpolation,
        "mean": list(views.mean),
        "std": list(views.std),
    }
    return name, {"num_classes": 0, **given, "pretrained_cfg_overlay": preprocessing}


def _loaded(name: str, options: dict[str, Any], file: Path) -> nn.Module:
    """The network as a user of the file loads it."""
    # A copy, since timm adds entries to the overlay.
    given: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in options.items()}
    try:
        return timm.create_model(name, checkpoint_path=str(file), **given).eval()
    except (RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".: ")
        raise ProsminError(
            f"timm cannot load the exported backbone {name}: {reason}. Nothing was written. "
            "Export it with --format onnx or --format safetensors."
        ) from error


@torch.inference_mode()
def _features(network: nn.Module, views: Tensor) -> Tensor:
    return network(views)


FORM = Form(write=write, suffix=".safetensors", entry="call")
