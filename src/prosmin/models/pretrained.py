"""timm's own weights of a network."""

from typing import Any

import timm
from torch import nn

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
