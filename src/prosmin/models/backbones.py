"""f: the network whose output is the representation, by name."""

from typing import Any

import timm
import torch
from timm.models import group_parameters, is_model_in_modules
from timm.models.resnet import ResNet
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from prosmin.config import BackboneConfig, Config
from prosmin.errors import UsageError
from prosmin.messages import closest, did_you_mean
from prosmin.models.pretrained import PRETRAINED, create_pretrained
from prosmin.models.resnet import RESNETS, SmallResNet
from prosmin.models.vit import speed_up


def build_backbone(config: BackboneConfig, *, image_size: int) -> nn.Module:
    """The network named by the configuration: (B, 3, h, w) -> (B, num_features), freshly initialised."""
    if config.name in RESNETS:
        _refuse_vit_options(config)
        if config.drop_path:
            raise UsageError(f"backbone.drop_path is for timm models; backbone.name is {config.name!r}. Leave it at 0.")
        return SmallResNet(*RESNETS[config.name])
    if not timm.is_model(config.name):
        hint = did_you_mean(closest(config.name.partition(".")[0], timm.list_models()))
        raise UsageError(
            f"backbone.name is {config.name!r}.{hint} Allowed: {', '.join(RESNETS)}, "
            "or a name from timm.list_models('vit_*') or timm.list_models('resnet*')."
        )
    if not is_vit(config.name):
        _refuse_vit_options(config)
    try:
        network = timm.create_model(config.name, num_classes=0, **_timm_options(config, image_size))
    except (TypeError, RuntimeError) as error:  # an argument that it does not take, an unknown tag
        raise UsageError(f"timm cannot build backbone.name {config.name!r} with these options: {error}.") from None
    return speed_up(network) if isinstance(network, VisionTransformer) else network


def build_pretrained(config: BackboneConfig, *, image_size: int) -> tuple[nn.Module, str]:
    """The network with timm's own weights, and a sentence on them."""
    if config.name in RESNETS:
        raise UsageError(
            f"backbone.weights is {PRETRAINED}, but timm has no weights of {config.name}. "
            "Choose a network of timm, or give a file of weights."
        )
    remedy = (
        f"Without a network connection, give --backbone.weights FILE with weights of {config.name}; "
        "timm.list_pretrained() lists the networks that timm has weights of."
    )
    return create_pretrained(config.name, remedy=remedy, **_timm_options(config, image_size))


def _timm_options(config: BackboneConfig, image_size: int) -> dict[str, Any]:
    options = vit_options(config, image_size)
    if config.drop_path:  # some networks do not take the argument
        options["drop_path_rate"] = config.drop_path
    return options


def is_vit(name: str) -> bool:
    """Whether timm's name is one of its plain ViTs, such as those of DINO and DeiT."""
    return is_model_in_modules(name, {"vision_transformer", "deit"})


def named_vit(name: str) -> nn.Module | None:
    """The ViT that timm's name stands for, with shapes only; None for other networks."""
    if name in RESNETS or not is_vit(name):
        return None
    with torch.device("meta"):
        return timm.create_model(name, num_classes=0)


def attention_heads(backbone: nn.Module) -> int | None:
    """The number of attention heads of a network of blocks; None for other networks."""
    blocks = getattr(backbone, "blocks", None)
    layers = blocks.modules() if isinstance(blocks, nn.Sequential) else ()
    return next((int(layer.num_heads) for layer in layers if hasattr(layer, "num_heads")), None)  # type: ignore[arg-type]


def layer_depths(backbone: nn.Module, name: str) -> dict[str, int]:
    """The layer of each parameter of a network, 0 at the input: stem, then blocks."""
    matcher = getattr(backbone, "group_matcher", None)
    if matcher is None:
        raise UsageError(
            f"optimizer.layer_decay needs to know the layers of {name}, and timm does not say them. Leave it at 1."
        )
    return group_parameters(backbone, matcher(coarse=False), reverse=True)


def check_views(backbone: nn.Module, config: Config) -> None:
    """Raise an error if the network cannot take the views, or does not give one vector per image."""
    views = config.views
    weights = next(backbone.parameters())
    backbone.eval()
    for field in ("global_size", "local_size") if views.local else ("global_size",):
        side = getattr(views, field)
        try:
            with torch.no_grad():
                output = backbone(weights.new_zeros(1, 3, side, side))
        except (AssertionError, RuntimeError, ValueError, TypeError, IndexError) as error:
            raise UsageError(
                f"{config.backbone.name} cannot take views of {side} pixels (views.{field}): {error}. "
                "Choose another size, or another backbone.name."
            ) from None
        if output.shape != (1, backbone.num_features):
            raise UsageError(
                f"backbone.name is {config.backbone.name!r}, whose output for one image has shape "
                f"{tuple(output.shape)}; allowed: (1, {backbone.num_features}). Choose another backbone."
            )
    backbone.train()


def vit_options(config: BackboneConfig, image_size: int) -> dict[str, Any]:
    """The arguments that timm needs to build a ViT; empty for other networks."""
    if not is_vit(config.name):
        return {}
    options = {
        "patch_size": config.patch_size,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
    }
    given = {name: value for name, value in options.items() if value is not None}
    # dynamic_img_size: the position embedding is interpolated for local views, which are smaller.
    return {"img_size": image_size, "dynamic_img_size": True, **given}


def is_recordable(backbone: nn.Module) -> bool:
    """Whether a CUDA graph can record it: its forward pass creates all tensors on the device.

    Other networks may create a tensor on the host in every pass, which breaks a recording.
    """
    return isinstance(backbone, SmallResNet | ResNet | VisionTransformer)


def _refuse_vit_options(config: BackboneConfig) -> None:
    for name in ("patch_size", "width", "depth", "heads"):
        if getattr(config, name) is not None:
            raise UsageError(
                f"backbone.{name} is for a ViT; backbone.name is {config.name!r}. "
                "Choose a vit_* or deit_* name, or leave it out."
            )


def checkpoint_activations(backbone: nn.Module) -> None:
    """Let a ViT keep only the activations between its blocks and recompute the others in the backward pass."""
    if not isinstance(backbone, VisionTransformer):
        raise UsageError(
            "compute.checkpoint_activations is true; allowed for ViTs only: the second forward pass of a ResNet would "
            "count twice in BatchNorm's running statistics. Leave it out, or use training.accumulate."
        )
    backbone.set_grad_checkpointing(True)
