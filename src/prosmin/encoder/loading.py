"""From a path or a name to an Encoder: a run, a saved folder, a shipped encoder, or a network of timm."""

import dataclasses
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prosmin import __version__
from prosmin import config as configs
from prosmin.config import Config, ViewsConfig
from prosmin.encoder.background import read_background
from prosmin.encoder.calibrated import CALIBRATION, calibrated_network
from prosmin.encoder.encoder import Encoder
from prosmin.encoder.file import CARD, REFERENCE, WEIGHTS, fill, read_card, read_reference
from prosmin.encoder.foreign import bare_network, is_foreign, open_foreign
from prosmin.encoder.shipped import is_shipped, shipped_folder, shipped_names
from prosmin.errors import ProsminError
from prosmin.methods import METHODS, float32_default, seeded


def load(run: Path | str, *, device: torch.device | str | None = None) -> Encoder:
    """The encoder of a run, or of a folder `Encoder.save` wrote; a shipped one by its name; or timm:NAME[@FILE].

    The path of an encoder.safetensors stands for its folder, which must also have the card encoder.json. Without a
    device the encoder goes to the GPU if there is one.
    """
    if not isinstance(run, str | os.PathLike):
        raise ProsminError(
            f"An encoder came as {type(run).__name__}; allowed: the path of a run folder or of one of Encoder.save, "
            "the name of a shipped encoder, or timm:NAME[@FILE]."
        )
    with float32_default:
        encoder = _load(run)
    return encoder.to(("cuda" if torch.cuda.is_available() else "cpu") if device is None else device)


def _load(run: Path | str) -> Encoder:
    if is_foreign(run) or is_shipped(run):
        return _load_named(str(run))
    folder = encoder_folder(run)
    card = read_card(folder)
    if "encoder" in card and not (folder / WEIGHTS).exists():  # the folder has only the results of a named encoder
        return _load_measured(folder, card)
    return _load_folder(folder, card)


def encoder_folder(run: Path | str) -> Path:
    """The folder of one of our encoders, given as the folder or as the encoder.safetensors in it."""
    path = Path(run).expanduser()
    if path.is_dir():
        return path
    if path.is_file() and path.name == WEIGHTS:
        return path.parent
    if path.is_file():
        raise ProsminError(
            f"{path} is neither a run folder nor an {WEIGHTS} with its card {CARD} in the same folder. "
            f"Weights of a timm network are given as timm:NAME@{path}."
        )
    names = ", ".join(shipped_names())
    others, these = (f", and none of the shipped encoders: {names}", " one of these,") if names else ("", "")
    raise ProsminError(
        f"{path} is not a run folder{others}. Give{these} the folder that `prosmin pretrain --out` or Encoder.save "
        "wrote, or timm:NAME[@FILE]."
    )


def _load_folder(folder: Path, card: dict[str, Any]) -> Encoder:
    config, build = _networks(card)
    method = fill(build(), folder, card)
    reference = read_reference(folder, encoder=card["hash"])
    other = folder / REFERENCE if reference is None and (folder / REFERENCE).exists() else None
    fresh = partial(seeded, build, config)
    background = read_background(folder, encoder=card["hash"])
    return Encoder(
        method, config, card=card, fresh=fresh, background=background, reference=reference, other_reference=other
    )


def _networks(card: dict[str, Any]) -> tuple[Config, Callable[[], nn.Module]]:
    """The configuration of an encoder, and a function that builds its networks."""
    config, build = _original_networks(card)
    if CALIBRATION not in card:
        return config, build
    calibration = card[CALIBRATION]  # its images take the place of the training images
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, spec=calibration["data"]))
    return config, partial(_calibrated, build, calibration, config.views)


def _calibrated(build: Callable[[], nn.Module], calibration: dict[str, Any], views: ViewsConfig) -> nn.Module:
    return calibrated_network(build().get_submodule("online.backbone"), calibration, views)


def _original_networks(card: dict[str, Any]) -> tuple[Config, Callable[[], nn.Module]]:
    if "config" in card:
        config = configs.build(card["config"])
        return config, partial(METHODS[config.method.name], config)
    options = dict(card["backbone"])  # a network of timm that `Encoder.save` wrote
    name = options.pop("name")
    config = configs.build({"backbone": {"name": name}, "views": card["views"]})
    return config, partial(bare_network, name, options)


def _load_named(name: str) -> Encoder:
    """An encoder of timm or a shipped one. Its card has its name under `encoder`."""
    if is_foreign(name):
        parts = open_foreign(name)
        return Encoder(parts.method, parts.config, card=parts.card, fresh=parts.fresh)
    folder = shipped_folder(name)
    card = read_card(folder)
    origin = {
        "encoder": name,
        "weights": f"shipped with prosmin {__version__}, step {card['step']}.",
        "backbone": card["config"]["backbone"],
    }
    return _load_folder(folder, card | origin)


def _load_measured(folder: Path, card: dict[str, Any]) -> Encoder:
    """The named encoder whose results are in the folder; it must still have the same weights."""
    name = card["encoder"]
    if not is_foreign(name) and name not in shipped_names():
        raise ProsminError(
            f"{folder} has the results of {name}, which this version of prosmin does not ship. "
            "Install the version they were measured with, or evaluate another encoder into another folder."
        )
    encoder = _load_named(name)
    if encoder.card["hash"] != card["hash"]:
        raise ProsminError(
            f"The weights of {name} are not those that {folder} was measured with. "
            f"Evaluate the present ones: `prosmin evaluate {name} --out {folder}`."
        )
    return encoder
