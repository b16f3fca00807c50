"""timm's own weights of a network, and how their images were normalised."""

from typing import Any

import timm
from timm.data import resolve_model_data_config
from torch import nn

from prosmin.config import ViewsConfig
from prosmin.config.values import to_text
from prosmin.errors import ProsminError

PRETRAINED = "pretrained"
"""What `backbone.weights` says for timm's own weights."""


def create_pretrained(model: str, *, remedy: str, **options: Any) -> tuple[nn.Module, str]:
    """A network of timm with timm's weights, and a sentence on them; an error ends with the `remedy`."""
    try:
        network = timm.create_model(model, pretrained=True, num_classes=0, **options)
    except Exception as error:  # the hub, the network and timm raise many kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ProsminError(f"timm's weights of {model} cannot be loaded: {reason}. {remedy}") from None
    known = timm.get_pretrained_cfg(model)
    return network, f"timm's own weights, tag {known.tag}." if known is not None else "timm's own weights."


def other_normalisation(network: nn.Module, views: ViewsConfig) -> str:
    """How to normalise the views as the images of timm's weights were; empty if they are."""
    card = resolve_model_data_config(network)
    fields = {name: card[name] for name in ("mean", "std") if tuple(card[name]) != tuple(getattr(views, name))}
    if not fields:
        return ""
    options = " ".join(f"--views.{name} {to_text(value)}" for name, value in fields.items())
    return f"timm's weights were trained with other {' and '.join(fields)} of the channels than these views: {options}"
