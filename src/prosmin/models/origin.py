"""What the shapes of weights do not show, attention heads and normalisation: is it as in the encoder they come from?"""

from dataclasses import dataclass

from torch import nn

from prosmin.config import ViewsConfig
from prosmin.config.values import to_text
from prosmin.errors import ProsminError
from prosmin.models.backbones import attention_heads, named_vit

Channels = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The encoder that weights come from; None for what is unknown."""

    whose: str  # it, in messages
    heads: int | None = None
    mean: Channels | None = None
    std: Channels | None = None


def named_heads(name: str, *, like: nn.Module) -> int | None:
    """The attention heads of timm's ViT of this name; None if the network `like` has another width."""
    vit = named_vit(name)
    return attention_heads(vit) if vit is not None and vit.num_features == like.num_features else None


def compare_heads(backbone: nn.Module, origin: Origin) -> str:
    """An error if the network has other attention heads; a warning, else empty, if it is unknown whether it has."""
    heads = attention_heads(backbone)
    if heads is None or heads == origin.heads:
        return ""
    if origin.heads is None:
        return (
            f"the number of attention heads of {origin.whose} is unknown, and its shapes do not show it: the network "
            f"has {heads}. With another number the same weights give other features; backbone.heads sets it."
        )
    raise ProsminError(
        f"{origin.whose} has {origin.heads} attention heads and the network {heads}, with which the same weights give "
        f"other features. Set backbone.heads to {origin.heads}."
    )


def other_normalisation(views: ViewsConfig, origin: Origin) -> str:
    """How to normalise the views as the images of the weights were; empty if they are, or if that is unknown."""
    theirs = {"mean": origin.mean, "std": origin.std}
    fields = {name: value for name, value in theirs.items() if value not in (None, getattr(views, name))}
    if not fields:
        return ""
    options = " ".join(f"--views.{name} {to_text(value)}" for name, value in fields.items())
    return f"{origin.whose} was trained with other {' and '.join(fields)} of the channels than these views: {options}"
