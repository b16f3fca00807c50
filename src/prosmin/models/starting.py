"""Training that starts from given weights instead of random ones."""

from pathlib import Path

from torch import nn

from prosmin.config import Config
from prosmin.models.weights import load_backbone_weights


def start_from(method: nn.Module, config: Config) -> str:
    """Load `backbone.weights` into the online backbone, and into the target's where that starts as a copy."""
    assert config.backbone.weights is not None
    online = method.get_submodule("online.backbone")
    sentence = load_backbone_weights(online, Path(config.backbone.weights))
    if config.target.start == "copy":
        method.get_submodule("target.backbone").load_state_dict(online.state_dict(), strict=True)
    return sentence
