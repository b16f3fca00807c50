"""A configuration of each method that any machine runs in a moment, and views to go with it."""

import warnings

import torch

from prosmin import config as configs
from prosmin.data.views import PARAMETERS, Views
from prosmin.methods.output import Draws

METHODS = ("prosmin", "dino", "ibot", "mocov3")

_RUN = {
    "training.batch_size": "16",
    "training.epochs": "1",
    "training.max_steps": "4",
    "training.log_every": "1",
    "training.checkpoint_every": "2",
    "heads.hidden": "32",
    "heads.dim": "24",
    "compute.deterministic": str(torch.cuda.is_available()).lower(),  # a CPU does not need it for equal bits
}
_RESNET = {"backbone.name": "resnet8_cifar"}
_VIT = {"backbone.patch_size": "8", "backbone.width": "24", "backbone.depth": "2", "backbone.heads": "3"}
_OWN = {
    "prosmin": {
        "heads.bottleneck": "16",
        "heads.predictor_hidden": "32",
        "heads.last": "learned",
        "heads.initial_scale": "0.05",
        "heads.radius": "false",
        "target.whitening": "centre",
        "target.normalise": "false",
        "loss.beta": "1",
        "loss.identification": "0",
        "views.local": "1",
    },
    "dino": {"heads.bottleneck": "16", "views.local": "1"},
    "ibot": {"heads.bottleneck": "16", "views.local": "1"},
    "mocov3": {},
}

WHITENED = {"target__whitening": "whiten", "heads__last": "none", "heads__initial_scale": "1"}
"""Changes of ProSMIN's configuration that whiten its target."""

WHITENED_HEADS = WHITENED | {"heads__last": "whiten", "target__normalise": "true", "training__batch_size": "32"}
"""The same with projectors that end in whitening, and targets of one length."""


def tiny_method(name: str, *, vit: bool = False, **changes: str) -> configs.Config:
    """The tiny configuration of a method with changes, written group__field; iBOT has a ViT always."""
    vit = vit or name == "ibot"
    fields = {key.replace("__", "."): value for key, value in changes.items()}
    own = _OWN[name] | ({"heads.freeze_patch_embedding": "null"} if name == "mocov3" else {})  # the method's default
    overrides = {"method.name": name} | _RUN | (_VIT if vit else _RESNET) | own | fields
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return configs.resolve(recipe="demo-vit" if vit else "demo", overrides=overrides)


def tiny_views(config: configs.Config, *, pictures: int = 4, seed: int = 0) -> Views:
    """Normalised noise in the shapes of a configuration's views; where forecasts are told, of whole images."""
    random = torch.Generator().manual_seed(seed)

    def noise(count: int, side: int) -> torch.Tensor:
        return torch.randn(count, pictures, 3, side, side, generator=random)

    views = config.views
    whole = torch.zeros(2 + views.local, pictures, len(PARAMETERS))
    whole[..., 2:4] = 1.0  # height and width
    return Views(
        noise(2, views.global_size),
        noise(views.local, views.local_size) if views.local else None,
        whole if getattr(config.heads, "condition", False) else None,
    )


def tiny_draws(*, pictures: int = 4, step: int = 0, epoch: float = 0.0) -> Draws:
    """The randomness of a step of the images 0, 1, ..."""
    return Draws(0, step, torch.arange(pictures), epoch)
