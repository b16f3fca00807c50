"""What a run starts from: the file or the folder that backbone.weights names."""

from pathlib import Path

from torch import nn

from prosmin.config import Config
from prosmin.encoder.shipped import is_shipped, shipped_folder
from prosmin.models.pretrained import PRETRAINED
from prosmin.models.weights import load_initial_weights


def load_start(method: nn.Module, config: Config) -> tuple[str, str]:
    """Load backbone.weights into the networks; a sentence that says what was loaded, and a warning, perhaps empty."""
    weights = config.backbone.weights
    assert weights is not None
    if weights == PRETRAINED:
        return load_initial_weights(method, config, None)
    return load_initial_weights(method, config, shipped_folder(weights) if is_shipped(weights) else Path(weights))
