"""The backbone as a folder for timm (`local-dir:FOLDER`) that can be uploaded to the Hugging Face Hub as it is."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from prosmin import config as configs
from prosmin.config.methods import method_title
from prosmin.data.decode import MAX_LONGER, MAX_SHORTER
from prosmin.encoder import Encoder, encoder_folder
from prosmin.encoder.foreign import is_foreign
from prosmin.encoder.shipped import shipped_folder, shipped_names
from prosmin.evaluation.metrics.table import metric
from prosmin.evaluation.protocols import PROTOCOLS
from prosmin.evaluation.results import has_no_folder, results_of
from prosmin.export.card import Form, describe_encoder, write_card
from prosmin.export.timm_checkpoint import (
    TOLERANCE,
    architecture,
    check_features,
    create,
    preprocessing,
    save_backbone,
)

WEIGHTS, CONFIG, PAGE = "model.safetensors", "config.json", "README.md"

_BUILDING = ("fixed_input_size", "first_conv", "classifier")
"""What timm needs to know of an architecture to give it another head or other input channels."""

_CALL = 'timm.create_model("{}", pretrained=True, num_classes=0)'

_USE = f"""\
```python
import timm
from PIL import Image
from timm.data import create_transform, resolve_data_config

encoder = {_CALL.format("hf-hub:USER/NAME")}.eval()  # local-dir:FOLDER for a folder
transform = create_transform(**resolve_data_config(model=encoder))
features = encoder(transform(Image.open("image.jpg").convert("RGB"))[None])
print(features.shape)  # (1, {{features}})
```

`num_classes=10` gives the same network with a new linear classifier, to be fine-tuned."""


def write(encoder: Encoder, folder: Path) -> list[str]:
    """Write the weights and config.json, load them with timm, and compare."""
    name, options = architecture(encoder)
    backbone = encoder.method.get_submodule("online.backbone")
    known: Any = backbone.pretrained_cfg
    config = {
        "architecture": name.partition(".")[0],  # without the tag of timm's own weights
        "num_classes": 0,
        "num_features": backbone.num_features,
        "model_args": options,
        "pretrained_cfg": preprocessing(encoder.config.views)
        | {"num_classes": 0}
        | {key: known[key] for key in _BUILDING if known.get(key) is not None},
        "made_of": describe_encoder(encoder),
    }
    save_backbone(encoder, folder / WEIGHTS)
    write_card(folder / CONFIG, config)
    network = create(f"local-dir:{folder}", {"pretrained": True, "num_classes": 0}, backbone=name)
    found = check_features(encoder, network)
    checked = {"with": "timm", "tolerance": TOLERANCE, "deviation": found}
    write_card(folder / CONFIG, config | {"checked": checked})
    call = _CALL.format("local-dir:FOLDER")
    lines = [f"{call} gives the features, with a deviation of {found['features']:.0e}"]
    return lines if _is_shipped(encoder) else [*lines, f"before you publish it, set the license in {PAGE}"]


def write_page(encoder: Encoder, run: Path | str, folder: Path) -> None:
    """README.md, the model card of the Hub: the call, preprocessing, how it was trained, what was measured."""
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    head = {
        "license": "mit" if _is_shipped(encoder) else "unknown",
        "library_name": "timm",
        "pipeline_tag": "image-feature-extraction",
        "tags": ["image-feature-extraction", "timm", "self-supervised-learning", "prosmin"],
    }
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {_title(encoder)}",
        f"An image encoder for timm: the backbone `{config['architecture']}`, one vector of {config['num_features']} "
        "features per image, without a classifier. Exported by prosmin and compared with the original on random "
        f"images: the largest difference is {config['checked']['deviation']['features']:.0e} of the features' size. "
        "The heads are not in this folder: `prosmin.load` gives forecasts and uncertainty from the original.",
        _USE.format(features=config["num_features"]),
        "## Preprocessing",
        _table("", "", _preprocessing(encoder)),
        "timm's transform does this. Prosmin crops before it resizes, does not round in between, and first reduces "
        f"images above {MAX_SHORTER} x {MAX_LONGER} pixels to that size, so its features can differ slightly.",
    ]
    if _is_shipped(encoder) and "network" not in encoder.card:  # its card says more than its configuration
        text = (shipped_folder(encoder.card["encoder"]) / "CARD.md").read_text(encoding="utf-8")
        parts.append("## How it was made" + text.partition("## How it was made")[2].rstrip())
    else:
        parts += ["## How it was trained", _training(encoder)]
        parts += ["## What was measured", _measured(encoder, run)]
    (folder / PAGE).write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _is_shipped(encoder: Encoder) -> bool:
    return encoder.card.get("encoder") in shipped_names()


def _title(encoder: Encoder) -> str:
    source = describe_encoder(encoder)
    name = source["encoder"] if "encoder" in encoder.card else method_title(configs.to_tree(encoder.config))
    return f"{name}: {source['backbone']}"


def _preprocessing(encoder: Encoder) -> list[tuple[str, str]]:
    views = encoder.config.views
    return [
        ("size", f"{views.global_size} x {views.global_size} pixels, {views.interpolation} with antialiasing"),
        ("crop", f"the centred square, {100 * views.crop_share:g} % of the shorter side"),
        ("mean", ", ".join(f"{value:g}" for value in views.mean)),
        ("standard deviation", ", ".join(f"{value:g}" for value in views.std)),
    ]


def _training(encoder: Encoder) -> str:
    card, config = encoder.card, encoder.config
    if is_foreign(card.get("encoder", "")):
        return f"Not by prosmin: these are weights for {describe_encoder(encoder)['encoder']}, under their own license."
    network = "its target network, the moving average" if card.get("network") == "target" else "the online network"
    rows = [
        ("method", f"{method_title(configs.to_tree(config))}, without labels; this is {network}"),
        ("images", f"`{_without_folders(card['config']['data']['spec'])}`"),
        ("epochs, batch size", f"{config.training.epochs}, {config.training.batch_size}"),
        ("weights of step", f"{card['step']} of {card['steps']}"),
        ("seed", str(config.training.seed)),
        ("prosmin", f"version {describe_encoder(encoder)['prosmin']}, encoder {card['hash']}"),
    ]
    return _table("", "", rows)


def _measured(encoder: Encoder, run: Path | str) -> str:
    """The metrics that `prosmin evaluate` prints, of the results in the run's folder."""
    results = {} if has_no_folder(run) else results_of(encoder, encoder_folder(run))
    rows = []
    for name, row in results.items():
        columns = dict.fromkeys((*PROTOCOLS[name].columns, *PROTOCOLS[name].columns_without_labels))
        images = " and ".join(f"`{_without_folders(spec)}`" for spec in row["data"].values())
        values = {key: row["metrics"][key] for key in columns if row["metrics"].get(key) is not None}
        rows += [(f"{name} on {images}: {metric(key).title}", metric(key).text(value)) for key, value in values.items()]
    return _table("measure", "value", rows) if rows else "No results were found for these weights."


def _without_folders(spec: str) -> str:
    """A SPEC without the folders of this machine."""
    return re.sub(r"[^@:]*/", "", spec)


def _table(first: str, second: str, rows: list[tuple[str, str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in ((first, second), ("---", "---"), *rows))


FORM = Form(write=write, write_page=write_page, entry="architecture", names=(WEIGHTS, CONFIG, PAGE))
