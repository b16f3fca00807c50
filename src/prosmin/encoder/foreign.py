"""Encoders we did not train: `timm:NAME[@FILE]`, a network of timm with timm's weights or those of a file.

Without a file the images are preprocessed as timm's settings of these weights say; NAME may have one of timm's tags,
such as vit_small_patch16_224.dino. With a file and no tag they are preprocessed as DINO, iBOT and MoCo v3 do: the
centred 0.875 of the image, ImageNet's mean and standard deviation.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from prosmin import config as configs
from prosmin.config import Config
from prosmin.errors import ProsminError, UsageError
from prosmin.messages import closest, did_you_mean
from prosmin.methods import seeded
from prosmin.methods.output import Embedding
from prosmin.models.pretrained import create_pretrained
from prosmin.models.weights import Weights, fill_backbone, read_weights

_SCHEME = "timm:"
_PUBLISHED = {
    "crop_pct": 0.875,
    "interpolation": "bicubic",
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
}


class Bare(nn.Module):
    """A backbone with the interface of a method: the features are also the mean, and there is no scale."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.online = nn.ModuleDict({"backbone": backbone})

    def encode(self, x: Tensor) -> Embedding:
        """Evaluation views, (N, 3, h, h)."""
        features = self.online["backbone"](x)
        return Embedding(features, features, None)


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """The parts of an Encoder. Of the configuration only views, seed and data are meaningful."""

    method: nn.Module
    config: Config
    card: dict[str, Any]
    fresh: Callable[[], nn.Module]  # the same network with random weights


class Name(NamedTuple):
    """A model of timm, and the file of its weights if one is given."""

    model: str
    file: Path | None


def is_foreign(run: Path | str) -> bool:
    """Whether this names an encoder of timm and not a run folder."""
    return str(run).startswith(_SCHEME)


def open_foreign(run: Path | str) -> Foreign:
    """The encoder that `timm:NAME[@FILE]` names."""
    model, file = parse_name(str(run))
    weights = None if file is None else read_weights(file)
    if weights is not None and weights.from_prosmin:
        raise UsageError(f"{file} is an encoder of prosmin: give its folder {weights.file.parent} instead of {run}.")
    options: dict[str, Any] = {} if weights is None or weights.heads is None else {"num_heads": weights.heads}
    backbone, origin = _filled(model, weights, options)
    config = configs.build({"backbone": {"name": model}, "views": _views(model, backbone, file)})
    views = configs.to_tree(config)["views"]
    card = {
        "format": 1,
        "encoder": str(run),
        "weights": origin,
        "step": None,  # unknown
        "hash": _content_hash(backbone, also=[options, views]),
        "backbone": {"name": model, **options},
        "views": views,
    }
    fresh = partial(seeded, partial(bare_network, model, options), config)
    return Foreign(method=Bare(backbone), config=config, card=card, fresh=fresh)


def bare_network(model: str, options: dict[str, Any]) -> Bare:
    """The network of timm with random weights."""
    return Bare(_network(model, options))


def parse_name(run: str) -> Name:
    """The model and the file of weights that `timm:NAME[@FILE]` names."""
    model, at, file = run.removeprefix(_SCHEME).partition("@")
    if not timm.is_model(model):
        suggestion = did_you_mean(closest(model.partition(".")[0], timm.list_models()))
        raise UsageError(f"timm has no model {model!r}.{suggestion} timm.list_models() lists them.")
    if at and not file:
        raise UsageError(f"{run!r} has no file after its @; write timm:{model}@FILE, or timm:{model}.")
    return Name(model, Path(file) if file else None)


def _network(model: str, options: dict[str, Any]) -> nn.Module:
    try:
        return timm.create_model(model, num_classes=0, **options)
    except RuntimeError as error:  # an unknown tag
        raise UsageError(f"timm cannot build {model}: {error} timm.list_pretrained() lists models with tags.") from None


def _filled(model: str, weights: Weights | None, options: dict[str, Any]) -> tuple[nn.Module, str]:
    """The network with its weights, and a sentence that says where they come from."""
    if weights is not None:
        backbone = _network(model, options)
        return backbone, fill_backbone(backbone, weights)
    remedy = f"Without a network connection, give a file of weights: timm:{model}@FILE."
    return create_pretrained(model, remedy=remedy)


def _views(model: str, backbone: nn.Module, file: Path | None) -> dict[str, Any]:
    """How images are preprocessed, as fields of the group `views`."""
    card = resolve_model_data_config(backbone)
    channels, height, width = card["input_size"]
    if channels != 3 or height != width:
        raise ProsminError(f"{model} takes images of {channels} x {height} x {width}; allowed: 3 x h x h.")
    if file is not None and "." not in model:
        card |= _PUBLISHED
    return {
        "global_size": height,
        "local": 0,
        "interpolation": "bilinear" if card["interpolation"] == "bilinear" else "bicubic",
        "crop_share": min(card["crop_pct"], 1.0),
        "mean": card["mean"],
        "std": card["std"],
    }


def _content_hash(module: nn.Module, *, also: list[dict[str, Any]]) -> str:
    """A hash of the weights and of how they are used, not of their file."""
    digest = hashlib.blake2b(json.dumps(also).encode(), digest_size=16)
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
