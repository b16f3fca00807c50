"""What a run starts from: the file or the folder that backbone.weights names."""

from pathlib import Path

from torch import nn

from prosmin import config as configs
from prosmin.config import Config
from prosmin.encoder.file import CARD, WEIGHTS, read_card
from prosmin.encoder.shipped import is_shipped, shipped_folder
from prosmin.models.backbones import attention_heads, named_vit
from prosmin.models.origin import Origin
from prosmin.models.pretrained import PRETRAINED
from prosmin.models.weights import load_initial_weights


def load_start(method: nn.Module, config: Config) -> tuple[str, list[str]]:
    """Load backbone.weights into the networks; a sentence that says what was loaded, and warnings."""
    weights = config.backbone.weights
    assert weights is not None
    if weights == PRETRAINED:
        return load_initial_weights(method, config, None)
    path = shipped_folder(weights) if is_shipped(weights) else Path(weights).expanduser()
    return load_initial_weights(method, config, path, _origin(path))


def _origin(path: Path) -> Origin | None:
    """What the card of one of our encoders says of it; None for other files, and without a card."""
    folder = path.parent if path.name == WEIGHTS else path
    if not (folder / CARD).is_file():
        return None
    card = read_card(folder)
    tree = card.get("config", card)  # a calibrated network of timm has no configuration
    backbone, views = tree["backbone"], configs.build({"views": tree["views"]}).views
    heads = backbone.get("heads") or backbone.get("num_heads")
    if heads is None and (vit := named_vit(backbone["name"])) is not None:
        heads = attention_heads(vit)
    return Origin(whose=str(folder / WEIGHTS), heads=heads, mean=views.mean, std=views.std)
