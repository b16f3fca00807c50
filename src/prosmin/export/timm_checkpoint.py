"""The backbone as a checkpoint for timm.create_model, with the call in its card."""

from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from prosmin.config import ViewsConfig
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
    name, given = architecture(encoder)
    options = {"num_classes": 0, **given, "pretrained_cfg_overlay": preprocessing(encoder.config.views)}
    save_backbone(encoder, file)
    # A copy, since timm adds entries to the overlay.
    copied = options | {"pretrained_cfg_overlay": dict(options["pretrained_cfg_overlay"])}
    network = create(name, {"checkpoint_path": str(file), **copied}, backbone=name)
    found = check_features(encoder, network)
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


def architecture(encoder: Encoder) -> tuple[str, dict[str, Any]]:
    """timm's name of the backbone, and the arguments of the network; an error for a network that timm does not have."""
    backbone = encoder.config.backbone
    if backbone.name in RESNETS:
        raise UsageError(
            f"timm does not have the backbone {backbone.name}, which is a network of prosmin. "
            "Export it with --format onnx or --format safetensors."
        )
    if is_foreign(encoder.card.get("encoder", "")):
        given = dict(encoder.card["backbone"])
        return given.pop("name"), given
    return backbone.name, vit_options(backbone, encoder.config.views.global_size)


def preprocessing(views: ViewsConfig) -> dict[str, Any]:
    """For timm's transforms, instead of the preprocessing of timm's weights of that name."""
    return {
        "input_size": [3, views.global_size, views.global_size],
        "crop_pct": views.crop_share,
        "crop_mode": "center",
        "interpolation": views.interpolation,
        "mean": list(views.mean),
        "std": list(views.std),
    }


def save_backbone(encoder: Encoder, file: Path) -> None:
    """The weights of the backbone under timm's names."""
    state = encoder.method.get_submodule("online.backbone").state_dict()
    with writing(file) as part:
        tensors = {key: tensor.detach().contiguous().clone() for key, tensor in state.items()}
        save_file(tensors, part, metadata={"format": "pt"})  # of PyTorch, which some loaders ask for


def create(model: str, options: dict[str, Any], *, backbone: str) -> nn.Module:
    """The network as a user of the export makes it; `backbone` names it in errors."""
    try:
        return timm.create_model(model, **options).eval()
    except (RuntimeError, TypeError, ValueError, KeyError, AssertionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".: ")
        raise ProsminError(
            f"timm cannot load the exported backbone {backbone}: {reason}. Nothing was written. "
            "Export it with --format onnx or --format safetensors."
        ) from error


def check_features(encoder: Encoder, network: nn.Module) -> dict[str, float]:
    """The largest deviation of the network's features; an error if it is above the tolerance."""

    @torch.inference_mode()
    def features(views: Tensor) -> dict[str, Tensor]:
        return {"features": network(views)}

    remedy = "This version of timm builds another network of that name; use --format onnx."
    return check_agreement(encoder, features, tolerance=TOLERANCE, remedy=remedy)


FORM = Form(write=write, suffix=".safetensors", entry="call")
