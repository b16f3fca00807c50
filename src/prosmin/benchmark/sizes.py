"""How many parameters each part of a method has."""

from torch import nn


def count_parameters(method: nn.Module) -> dict[str, int]:
    """Backbone f, projector g and every other part that is trained, such as a predictor; the target is a copy.

    The parts are those of the module itself: `online.backbone`, what else `online` holds, and the children beside it.
    """
    counts = {"backbone": 0, "projector": 0}
    for name, parameter in method.named_parameters():
        first, _, rest = name.partition(".")
        if first == "target":
            continue
        part = first
        if first == "online":
            part = "backbone" if rest.startswith("backbone.") else "projector"
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts
